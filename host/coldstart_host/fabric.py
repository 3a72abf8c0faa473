"""NVSwitches of this host and the program that sets up their fabric."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_host.pci import nvswitches

_PROC = Path("/proc")
_MANAGER = "nv-fabricmanager"
_COMM_LENGTH = 15  # what the kernel keeps of a program's name


@dataclass(frozen=True)
class FabricFacts:
    """`manager_running` tells of the processes that we can see: inside a container the host's are hidden."""

    switches: int
    manager_running: bool
    in_container: bool


def read_fabric() -> FabricFacts:
    switches = len(nvswitches())
    running = bool(switches) and bool(processes_named(_MANAGER))
    return FabricFacts(switches, running, in_container())


def processes_named(*names: str, proc: Path = _PROC) -> tuple[int, ...]:
    """Processes by the name the kernel keeps for them."""
    short = {name[:_COMM_LENGTH] for name in names}
    found = []
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                if (folder / "comm").read_text("utf-8", "replace").rstrip("\n") in short:
                    found.append(int(folder.name))
    return tuple(sorted(found))


def in_container() -> bool:
    """What docker, podman and systemd leave where a container is; Kubernetes gives it a service account."""
    marks = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container", "/run/secrets/kubernetes.io")
    return any(Path(mark).exists() for mark in marks)
