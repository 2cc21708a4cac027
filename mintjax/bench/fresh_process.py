"""What only a process of its own can tell: its peak memory, and what a second start still compiles."""

import ctypes
import gc
import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


class Peak(NamedTuple):
    """Memory of a process, in bytes.

    Attributes:
        resting: held before the call.
        peak: held at most during it.
    """

    resting: int
    peak: int


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a new process that has imported nothing yet, and returns its result.

    Args:
        function: of a module, so that it can be found there.
        arguments: values that can be pickled.

    Returns:
        What the function returned; what it raised is raised here.

    Example:
        >>> peak = in_fresh_process(peak_of_plan, size, "segments")
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def peak_memory(function: Callable[[], Any]) -> Peak | None:
    """The most memory that this process held while a function ran, as the kernel counts it.

    Call the function once before, so that nothing is compiled in the call that counts. What compiling has freed and libc
    holds back is returned to the system first, where libc is glibc.

    Args:
        function: what to run; the arrays that it returns are waited for.

    Returns:
        The memory; None where the system does not tell, which only Linux does.

    Example:
        >>> peak_memory(step).peak / 2**20
    """
    if not _CLEAR.exists():
        return None
    return_freed_memory()
    _CLEAR.write_text("5")  # sets the peak back to what is held now
    resting = _status("VmRSS")
    jax.block_until_ready(function())
    return Peak(resting, _status("VmHWM"))


def return_freed_memory() -> None:
    """Returns to the system what the process has freed and libc holds back, where libc is glibc.

    Example:
        >>> return_freed_memory()  # before the memory that is held is read
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status(field: str) -> int:
    """A field of this process's status, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found is not None  # the kernel writes it whenever it writes the file
    return int(found[1]) * 1024
