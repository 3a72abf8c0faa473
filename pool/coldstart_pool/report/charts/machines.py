"""A plan in pictures: its machines, how needs are met, what each constraint is worth."""

from __future__ import annotations

from coldstart_pool.planning.plan import Plan, PlannedGroup, PlannedOffer
from coldstart_pool.report.drawing import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PAPER,
    RED,
    Drawing,
    drawn,
    legend_above,
    name_rows,
)

_MOST_ROWS = 25


def machines(plan: Plan) -> Drawing:
    """GPUs of each offer beside what is held and what can be had, and their price."""
    shown = sorted(plan.offers, key=lambda one: (-_gpus(one, one.instances), one.offer.key))[:_MOST_ROWS]
    names = [offer_name(one) for one in shown]
    planned = [_gpus(one, one.instances) for one in shown]
    held = [_gpus(one, one.held) for one in shown]
    with drawn("machines", 1.6 + 0.34 * len(shown)) as (figure, finish):
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        rows = range(len(shown))
        left.barh(rows, planned, 0.5, color=BLUE, label="planned")
        obtainable = [_gpus(one, one.obtainable_instances) for one in shown]
        left.plot(obtainable, rows, "|", color=INK, markersize=13, markeredgewidth=2, label="obtainable")
        if any(held):
            there = [number for number in rows if held[number]]
            left.plot(
                [held[number] for number in there], there, "D", color=ORANGE, markersize=6,
                markeredgecolor=INK, label="in the pool now",
            )  # fmt: skip
        left.set_title("GPUs by offer")
        left.set_xlabel("GPUs")
        left.set_xlim(left=0)
        legend_above(left)
        right.barh(rows, [float(one.offer.price * one.instances) for one in shown], 0.5, color=GREEN)
        right.set_title("What they cost")
        right.set_xlabel("US dollars an hour")
        name_rows(left, names)
        right.tick_params(axis="y", length=0)
        right.grid(visible=False, axis="y")
        more = len(plan.offers) - len(shown)
        return finish(
            "Planned machines, in GPUs, with what observed supply allows and what the pool holds now."
            + (f" {more} smaller offers are in the table only." if more else ""),
            "Bars of planned GPUs by offer: "
            + ", ".join(f"{name} {count}" for name, count in zip(names, planned, strict=True)),
        )


def needs(groups: tuple[PlannedGroup, ...]) -> Drawing:
    """What is planned for each class, and for classes together, against what it needs."""
    shown = groups[:_MOST_ROWS]
    rows = range(len(shown))
    planned = [float(one.planned_gpus) for one in shown]
    missing = [float(one.missing_gpus) for one in shown]
    with drawn("needs", 1.6 + 0.34 * len(shown)) as (figure, finish):
        axes = figure.subplots()
        axes.barh(rows, planned, 0.5, color=BLUE, label="planned")
        if any(missing):
            axes.barh(
                rows, missing, 0.5, left=planned, color="none", edgecolor=RED, hatch="////", label="missing"
            )
        axes.plot(
            [float(one.required_gpus) for one in shown],
            rows,
            "|",
            color=INK,
            markersize=16,
            markeredgewidth=2,
            label="needed",
        )
        left = [(number, float(one.survival[0][1])) for number, one in enumerate(shown) if one.survival]
        if left:
            axes.plot(
                [value for _, value in left],
                [number for number, _ in left],
                "D",
                color=PAPER,
                markeredgecolor=INK,
                markersize=6,
                label="left without the worst domain",
            )
        name_rows(axes, [one.needed.label for one in shown])
        axes.set_xlim(left=0)
        axes.set_xlabel("idle GPUs")
        axes.set_title("Needs")
        legend_above(axes)
        return finish(
            "GPUs that each class can use, shared ones included; classes together need less than the sum.",
            "Bars of planned GPUs against the need: "
            + ", ".join(
                f"{one.needed.label} {float(one.planned_gpus):g} of {float(one.required_gpus):g}"
                for one in shown
            ),
        )


def constraints(plan: Plan) -> Drawing | None:
    """What a unit of each constraint, or the whole rule, is worth; None where nothing has a price."""
    priced = sorted(
        (one for one in plan.shadow_prices if one.kind != "price"), key=lambda one: -abs(one.usd_per_hour)
    )[:_MOST_ROWS]
    if not priced:
        return None
    with drawn("constraints", 1.4 + 0.34 * len(priced)) as (figure, finish):
        axes = figure.subplots()
        whole = [one.dual_usd_per_hour is None for one in priced]
        values = [abs(one.usd_per_hour) for one in priced]
        for is_whole, colour, name in (
            (False, BLUE, "for one unit more"),
            (True, ORANGE, "for the whole rule"),
        ):
            rows = [number for number, one in enumerate(whole) if one is is_whole]
            if rows:
                axes.barh(rows, [values[number] for number in rows], 0.5, color=colour, label=name)
        name_rows(axes, [f"{one.kind}: {one.subject}" for one in priced])
        axes.set_xlabel("US dollars an hour")
        axes.set_title("What constraints cost")
        legend_above(axes)
        return finish(
            "Each price was found by solving again with the constraint moved; the sentences say which way.",
            "Bars of US dollars an hour by constraint: "
            + ", ".join(f"{one.kind} {one.subject} {abs(one.usd_per_hour):.2f}" for one in priced),
        )


def offer_name(one: PlannedOffer) -> str:
    return f"{one.offer.place} {one.offer.instance_type} {one.offer.market}"


def _gpus(one: PlannedOffer, instances: int) -> int:
    return one.offer.gpus_per_instance * instances
