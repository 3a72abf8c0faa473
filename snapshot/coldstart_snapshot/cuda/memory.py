"""Host memory for what leaves the GPU: of the machine, and of the control group that the server is in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coldstart_host.cgroup import read_cgroup_limits

_MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True)
class Room:
    """How much more memory processes may take; `limit` says whose limit that is."""

    free_bytes: int
    limit: str


def room_for(pid: int, meminfo: Path = _MEMORY) -> Room | None:
    """The room that a process has; None where the kernel does not tell."""
    rooms = []
    for line in meminfo.read_text("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            rooms.append(Room(int(value.split()[0]) << 10, "of this host"))
    limits = read_cgroup_limits(own=Path(f"/proc/{pid}/cgroup"))
    if limits.memory_limit_bytes is not None and limits.memory_used_bytes is not None:
        free = max(limits.memory_limit_bytes - limits.memory_used_bytes, 0)
        rooms.append(Room(free, f"of the control group of process {pid}"))
    return min(rooms, key=lambda room: room.free_bytes, default=None)
