"""How much page cache a replay may fill: a part of what the host, and our cgroup, have to spare."""

from __future__ import annotations

from pathlib import Path

from coldstart_host.memory import available_memory

_MEMORY = Path("/proc/meminfo")


def memory_budget_bytes(percent: float, meminfo: Path = _MEMORY) -> int:
    """Pushed pages are charged to the server's cgroup, not to the container that reads them."""
    return int(available_memory(meminfo) * percent / 100)
