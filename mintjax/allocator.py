"""How a process that computes on CPU asks the system for memory: once, instead of anew for every program it runs."""

import ctypes
import os
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec

# Parameters of mallopt(3) and their values here: large blocks are taken from the heap too, what is free at its end stays,
# and all threads share one, since any other one has a largest block and is trimmed whatever is asked.
_MMAP_MAX = -4, 0
_TRIM_THRESHOLD = -1, -1
_ARENA_MAX = -8, 1


def keep_freed_memory() -> bool:
    """Keeps what the process has freed for its next allocation, where jax computes on CPU and libc is glibc.

    XLA allocates the temporary memory of a program every time that it runs. By default glibc hands large blocks back to
    the system at once, which clears each page again when it is next touched: a training step of SmolLM2-135M spent more
    than a tenth of its CPU time in that. The process's peak stays what it was; it keeps it until it ends.

    It has to run before jax computes for the first time: threads keep the heap that they started with. Where an
    accelerator's plugin is installed (and ``JAX_PLATFORMS`` is not ``cpu``), the host's memory is left alone.

    Returns:
        Whether it was done.

    Example:
        >>> from mintjax.allocator import keep_freed_memory
        >>> keep_freed_memory()  # first thing in a script
        True
    """
    if not (sys.platform == "linux" and _computes_on_cpu()):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = _MMAP_MAX, _TRIM_THRESHOLD, _ARENA_MAX
    return mallopt is not None and all([mallopt(*setting) == 1 for setting in settings])


def _computes_on_cpu() -> bool:
    """Whether jax will find no accelerator; asking jax itself would start its threads."""
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms == "cpu"
    plugins = find_spec("libtpu") or find_spec("jax_plugins") or entry_points(group="jax_plugins")
    return not plugins
