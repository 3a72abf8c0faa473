"""Needs in pictures: hits by the size of the pool, the price of the next hit, lead times in dollars."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from coldstart_pool.need.hit_curve import HitCurve, Step
from coldstart_pool.need.lead_times import LeadTimeCost
from coldstart_pool.need.needs import Need
from coldstart_pool.report.drawing import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    RED,
    Drawing,
    drawn,
    legend_above,
    name_rows,
)
from coldstart_pool.shares import percent

_MOST_ROWS = 30
_MOST_POINTS = 600


def needs(found: Sequence[Need]) -> Drawing:
    """The need of each class and union, and how sure it is."""
    shown = found[:_MOST_ROWS]
    names = [" + ".join(one.classes) for one in shown]
    with drawn("needs", 1.4 + 0.34 * len(shown)) as (figure, finish):
        axes = figure.subplots()
        axes.barh(range(len(shown)), [one.gpus for one in shown], 0.5, color=BLUE, label="need")
        for row, one in enumerate(shown):
            if one.interval is not None:
                first = row == next(n for n, other in enumerate(shown) if other.interval is not None)
                axes.plot(
                    one.interval, (row, row), "|-", color=INK, linewidth=1.5, markersize=9,
                    label="95 % of redrawn days" if first else None,
                )  # fmt: skip
        name_rows(axes, names)
        axes.set_xlim(0, max(1.0, axes.get_xlim()[1]))
        axes.set_xlabel("idle GPUs")
        axes.set_title("Idle GPUs needed")
        legend_above(axes)
        return finish(
            "Needs of each class and of classes together; what shares a pool needs less than the sum.",
            "Bars of GPUs needed: "
            + ", ".join(f"{n} {one.gpus}" for n, one in zip(names, shown, strict=True)),
        )


def hit_rates(name: str, curve: HitCurve, gpus: int, level: Fraction) -> Drawing:
    """Which share of scale-ups finds its GPUs, by the size of a shared pool."""
    step = max(1, len(curve.gpus) // _MOST_POINTS)
    sizes = [0, *curve.gpus[::step].tolist(), int(curve.gpus[-1])]
    rates = [100 * curve.hit_rate(size) for size in sizes]
    with drawn(f"hits-{name}", 3.2) as (figure, finish):
        axes = figure.subplots()
        axes.step(sizes, rates, where="post", color=BLUE, linewidth=2, label="hits")
        axes.axhline(100 * float(level), color=RED, linestyle="--", linewidth=1.2, label="service level")
        axes.plot([gpus], [100 * curve.hit_rate(gpus)], "o", color=INK, label=f"{gpus} GPUs")
        axes.set_ylim(0, 104)
        axes.set_xlim(left=0)
        axes.set_xlabel("idle GPUs of the shared pool")
        axes.set_ylabel("scale-ups that find\ntheir GPUs at once, %")
        axes.set_title("Hits by size")
        legend_above(axes)
        return finish(
            "How many scale-ups of the trace find their GPUs, were the pool of this size.",
            f"A rising curve of hits against idle GPUs, {percent(curve.hit_rate(gpus))} at {gpus} GPUs.",
        )


def price_of_next_hit(name: str, steps: Sequence[Step], gpus: int, value_usd: float | None) -> Drawing:
    """What each further avoided cold start costs in idle GPUs."""
    with drawn(f"price-{name}", 3.4) as (figure, finish):
        axes = figure.subplots()
        edges = [steps[0].from_gpus, *(one.to_gpus for one in steps)]
        prices = [one.usd_per_avoided_cold_start for one in steps]
        axes.stairs(prices, edges, baseline=None, color=BLUE, linewidth=2, label="price of the next hit")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.axvline(gpus, color=INK, linestyle=":", linewidth=1.5, label=f"{gpus} GPUs")
        if value_usd is not None:
            axes.axhline(value_usd, color=ORANGE, linestyle="--", linewidth=1.2, label="a cold start's worth")
        axes.set_xlim(left=0)
        axes.set_xlabel("idle GPUs of the shared pool")
        axes.set_ylabel("US dollars for one\navoided cold start")
        axes.set_title("Price of the next hit")
        legend_above(axes)
        return finish(
            "What idle GPUs cost for each further scale-up that finds its own; the scale is logarithmic.",
            f"A rising stair from {prices[0]:.2f} USD per avoided cold start for the first GPUs "
            f"to {prices[-1]:.2f} USD for the last.",
        )


def lead_times(found: Sequence[LeadTimeCost]) -> Drawing:
    """The yearly cost of the same promise by the time that a refill takes."""
    shown = sorted(found, key=lambda one: one.lead_time_seconds)
    names = [f"{float(one.lead_time_seconds):g} s" for one in shown]
    with drawn("leads", 1.4 + 0.4 * len(shown)) as (figure, finish):
        axes = figure.subplots()
        bars = axes.barh(range(len(shown)), [one.usd_per_year for one in shown], 0.5, color=GREEN)
        axes.bar_label(
            bars,
            [f"{one.gpus} GPUs" + _saved(one) for one in shown],
            padding=4,
            color=MUTED,
        )
        name_rows(axes, names)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlim(right=1.45 * max(one.usd_per_year for one in shown) or 1)
        axes.set_xlabel("US dollars a year")
        axes.set_ylabel("time to refill")
        axes.set_title("Lead times in dollars")
        return finish(
            "The same promise with faster refills: fewer idle GPUs.",
            "Bars of yearly cost by lead time: "
            + ", ".join(f"{name} {one.usd_per_year:.0f} USD" for name, one in zip(names, shown, strict=True)),
        )


def by_hour(gpus: Sequence[int]) -> Drawing:
    """What each hour of the day needs."""
    with drawn("hours", 2.8) as (figure, finish):
        axes = figure.subplots()
        axes.bar(range(24), gpus, 0.8, color=BLUE)
        axes.set_xticks(range(0, 24, 2), labels=[f"{hour:02}" for hour in range(0, 24, 2)])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("hour of the day, UTC")
        axes.set_ylabel("idle GPUs")
        axes.set_title("Needs by hour")
        return finish(
            "The need of all classes together in each hour.",
            "Bars of idle GPUs by hour of the day: " + ", ".join(map(str, gpus)),
        )


def _saved(one: LeadTimeCost) -> str:
    saved = one.saved_usd_per_second_year
    return "" if saved is None else f", {saved:,.0f} USD a year for each second saved"
