"""A quarantined GPU that is found well: what proves that a cause is gone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from coldstart_health.moment import Moment
from coldstart_health.quarantine_policy import Policy, RunFacts
from coldstart_health.quarantine_record import Cause, Ended, GpuRecord, RepairKind
from coldstart_health.repairs import MENDABLE, repair_since, with_repair
from coldstart_health.verdict import Verdict

KEPT_ENDED = 16


def found_clean(
    record: GpuRecord,
    run: RunFacts,
    policy: Policy,
    *,
    was_reset: bool = False,
    ended_by_reset: Collection[str] = (),
) -> GpuRecord:
    """The record without the causes that this clean run disproves; with what a reset ended."""
    kept: list[Cause] = []
    over: list[Cause] = []
    mended: dict[RepairKind, list[Cause]] = {}
    for cause in record.causes:
        stays = cause.verdict is Verdict.REPLACE or not policy.auto_release
        if stays or not run.began.is_after(cause.last):  # a run from before says nothing
            kept.append(cause)
        elif cause.verdict in MENDABLE:
            reset = was_reset or cause.reason in ended_by_reset
            if repair := _repair_that_helped(cause, run.ended, was_reset=reset):
                mended.setdefault(repair, []).append(cause)
                over.append(cause)
            else:
                kept.append(cause)
        else:
            counted = _counted(cause, run, policy)
            enough = 1 if cause.level else policy.clean_runs
            (over if counted.clean_runs >= enough else kept).append(counted)
    repairs = record.repairs
    for kind, causes in mended.items():
        repairs = with_repair(repairs, kind, run.ended, helped=True, causes=causes)
    ended = (
        Ended(cause.reason, cause.verdict, "recovered", cause.last, run.ended, proven=True) for cause in over
    )
    return proven(
        replace(record, causes=tuple(kept), repairs=repairs, ended=(*record.ended, *ended)[-KEPT_ENDED:])
    )


def proven(record: GpuRecord) -> GpuRecord:
    """A clean run has been seen: what a person cleared before it was indeed gone."""
    if all(ended.proven for ended in record.ended):
        return record
    return replace(record, ended=tuple(replace(ended, proven=True) for ended in record.ended))


def _repair_that_helped(cause: Cause, moment: Moment, *, was_reset: bool) -> RepairKind | None:
    repair = repair_since([cause], moment, was_reset=was_reset)
    return None if repair == "reset" and cause.verdict is Verdict.REBOOT else repair


def _counted(cause: Cause, run: RunFacts, policy: Policy) -> Cause:
    """One more clean run, unless it could not have seen the cause, or follows the last one too soon."""
    if run.level < cause.level:
        return cause
    last = cause.last_clean
    if last is not None:
        apart = run.ended.boottime_seconds - last.boottime_seconds
        if not run.began.is_after(last) or (
            run.ended.same_boot(last) and apart < policy.clean_interval_seconds
        ):
            return cause
    return replace(cause, clean_runs=cause.clean_runs + 1, last_clean=run.ended)
