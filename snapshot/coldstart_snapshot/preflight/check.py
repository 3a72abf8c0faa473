"""All findings about a live tree at once: what a capture asks before it touches anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import CannotCreateError, ColdstartError, DataError, UnavailableError
from coldstart_snapshot.containers.target import ContainerTarget, Target
from coldstart_snapshot.criu.program import Criu
from coldstart_snapshot.criu.reasons import Severity
from coldstart_snapshot.cuda.capturing import GpuCapture
from coldstart_snapshot.preflight import descriptors, files, gpus, host, memory, mounts, sockets, tasks
from coldstart_snapshot.preflight.finding import Finding
from coldstart_snapshot.preflight.scene import look

_CHECKS = (tasks, descriptors, memory, files, mounts, sockets, host)
_LISTED = 8
_KINDS: dict[str, type[ColdstartError]] = {
    "disk-space": CannotCreateError,
    "memory": CannotCreateError,
    "criu-unfit": UnavailableError,
    "gpu-communication": UnavailableError,
    "gpu-host-memory": UnavailableError,
    "gpu-managed-memory": UnavailableError,
    "gpu-mig": UnavailableError,
    "gpu-mps": UnavailableError,
    "gpu-several": UnavailableError,
}


@dataclass(frozen=True)
class Checked:
    """What was found about one target, blockers first, and what its snapshot would take at most."""

    label: str
    processes: int
    needed_bytes: int
    findings: tuple[Finding, ...]


def check_target(target: Target, criu: Criu, state_folder: Path, gpu: GpuCapture | None = None) -> Checked:
    """Look for every blocker and note; `gpu` has the processes whose GPU state will be suspended."""
    pids, size = (gpu.pids, gpu.state.memory_used_bytes) if gpu is not None else ((), 0)
    scene = look(target, criu, state_folder, pids, size)
    found = [finding for part in _CHECKS for finding in part.check(scene)]
    if gpu is not None:
        found += gpus.findings(gpu)
    ordered = sorted(found, key=lambda finding: finding.severity is not Severity.BLOCKER)
    return Checked(target.label, len(scene.tree), host.needed_bytes(scene), tuple(ordered))


def blockers(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity is Severity.BLOCKER)


def refuse_blockers(target: Target, findings: Iterable[Finding]) -> None:
    """One error that names every blocker; a single one keeps its own remedy."""
    found = blockers(findings)
    if not found:
        return
    kind = _KINDS.get(found[0].code, DataError)
    if len(found) == 1:
        raise kind(found[0].what, hint=found[0].remedy)
    listed = "; ".join(finding.what for finding in found[:_LISTED])
    if len(found) > _LISTED:
        listed += f"; and {len(found) - _LISTED} more"
    option = (
        f"--container {target.container_id}" if isinstance(target, ContainerTarget) else f"--pid {target.pid}"
    )
    raise kind(
        f"{target.label} cannot be captured, for {len(found)} reasons: {listed}",
        hint=f"coldstart snap check {option}",
    )
