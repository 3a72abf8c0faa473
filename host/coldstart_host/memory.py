"""How much memory can still be used here, by the host's own account and the limits on our group."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from coldstart_host.cgroup import CgroupLimits, read_cgroup_limits


def available_memory(meminfo: Path = Path("/proc/meminfo"), limits: CgroupLimits | None = None) -> int:
    """Bytes that can be had without pushing anything out but the page cache."""
    available = _available(meminfo)
    limits = limits or read_cgroup_limits()
    if limits.memory_limit_bytes is None or limits.memory_used_bytes is None:
        return available
    return min(available, max(0, limits.memory_limit_bytes - limits.memory_used_bytes))


def _available(meminfo: Path) -> int:
    """0 where the kernel does not say: nothing is to be had that nobody knows of."""
    with suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
