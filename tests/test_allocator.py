"""What a process frees stays with it, and training asks for that before anything else."""

import ctypes
import importlib
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from mintjax import allocator
from mintjax.allocator import keep_freed_memory
from mintjax.bench.fresh_process import in_fresh_process

# The package has a function of that name.
command_line = importlib.import_module("mintjax.cli.main")

SIZES = 16 << 20, 64 << 20  # the larger one is more than the heap of a thread could hold


def faults_of_a_second_allocation(keep: bool, size: int) -> int:
    """Pages that the system hands out again, for a thread's block of the size of one that it freed."""
    if keep:
        assert keep_freed_memory()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_faults, size).result()


def _faults(size: int) -> int:
    before = 0
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = np.empty(size, np.uint8)
        block[::4096] = 1
        del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="for glibc alone"
)
@pytest.mark.parametrize("size", SIZES)
def test_freed_memory_is_used_again(monkeypatch, size):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    # A block has this many huge pages of 2 MiB; where the system hands out small ones, 512 times as many.
    pages = size >> 21
    assert in_fresh_process(faults_of_a_second_allocation, False, size) >= pages
    assert in_fresh_process(faults_of_a_second_allocation, True, size) < pages


@pytest.mark.parametrize("platforms", ["cuda", "tpu", "cuda,cpu"])
def test_memory_of_an_accelerators_host_is_left_alone(monkeypatch, platforms):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: pytest.fail("asked for"))
    assert not keep_freed_memory()


@pytest.mark.parametrize("installed", ["libtpu", "jax_plugins", "entry point", None])
def test_an_installed_plugin_counts_as_an_accelerator(monkeypatch, installed):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(allocator, "find_spec", lambda name: name == installed or None)
    points = ["cuda"] if installed == "entry point" else []
    monkeypatch.setattr(allocator, "entry_points", lambda group: points)
    asked = []
    libc = SimpleNamespace(mallopt=lambda *setting: asked.append(setting) or 1)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: libc)
    monkeypatch.setattr(allocator.sys, "platform", "linux")
    assert keep_freed_memory() == (installed is None)
    assert len(asked) == (3 if installed is None else 0)


@pytest.mark.parametrize(
    ("command", "want"),
    [
        ("train", ["kept", "train"]),
        ("sft", ["kept", "sft"]),
        ("dpo", ["kept", "dpo"]),
        ("bench", ["kept", "bench"]),
        ("plan", ["plan"]),
    ],
)
def test_a_command_that_computes_asks_for_it_before_it_starts(monkeypatch, command, want):
    order = []
    monkeypatch.setattr(command_line, "keep_freed_memory", lambda: order.append("kept"))
    monkeypatch.setitem(command_line._COMMANDS, command, lambda _: order.append(command) or 0)
    monkeypatch.setattr("sys.argv", ["mintjax", command])
    assert command_line.main() == 0
    assert order == want
    order.clear()
    command_line.main([command])
    assert order == [command], "the process is the caller's"
