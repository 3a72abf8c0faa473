"""NVSwitches of this host and the program that sets up their fabric."""

from __future__ import annotations

from dataclasses import dataclass

from coldstart_host.pci import nvswitches
from coldstart_host.processes import in_container, processes_named

_MANAGER = "nv-fabricmanager"


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
