"""Resets and reboots that a quarantined GPU has been through, and when they are too many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coldstart_health.moment import Moment
from coldstart_health.quarantine_policy import Policy
from coldstart_health.quarantine_record import Cause, Repair, RepairKind
from coldstart_health.verdict import Verdict

MENDABLE = frozenset({Verdict.RESET, Verdict.REBOOT})
_KINDS: tuple[RepairKind, ...] = ("reset", "reboot")
_KEPT = 32


def repair_since(causes: Sequence[Cause], moment: Moment, *, was_reset: bool) -> RepairKind | None:
    """What the GPU has been through since these causes were last seen."""
    if not causes:
        return None
    if not any(moment.same_boot(cause.last) for cause in causes):
        return "reboot"
    return "reset" if was_reset else None


def with_repair(
    repairs: Sequence[Repair], kind: RepairKind, moment: Moment, *, helped: bool, causes: Iterable[Cause]
) -> tuple[Repair, ...]:
    """One more; bounded by number, not by age: a clock that jumped must not make them forgotten."""
    repair = Repair(kind, moment, helped, tuple(cause.reason for cause in causes))
    return (*repairs, repair)[-_KEPT:]


def too_many(repairs: Sequence[Repair], moment: Moment, policy: Policy) -> str | None:
    """In words, when so many repairs of one kind were spent that another is no remedy."""
    for kind in _KINDS:
        recent = sum(
            repair.kind == kind and moment.days_since(repair.at) <= policy.repair_window_days
            for repair in repairs
        )
        if policy.repair_limit and recent >= policy.repair_limit:
            return f"{recent} {kind}s within {policy.repair_window_days:g} days did not keep it well"
    return None
