"""Replays in pictures: hits, waits and GPU-hours beside the rivals, the course of time, unseen days."""

from __future__ import annotations

from collections.abc import Sequence

from coldstart_pool.need.trace import NANOSECONDS
from coldstart_pool.replay.outcome import ClassOutcome, Outcome
from coldstart_pool.replay.timeline import Timeline
from coldstart_pool.replay.walk_forward import WalkForward
from coldstart_pool.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    RED,
    Drawing,
    drawn,
    legend_above,
    name_rows,
)
from coldstart_pool.shares import percent

_MOST_ROWS = 30
_UNITS = ((86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))


def hit_rates(
    name: str, title: str, rows: Sequence[tuple[str, Outcome | ClassOutcome]], promise: float
) -> Drawing:
    """Shares of hits with their intervals, against the promise."""
    shown = rows[:_MOST_ROWS]
    with drawn(name, 1.5 + 0.36 * len(shown)) as (figure, finish):
        axes = figure.subplots()
        for row, (_, one) in enumerate(shown):
            if one.hit_rate_interval is not None:
                low, high = one.hit_rate_interval
                axes.plot((100 * low, 100 * high), (row, row), "|-", color=BLUE, linewidth=2, markersize=9)
        axes.plot([100 * one.hit_rate for _, one in shown], range(len(shown)), "o", color=BLUE, label="hits")
        axes.axvline(100 * promise, color=RED, linestyle="--", linewidth=1.2, label="promise")
        name_rows(axes, [f"{text}  {percent(one.hit_rate)}" for text, one in shown])
        axes.set_xlim(-2, 102)
        axes.set_xlabel("scale-ups that found their GPUs at once, %")
        axes.set_title(title)
        legend_above(axes)
        return finish(
            "Bars across a dot span 95 % of redrawn days.",
            f"Shares of hits against a promise of {100 * promise:g} %: "
            + ", ".join(f"{text} {percent(one.hit_rate)}" for text, one in shown),
        )


def waits(outcomes: Sequence[Outcome]) -> Drawing:
    """Percentiles of the waits of every policy."""
    marks = (
        ("p50", "o", GREEN),
        ("p90", "s", BLUE),
        ("p95", "D", ORANGE),
        ("p99", "^", RED),
        ("max", "x", INK),
    )
    with drawn("waits", 1.6 + 0.4 * len(outcomes)) as (figure, finish):
        axes = figure.subplots()
        for key, marker, colour in marks:
            name = "longest" if key == "max" else f"{key[1:]} %"
            values = [getattr(one.waits_seconds, key) for one in outcomes]
            axes.plot(
                values, range(len(outcomes)), marker, color=colour, markersize=8, label=name,
                markerfacecolor="none", markeredgewidth=2,
            )  # fmt: skip
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        name_rows(axes, [one.policy for one in outcomes])
        axes.set_xlim(left=-0.2)
        axes.set_xlabel("seconds until a scale-up has its GPUs")
        axes.set_title("Waits")
        legend_above(axes)
        return finish(
            "That share of scale-ups waits no longer; hits wait 0 s. The scale is logarithmic above 1 s.",
            "Percentiles of waits: "
            + "; ".join(
                f"{one.policy} 95 % within {one.waits_seconds.p95:.0f} s, "
                f"all within {one.waits_seconds.max:.0f} s"
                for one in outcomes
            ),
        )


def gpu_hours(outcomes: Sequence[Outcome]) -> Drawing:
    """What is paid for, by what it does."""
    with drawn("hours-paid", 1.6 + 0.4 * len(outcomes)) as (figure, finish):
        axes = figure.subplots()
        rows = range(len(outcomes))
        left = [0.0] * len(outcomes)
        for key, colour, name in (
            ("busy_gpu_hours", BLUE, "busy"),
            ("booting_gpu_hours", ORANGE, "booting"),
            ("idle_gpu_hours", GREY, "idle"),
        ):
            values = [getattr(one, key) or 0.0 for one in outcomes]
            if any(values):
                axes.barh(rows, values, 0.5, left=left, color=colour, label=name)
            left = [before + value for before, value in zip(left, values, strict=True)]
        name_rows(axes, [one.policy for one in outcomes])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("GPU-hours over the trace")
        axes.set_title("GPU-hours paid for")
        legend_above(axes)
        return finish(
            "Machines are paid for while they boot, while they idle and while they are busy.",
            "Stacked bars of GPU-hours: "
            + ", ".join(f"{one.policy} {one.paid_gpu_hours:.0f}" for one in outcomes),
        )


def timeline(seen: Timeline, began: str) -> Drawing:
    """Free GPUs, busy GPUs and misses as time goes by; `began` says when, or is empty."""
    intervals = len(seen.least_free_gpus)
    interval_seconds = seen.interval_ns / NANOSECONDS
    length = interval_seconds * intervals
    unit_seconds, unit = next(entry for entry in _UNITS if length >= 3 * entry[0] or entry[0] == 1)
    edges = [number * interval_seconds / unit_seconds for number in range(intervals + 1)]
    panels = [
        (seen.least_free_gpus, "free GPUs,\nfewest", BLUE),
        *([(seen.most_busy_gpus, "busy GPUs,\nmost", GREEN)] if seen.most_busy_gpus is not None else []),
        (seen.misses, "misses", RED),
    ]
    with drawn("timeline", 1 + 1.25 * len(panels)) as (figure, finish):
        for axes, (values, name, colour) in zip(
            figure.subplots(len(panels), sharex=True), panels, strict=True
        ):
            axes.stairs(values, edges, fill=True, color=colour, alpha=0.3)
            axes.stairs(values, edges, color=colour, linewidth=1.2)
            axes.set_ylabel(name)
            axes.set_ylim(0, 1.1 * max(values) or 1)
            axes.set_xlim(0, edges[-1])
            axes.yaxis.get_major_locator().set_params(integer=True, nbins=4)
        figure.axes[0].set_title("The plan over time")
        figure.axes[-1].set_xlabel(f"{unit} since {began}" if began else f"{unit} since the trace began")
        return finish(
            f"The extremes of intervals of {duration(interval_seconds)}, and the scale-ups that had to wait.",
            f"Free GPUs fall to {min(seen.least_free_gpus)} at the least; {sum(seen.misses)} of "
            f"{sum(seen.scale_ups)} scale-ups missed.",
        )


def unseen_days(walked: WalkForward) -> Drawing:
    """Each day that its pool was not sized from: hits, and the size of the pool."""
    numbers = [one.number + 1 for one in walked.days]
    judged = [one for one in walked.days if one.scale_ups]
    with drawn("days", 3.6) as (figure, finish):
        above, below = figure.subplots(2, sharex=True, height_ratios=(3, 2))
        above.plot(
            [one.number + 1 for one in judged], [100 * one.hits / one.scale_ups for one in judged],
            "o-", color=BLUE, linewidth=1, label="hits",
        )  # fmt: skip
        promise = 100 * float(walked.service_level)
        above.axhline(promise, color=RED, linestyle="--", linewidth=1.2, label="promise")
        above.set_ylabel("hits of\nthe day, %")
        above.set_title("Days that no pool had seen")
        legend_above(above)
        below.bar(numbers, [one.gpus for one in walked.days], 0.8, color=GREY)
        below.set_ylabel("GPUs kept")
        below.set_xlabel("day of the trace")
        below.xaxis.get_major_locator().set_params(integer=True)
        return finish(
            f"Each day is judged in a pool sized from the {walked.trained_days} days before it.",
            f"Hits of {len(judged)} days against a promise of {promise:g} %, "
            f"{percent(walked.hit_rate)} over all of them.",
        )


def duration(seconds: float) -> str:
    """`21 minutes`, for people."""
    size, unit = next(entry for entry in _UNITS if seconds >= entry[0] or entry[0] == 1)
    return f"{seconds / size:.3g} {unit}"
