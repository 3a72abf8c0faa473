"""Processes by name, and whether those of the host can be seen from here."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from coldstart_cli.process import start_ticks

_PROC = Path("/proc")
_COMM_LENGTH = 15  # what the kernel keeps of a program's name


def processes_named(*names: str) -> tuple[int, ...]:
    """Processes by the name the kernel keeps for them; zombies have ended."""
    short = {name[:_COMM_LENGTH] for name in names}
    found = []
    for folder in _PROC.iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                named = (folder / "comm").read_text("utf-8", "replace").rstrip("\n") in short
                if named and start_ticks(int(folder.name)):
                    found.append(int(folder.name))
    return tuple(sorted(found))


def parent_of(pid: int) -> int:
    """0 for a process that is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])


def in_container() -> bool:
    """What docker, podman and systemd leave where a container is; Kubernetes gives it a service account."""
    marks = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container", "/run/secrets/kubernetes.io")
    return any(Path(mark).exists() for mark in marks)
