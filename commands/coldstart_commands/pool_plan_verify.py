"""`pool plan --verify`: a plan is replayed before it is blessed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldstart_cli.errors import NegativeAnswer, UsageError
from coldstart_cli.printer import Printer
from coldstart_commands.pool_tables import report_tables
from coldstart_pool.shares import percent, percent_range

if TYPE_CHECKING:
    from coldstart_pool.inputs.pool_inputs import TableFiles
    from coldstart_pool.planning.plan import Plan
    from coldstart_pool.planning.policy import Policy
    from coldstart_pool.replay.verify import Verdict


@dataclass(frozen=True)
class Verified:
    """The verdict of a replay on `trace`, and what the plan document says of it."""

    trace: Path
    since_1970: bool
    verdict: Verdict
    document: dict[str, Any]


def margin_of(typed: float, trace: Path | None, policy: Policy) -> Fraction:
    """`--verify-margin` as an exact share; refused without a trace to verify on."""
    from coldstart_pool.replay.gate import margin_from

    if typed and trace is None:
        raise UsageError("--verify-margin says nothing without a trace", hint="pass `--verify TRACE`")
    return margin_from(typed, policy.service_level)


def verification(printer: Printer, plan: Plan, tables: TableFiles, trace: Path, margin: Fraction) -> Verified:
    """Replay the plan on `trace`, read by the rules of the other tables."""
    from coldstart_pool.inputs.fields import TableKind
    from coldstart_pool.inputs.loading import load_tables
    from coldstart_pool.planning.answers.document import plan_document
    from coldstart_pool.replay.gate import verification_document, verify_plan

    classes = [(kind, path) for kind, path in tables.files if kind is TableKind.CLASSES]
    read = load_tables(replace(tables, files=(*classes, (TableKind.DEMAND, trace))))
    report_tables(printer, read)
    report = next(one for one in read.reports if one.table == TableKind.DEMAND)
    if report.digest in {one.digest for one in plan.inputs.reports}:
        printer.warning(f"the plan is sized from {trace} itself: its days are not unseen")
    with printer.progress(f"replaying {trace}"):
        verdict = verify_plan(plan_document(plan), plan.inputs.demand, read.demand, margin)
    since_1970 = read.demand.trace is not None and read.demand.trace.since_1970
    return Verified(trace, since_1970, verdict, verification_document(verdict, report.path, report.digest))


def show_verdict(printer: Printer, verified: Verified) -> None:
    verdict = verified.verdict
    outcome = verdict.outcome
    interval = "" if outcome.hit_rate_interval is None else f" ({percent_range(outcome.hit_rate_interval)})"
    printer.answer(
        f"verified on {verified.trace}: {percent(outcome.hit_rate)}{interval} "
        f"of {outcome.scale_ups} scale-ups found GPUs at once, promised {_promise(verdict)}; "
        f"the longest wait is {outcome.waits_seconds.max:.0f} s"
    )
    for one in verdict.broken:
        printer.answer(f"{one.name}: promise not kept: {percent(one.hit_rate)} of {one.scale_ups} scale-ups")


def refuse_broken(verified: Verified) -> None:
    """Exit status 3 with what would have kept the promise."""
    verdict = verified.verdict
    if not verdict.kept:
        worst = min(verdict.broken, key=lambda one: one.hit_rate)
        raise NegativeAnswer(
            f"the plan misses its promise of {_promise(verdict)} on {verified.trace}: "
            f"{worst.name} {percent(worst.hit_rate)}",
            hint=verdict.remedy,
        )


def _promise(verdict: Verdict) -> str:
    promise = percent(float(verdict.service_level))
    return f"{promise} less a margin of {float(verdict.margin * 100):g}%" if verdict.margin else promise
