"""A GPU found bad: it enters the quarantine, or a repair did not help and a stronger one is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coldstart_health.moment import Moment
from coldstart_health.quarantine_policy import Policy, RunFacts
from coldstart_health.quarantine_record import Cause, Ended, GpuRecord
from coldstart_health.repairs import MENDABLE, repair_since, too_many, with_repair
from coldstart_health.verdict import Finding, Verdict, worst

EXERCISED = frozenset({"dcgm", "cuda"})  # what is found only when a GPU is put to work
_THOROUGH_CALL = "nvmlDeviceValidateInforom"  # not asked before each launch
_KEPT_CAUSES = 32
_EVIDENCE_LENGTH = 400
Judged = tuple[Verdict, str | None]


def found_bad(
    record: GpuRecord, bad: Sequence[Finding], run: RunFacts, policy: Policy, *, was_reset: bool
) -> GpuRecord:
    """The record with these findings as causes, each with the verdict that its history earns."""
    record, floor = _after_failed_repair(record, bad, run.ended, was_reset=was_reset)
    causes = {cause.reason: replace(cause, clean_runs=0, last_clean=None) for cause in record.causes}
    for finding in bad:
        known = causes.get(finding.reason)
        verdict, escalated = _judged(record, finding, known, run.ended, policy, floor)
        causes[finding.reason] = Cause(
            reason=finding.reason,
            found=finding.verdict,
            verdict=verdict,
            source=finding.source,
            level=max(_level(finding, run), known.level if known else 0),
            evidence=finding.evidence[:_EVIDENCE_LENGTH],
            action=finding.action,
            first=known.first if known else run.ended,
            last=run.ended,
            runs=known.runs + 1 if known else 1,
            escalated=escalated,
        )
    return replace(record, causes=tuple(causes.values())[:_KEPT_CAUSES])


def _level(finding: Finding, run: RunFacts) -> int:
    """Which kind of run can see it gone: one that looks as deep as the one that found it."""
    if finding.source in EXERCISED:
        return run.level
    return 1 if finding.evidence.startswith(_THOROUGH_CALL) else 0


def gone_after_reboot(record: GpuRecord, moment: Moment) -> GpuRecord:
    """The reboot was to bring the GPU back, and now it is not even there."""
    serious = [cause for cause in record.causes if cause.verdict in MENDABLE]
    if repair_since(serious, moment, was_reset=False) != "reboot":
        return record
    causes = tuple(
        replace(
            cause,
            verdict=Verdict(cause.verdict + 1),
            last=moment,
            escalated="gone after a reboot",
        )
        if cause in serious
        else cause
        for cause in record.causes
    )
    repairs = with_repair(record.repairs, "reboot", moment, helped=False, causes=serious)
    return replace(record, causes=causes, repairs=repairs)


def _after_failed_repair(
    record: GpuRecord, bad: Sequence[Finding], moment: Moment, *, was_reset: bool
) -> tuple[GpuRecord, Judged]:
    """The repair on record, and the least verdict from now on: reset, then reboot, then replace."""
    serious = [cause for cause in record.causes if cause.verdict in MENDABLE]
    before = worst(cause.verdict for cause in serious)
    repair = repair_since(serious, moment, was_reset=was_reset)
    causes = {cause.reason: cause for cause in record.causes}
    again = any(_is_new(finding, causes.get(finding.reason), moment) for finding in bad)
    # a reset is no try at what needs a reboot
    if repair is None or not again or (repair == "reset" and before is Verdict.REBOOT):
        return record, (Verdict.OK, None)
    repairs = with_repair(record.repairs, repair, moment, helped=False, causes=serious)
    return replace(record, repairs=repairs), (Verdict(before + 1), f"a {repair} did not help")


def _is_new(finding: Finding, known: Cause | None, moment: Moment) -> bool:
    """A fault of this moment: the kernel log still shows its old lines after a reset."""
    if finding.verdict < Verdict.RESET:
        return False
    if known is None or finding.source != "kernel_log":
        return True
    return finding.evidence != known.evidence or not moment.same_boot(known.last)


def _judged(
    record: GpuRecord, finding: Finding, known: Cause | None, moment: Moment, policy: Policy, floor: Judged
) -> Judged:
    judged: Judged = (finding.verdict, None)
    if known is not None and known.verdict >= finding.verdict:
        judged = (known.verdict, known.escalated)
    elif known is None and (cleared := _cleared(record, finding.reason, moment, policy)):
        judged = max(_as_if_never_cleared(cleared, moment), judged, key=lambda pair: pair[0])
    if finding.verdict not in MENDABLE:
        return judged
    if floor[0] > judged[0]:
        judged = floor
    if judged[0] in MENDABLE and (words := too_many(record.repairs, moment, policy)):
        return Verdict.REPLACE, words
    return judged


def _cleared(record: GpuRecord, reason: str, moment: Moment, policy: Policy) -> Ended | None:
    """The cause that a person cleared, where no clean run has shown since that it was gone."""
    last = next((ended for ended in reversed(record.ended) if ended.reason == reason), None)
    if last is None or last.how != "cleared" or last.proven:
        return None
    return last if moment.days_since(last.at) <= policy.repair_window_days else None


def _as_if_never_cleared(cleared: Ended, moment: Moment) -> Judged:
    if cleared.verdict in MENDABLE and not moment.same_boot(cleared.last):
        return Verdict(cleared.verdict + 1), f"cleared {cleared.at.utc}, and there again after a reboot"
    return cleared.verdict, f"cleared {cleared.at.utc}, and there again"
