"""The order of verdicts, findings with stable reason codes, and the report they add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from coldstart_cli.errors import ColdstartError, ExitCode
from coldstart_health.pressure import HostPressure
from coldstart_host.clock import ClockFacts
from coldstart_host.cuda_copy import CopyResult
from coldstart_host.gpu import GpuFacts

HOST = "host"
FABRIC = "fabric"
NOT_CHECKED = "_not_checked"  # ends the reason of a check that did not run


class Verdict(IntEnum):
    """Worst wins. Up to DEGRADED a replica may be placed; from UNKNOWN on it may not."""

    OK = 0
    DEGRADED = 1
    UNKNOWN = 2
    DRAIN = 3
    RESET = 4
    REBOOT = 5
    REPLACE = 6

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def may_serve(self) -> bool:
        return self <= Verdict.DEGRADED


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, default=Verdict.OK)


@dataclass(frozen=True)
class Finding:
    """One observation. `reason` is a stable code; OK ones inform; `subject` is `host`, `fabric` or a UUID."""

    reason: str
    verdict: Verdict
    subject: str
    source: str
    evidence: str
    action: str | None = None


@dataclass(frozen=True)
class CheckRun:
    """A check that was asked for: `error` is None where it ran."""

    name: str
    duration_seconds: float
    error: ColdstartError | None = None


@dataclass(frozen=True)
class Expectation:
    """How many GPUs this host should have; `explicit`: the operator says so, no earlier boot.

    `named`: and which ones.
    """

    count: int
    source: str
    explicit: bool
    named: bool = False


@dataclass(frozen=True)
class GpuVerdict:
    """One GPU as the report names it; `facts` is None where only DCGM told of it."""

    subject: str
    verdict: Verdict
    label: str
    facts: GpuFacts | None = None


@dataclass(frozen=True)
class HealthReport:
    """The answer of one health run."""

    findings: tuple[Finding, ...]
    gpus: tuple[GpuVerdict, ...]
    checks: tuple[CheckRun, ...]
    duration_seconds: float
    expected: Expectation | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    dcgm_version: str | None = None
    pressure: HostPressure | None = None
    clock: ClockFacts | None = None
    fabric: bool = False
    copies: tuple[CopyResult, ...] = ()

    @property
    def overall(self) -> Verdict:
        return worst(finding.verdict for finding in self.findings)

    @property
    def host_verdict(self) -> Verdict:
        """The worst finding that belongs to no GPU of this report, nor to the fabric."""
        elsewhere = {FABRIC, *(gpu.subject for gpu in self.gpus)}
        return worst(finding.verdict for finding in self.findings if finding.subject not in elsewhere)

    @property
    def fabric_verdict(self) -> Verdict | None:
        """None where there is no NVLink fabric."""
        found = self._verdicts_of(FABRIC)
        return worst(found) if self.fabric or found else None

    def _verdicts_of(self, subject: str) -> list[Verdict]:
        return [finding.verdict for finding in self.findings if finding.subject == subject]

    @property
    def may_serve(self) -> bool:
        return self.overall.may_serve

    @property
    def unavailable(self) -> ColdstartError | None:
        """The missing program or driver, when it alone keeps this host from a verdict."""
        rest = [finding for finding in self.findings if not finding.reason.endswith(NOT_CHECKED)]
        errors = [check.error for check in self.checks if check.error is not None]
        if not worst(finding.verdict for finding in rest).may_serve or not errors:
            return None
        return errors[0] if all(error.exit_code is ExitCode.UNAVAILABLE for error in errors) else None

    @property
    def worst_finding(self) -> Finding | None:
        bad = [finding for finding in self.findings if finding.verdict is not Verdict.OK]
        return max(bad, key=lambda finding: finding.verdict, default=None)

    @property
    def summary(self) -> str:
        """One line: the verdict, and the finding that made it."""
        finding = self.worst_finding
        if finding is None:
            return Verdict.OK.word
        more = sum(other.verdict is not Verdict.OK for other in self.findings) - 1
        others = f" (and {more} more)" if more else ""
        return f"{finding.verdict.word}: {finding.reason} on {finding.subject}: {finding.evidence}{others}"


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding per reason and subject, the worst of them, the worst first."""
    kept: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        known = kept.get((finding.reason, finding.subject))
        if known is None or finding.verdict > known.verdict:
            kept[finding.reason, finding.subject] = finding
    return tuple(sorted(kept.values(), key=lambda finding: -finding.verdict))
