"""How much memory there is to take: the device's, or the machine's where that is the device."""

import os
from pathlib import Path

import jax

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_memory(*, meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> tuple[int, str]:
    """Reads what the first device has free now; an effect, for the edges and the loop.

    An accelerator tells it itself. On CPU it is what Linux calls available, or what is left below the limit of the
    control group that a container runs in, whichever is less. Elsewhere it is the machine's whole memory.

    Args:
        meminfo: where Linux tells it.
        cgroup: where Linux tells a container's limit.

    Returns:
        Bytes, and in words where they were read.

    Example:
        >>> free_memory()  # doctest: +SKIP
        (21474836480, 'available on this machine')
    """
    device = jax.local_devices()[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0), f"free on {device}"
    if not meminfo.is_file():
        pages = os.sysconf("SC_PHYS_PAGES")
        return pages * os.sysconf("SC_PAGE_SIZE"), "all the memory of this machine"
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024, "available on this machine"
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if not limit.is_file() or limit.read_text().strip() == "max":
        return available
    left = int(limit.read_text()) - int(used.read_text())
    return min(available, (left, "left below the limit of this container"))
