"""A cold start that is held to a CPU level, from before its first instruction to the proof."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from coldstart_cli.errors import UnavailableError
from coldstart_host.cpu import CpuFacts
from coldstart_host.cpu_levels import reaches
from coldstart_snapshot.containers.new_bundle import ContainerSpec
from coldstart_snapshot.cpu.caps import CapProof, capped_environment
from coldstart_snapshot.cpu.cpuid_cap import CpuidCap, can_mask
from coldstart_snapshot.cpu.proof import prove_caps


def check_reached(level: str, host: CpuFacts) -> None:
    """Refuse a level that this CPU does not have."""
    if not reaches(level, host.level):
        raise UnavailableError(
            f"this CPU cannot be held to {level}: it reaches {host.level}",
            hint="build that variant on a host that has it",
        )


class CappedStart:
    """Caps by environment, and CPUID answered by a tracer where this host lets it fault."""

    def __init__(self, level: str, host: CpuFacts) -> None:
        check_reached(level, host)
        self._level = level
        self._tracer = CpuidCap(level) if can_mask(host) else None
        self._began = time.monotonic()

    def apply(self, spec: ContainerSpec) -> ContainerSpec:
        """The container with every cap in its environment."""
        return replace(spec, environment=capped_environment(self._level, spec.environment))

    def before_start(self, pid: int) -> None:
        """Take hold of a container's first process, which waits to start its program."""
        if self._tracer is not None:
            self._tracer.attach(pid)
        self._began = time.monotonic()

    def prove(self, pids: Sequence[int]) -> CapProof:
        """Stop the tree, from which CPUID hides nothing any more, and look at every process of it."""
        report = self._tracer.hold() if self._tracer is not None else None
        seconds = time.monotonic() - self._began
        return prove_caps(self._level, pids, since_seconds=seconds, report=report)

    def let_go(self) -> None:
        """The tree goes on, or will when it is thawed; nothing happens where nothing is held."""
        if self._tracer is not None:
            self._tracer.release()

    def close(self) -> None:
        """End the tracer; a tree that was not let go ends with it."""
        if self._tracer is not None:
            self._tracer.close()
