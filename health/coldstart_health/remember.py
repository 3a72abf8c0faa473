"""A report in the light of what is remembered: the quarantine merged in, and this run's findings kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from coldstart_cli.config import Config
from coldstart_cli.errors import ColdstartError
from coldstart_health.audit import append_audit, changes
from coldstart_health.drift_run import drift_findings
from coldstart_health.evidence import Evidence
from coldstart_health.identity import SeenGpu, seen_gpus
from coldstart_health.last_run import RunKind, record_run
from coldstart_health.moment import Moment, now
from coldstart_health.quarantine import (
    QuarantineUnreadableError,
    quarantine_lock,
)
from coldstart_health.quarantine_pending import (
    keep_pending,
    load_known,
    pending_path,
    update_known,
    worsened,
)
from coldstart_health.quarantine_policy import Policy, RunFacts
from coldstart_health.quarantine_record import Quarantine
from coldstart_health.quarantine_run import after_run, quarantine_findings
from coldstart_health.verdict import HOST, Finding, HealthReport, Verdict, merged, worst

# a failure of these says nothing about a GPU
_BESIDE_THE_POINT = frozenset({"pressure", "quarantine"})


@dataclass(frozen=True)
class Run:
    """Which run this is, and when it began. `record`: keep what it finds. `ended`: None for now."""

    kind: RunKind
    began: Moment
    record: bool = True
    ended: Moment | None = None

    @property
    def end(self) -> Moment:
        return self.ended or now()


def with_memory(config: Config, evidence: Evidence, report: HealthReport, run: Run) -> HealthReport:
    """The report that counts: what is remembered, added to what was found."""
    report = with_findings(
        report, drift_findings(config, evidence, report, moment=run.end, record=run.record)
    )
    seen = seen_gpus(evidence.reading, report.findings, evidence.known)
    report = with_findings(report, _quarantine(config, evidence, report, seen, run))
    if run.record:
        try:
            record_run(config.state_folder, run.kind, report, now())
        except ColdstartError as error:
            report = with_findings(report, [_not_recorded("run_not_recorded", Verdict.OK, error)])
    return report


def with_findings(report: HealthReport, findings: Iterable[Finding]) -> HealthReport:
    """The report with more findings, and the verdicts that follow."""
    together = merged([*report.findings, *findings])
    gpus = tuple(
        replace(gpu, verdict=worst(finding.verdict for finding in together if finding.subject == gpu.subject))
        for gpu in report.gpus
    )
    return replace(report, findings=together, gpus=gpus)


def _quarantine(
    config: Config, evidence: Evidence, report: HealthReport, seen: tuple[SeenGpu, ...], run: Run
) -> list[Finding]:
    policy, facts = Policy.of(config), _facts(evidence, report, run)
    try:
        before = load_known(config)
    except QuarantineUnreadableError as error:
        text = f"{error.message}; what is found now is not recorded"
        return [Finding("quarantine_unreadable", Verdict.UNKNOWN, HOST, "quarantine", text, error.hint)]
    after = after_run(before, seen, facts, policy)
    if (after == before and not pending_path(config).exists()) or not run.record:
        return quarantine_findings(after, seen, policy)
    try:
        after = update_known(config, lambda state: after_run(state, seen, facts, policy))
    except ColdstartError as error:
        # what could not be recorded has not happened: nobody is released, and who is bad now is bad
        return [
            *quarantine_findings(before, seen, policy),
            *quarantine_findings(after, seen, policy),
            _waiting(config, before, after, error),
        ]
    notes = _audited(config, before, after, facts.ended)
    return [*quarantine_findings(after, seen, policy), *notes]


def _waiting(config: Config, before: Quarantine, after: Quarantine, error: ColdstartError) -> Finding:
    """Who is bad now must be bad at the next look, too: a note in the run folder, or nobody may serve."""
    blocking = any(record.blocks for state in (before, after) for record in state.records)
    verdict = Verdict.DEGRADED if blocking else Verdict.OK
    if (worse := worsened(before, after)).records:
        try:
            error.add(f"noted in {keep_pending(config, worse)} until it can be recorded")
        except ColdstartError as second:
            error.add(f"and it is forgotten with this run: {second.message}")
            verdict = Verdict.UNKNOWN
    return _not_recorded("quarantine_not_recorded", verdict, error)


def _audited(config: Config, before: Quarantine, after: Quarantine, moment: Moment) -> list[Finding]:
    try:
        with quarantine_lock(config.state_folder):
            append_audit(config.state_folder, changes(before, after, moment))
    except ColdstartError as error:
        return [_not_recorded("audit_not_written", Verdict.OK, error)]
    return []


def _facts(evidence: Evidence, report: HealthReport, run: Run) -> RunFacts:
    reading = evidence.reading
    told = reading.fault is None and reading.hung is None
    made = all(check.error is None for check in report.checks if check.name not in _BESIDE_THE_POINT)
    certain = not any(
        finding.verdict is Verdict.UNKNOWN
        and finding.subject == HOST
        and finding.source not in _BESIDE_THE_POINT
        for finding in report.findings
    )
    return RunFacts(
        began=run.began,
        ended=run.end,
        level=_level(evidence),
        proves=told and made and certain,
        counted=told and reading.complete,
        missing=any(finding.reason == "gpu_missing" for finding in report.findings),
    )


def _level(evidence: Evidence) -> int:
    """Of the DCGM run; a CUDA copy stands in for level 1."""
    if evidence.dcgm:
        return evidence.dcgm[0].level
    return 1 if evidence.copies else 0


def _not_recorded(reason: str, verdict: Verdict, error: ColdstartError) -> Finding:
    return Finding(reason, verdict, HOST, "quarantine", error.message, error.hint)
