"""Where free memory is read, on files as Linux has them."""

import jax
import pytest

from mintjax.train.free_memory import free_memory

GIB = 2**30


@pytest.fixture
def machine(tmp_path):
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    meminfo.write_text(f"MemTotal: {8 * 2**20} kB\nMemAvailable:    {3 * 2**20} kB\n")
    cgroup.mkdir()
    return {"meminfo": meminfo, "cgroup": cgroup}


def limit(machine, most, used):
    (machine["cgroup"] / "memory.max").write_text(f"{most}\n")
    (machine["cgroup"] / "memory.current").write_text(f"{used}\n")


def test_without_a_limit_it_is_what_is_available(machine):
    assert free_memory(**machine) == (3 * GIB, "available on this machine")
    limit(machine, "max", GIB)
    assert free_memory(**machine) == (3 * GIB, "available on this machine")


def test_a_containers_limit_counts_where_less_is_left(machine):
    limit(machine, 2 * GIB, GIB // 2)
    assert free_memory(**machine) == (3 * GIB // 2, "left below the limit of this container")
    limit(machine, 7 * GIB, GIB)
    assert free_memory(**machine)[0] == 3 * GIB


def test_where_linux_tells_nothing_it_is_all_there_is(machine):
    machine["meminfo"].unlink()
    size, where = free_memory(**machine)
    assert size > GIB // 4 and where == "all the memory of this machine"


def test_an_accelerator_is_asked_itself(machine, monkeypatch):
    class Device:
        def memory_stats(self):
            return {"bytes_limit": 5 * GIB, "bytes_in_use": GIB}

        def __str__(self):
            return "GPU_0"

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert free_memory(**machine) == (4 * GIB, "free on GPU_0")
