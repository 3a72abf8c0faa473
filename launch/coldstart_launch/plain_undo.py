"""End what a killed restore of a plain process had begun: IMAGES PID START_TICKS SECONDS."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from coldstart_cli.process import start_ticks
from coldstart_snapshot.processes.tree import all_pids, end_tree

_POLL_SECONDS = 0.05


def undo(images: str, pid: int, began_ticks: int, seconds: float) -> None:
    """Let criu end, which would leave more behind halfway; then end the tree, unless it is an older one."""
    deadline = time.monotonic() + seconds
    while _engines(images) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if start_ticks(pid) >= began_ticks > 0:
        end_tree(pid, grace_seconds=1.0)


def _engines(images: str) -> list[int]:
    found = []
    for pid in all_pids():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"restore" in arguments and os.fsencode(images) in arguments:
            found.append(pid)
    return found


if __name__ == "__main__":
    undo(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
