"""Findings about GPU state: what the driver could not move, or nothing here has room for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coldstart_snapshot.criu.reasons import Severity
from coldstart_snapshot.cuda.capturing import GpuCapture
from coldstart_snapshot.cuda.guards import Problem
from coldstart_snapshot.preflight.finding import Finding, finding


def findings(gpu: GpuCapture) -> Iterator[Finding]:
    """One for each guard that says no; those that the configuration allows are notes."""
    for problem in gpu.problems:
        found = _finding(problem)
        yield replace(found, severity=Severity.NOTE) if problem.guard in gpu.allowed else found
    for note in gpu.notes:
        yield finding("gpu-persistence", note)


def _finding(problem: Problem) -> Finding:
    what, remedy = problem.text, problem.hint
    match problem.guard:
        case "communication":
            return finding("gpu-communication", what, remedy=remedy)
        case "host-memory":
            return finding("gpu-host-memory", what, remedy=remedy)
        case "managed-memory":
            return finding("gpu-managed-memory", what, remedy=remedy)
        case "mig":
            return finding("gpu-mig", what, remedy=remedy)
        case "mps":
            return finding("gpu-mps", what, remedy=remedy)
        case "several-gpus":
            return finding("gpu-several", what, remedy=remedy)
    raise ValueError(problem.guard)
