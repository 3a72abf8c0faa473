"""A pool plan for people: needs, machines, cost and proof."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coldstart_cli.printer import Printer
    from coldstart_pool.planning.plan import Plan, PlannedGroup


def show_plan(printer: Printer, plan: Plan) -> None:
    """The tables, and under them the cost with its bound."""
    _needs(printer, "CLASS", plan.classes)
    _limits(printer, plan.classes)
    short = [group for group in plan.unions if group.missing_gpus or group.missing_survival_gpus]
    if short:
        printer.answer()
        _needs(printer, "TOGETHER", short)
        _limits(printer, short)
    if plan.offers:
        printer.answer()
        _machines(printer, plan)
    _cost(printer, plan)
    _changes(printer, plan)
    _why(printer, plan)
    _remedies(printer, plan)


def gpus(count: float | Fraction) -> str:
    """Every digit before the point, and no more behind it than say something."""
    return f"{float(count):.3f}".rstrip("0").rstrip(".")


def _needs(printer: Printer, heading: str, groups: Sequence[PlannedGroup]) -> None:
    printer.table(
        (heading, "TARGET", "NEED", "PLANNED", "MISSING", "WITHOUT WORST DOMAIN"),
        [
            (
                entry.needed.label,
                gpus(entry.needed.gpus),
                gpus(entry.required_gpus),
                gpus(entry.planned_gpus),
                gpus(entry.missing_gpus),
                gpus(entry.survival[0][1]) if entry.survival else "-",
            )
            for entry in groups
        ],
        right=(1, 2, 3, 4, 5),
    )


def _limits(printer: Printer, groups: Sequence[PlannedGroup]) -> None:
    for entry in groups:
        for sentence in entry.limits:
            printer.answer(f"{entry.needed.label}: {sentence}")


def _machines(printer: Printer, plan: Plan) -> None:
    held = any(entry.held for entry in plan.offers)
    headings = ["PROVIDER", "PLACE", "INSTANCE", "GPU", "MARKET", "COUNT", *(["NOW"] if held else []), "OF"]
    printer.table(
        (*headings, "USD/H EACH", "USD/H"),
        [
            (
                entry.offer.provider,
                " ".join(part for part in (entry.offer.region, entry.offer.zone) if part) or "-",
                entry.offer.instance_type,
                entry.offer.gpu,
                entry.offer.market,
                str(entry.instances),
                *([str(entry.held)] if held else []),
                str(entry.obtainable_instances),
                f"{float(entry.offer.price):.4f}",
                f"{float(entry.offer.price * entry.instances):.2f}",
            )
            for entry in plan.offers
        ],
        right=tuple(range(5, len(headings) + 2)),
    )


def _cost(printer: Printer, plan: Plan) -> None:
    proof = ", proven to be the least" if plan.solved.proven else f", gap {float(plan.gap):.1%}"
    if not plan.offers:
        return
    printer.answer(
        f"cost {float(plan.cost_per_hour):.2f} USD/h, at least {float(plan.lower_bound_per_hour):.2f} USD/h "
        f"for these GPUs{proof}"
    )
    if plan.committed_per_hour:
        printer.answer(f"of that {float(plan.committed_per_hour):.2f} USD/h are committed, planned or not")
    if plan.solved.scenario_cost:
        printer.answer(
            f"spot that runs dry is reckoned at {float(plan.solved.scenario_cost):.2f} USD/h on top, "
            f"over {len(plan.solved.problem.scenarios)} joint scenarios"
        )


def _changes(printer: Printer, plan: Plan) -> None:
    if not plan.solved.problem.held:
        return
    printer.answer()
    if not plan.changes:
        printer.answer("nothing changes against the current pool")
    for change in plan.changes:
        what = "start" if change.instances > 0 else "give back"
        offer = change.offer
        name = f"{offer.place} {offer.instance_type} {offer.market}"
        printer.answer(f"{what} {abs(change.instances)} of {name}: {change.reason}")


def _why(printer: Printer, plan: Plan) -> None:
    if plan.shadow_prices:
        printer.answer()
    for price in plan.shadow_prices:
        printer.answer(f"why: {price.sentence}")


def _remedies(printer: Printer, plan: Plan) -> None:
    if plan.feasible:
        return
    printer.answer()
    for remedy in plan.remedies:
        left = (
            f"leaves {gpus(remedy.missing_gpus)} GPUs missing" if remedy.missing_gpus else "meets every need"
        )
        cost = f"{remedy.cost_per_hour_usd:.2f} USD/h"
        printer.answer(f"remedy ({remedy.kind}): {remedy.sentence}: {left}, for {cost}")
    if not plan.remedies:
        printer.answer("remedy: no single change of those tried would lessen what is missing")
