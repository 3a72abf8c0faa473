"""The page of `pool need`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from coldstart_pool.need.hit_curve import Step
from coldstart_pool.need.lead_times import LeadTimeCost
from coldstart_pool.need.needs import Need
from coldstart_pool.need.report import NeedReport
from coldstart_pool.need.trace import Trace
from coldstart_pool.report.charts import hits
from coldstart_pool.report.charts.replays import duration
from coldstart_pool.report.page import Page, Section, Table
from coldstart_pool.shares import percent

_MOST_POOLS = 6


def need_page(
    report: NeedReport, trace: Trace, lead_time_seconds: Fraction, idle_usd_per_gpu_hour: float | None
) -> Page:
    level = percent(float(report.aim.service_level))
    facts = [
        ("service level", level),
        ("lead time", f"{float(lead_time_seconds):g} s"),
        ("scale-ups", f"{trace.scale_ups:,}"),
        ("trace", duration(trace.span_seconds)),
    ]
    if idle_usd_per_gpu_hour is not None:
        facts.append(("an idle GPU-hour", f"{idle_usd_per_gpu_hour:g} USD"))
    if report.aim.value_usd is not None:
        facts.append(("worth of a cold start", f"{report.aim.value_usd:g} USD"))
    elif report.implied_value_usd is not None:
        facts.append(("worth of a cold start, from", f"{report.implied_value_usd:.2f} USD"))
    return Page(
        "What recorded scale-ups need",
        _answer(report),
        None if report.shared_gpus else False,
        tuple(facts),
        tuple(_sections(report)),
    )


def _answer(report: NeedReport) -> str:
    found = f"{report.shared_gpus} GPUs: {percent(report.shared_hit_rate)} of scale-ups find one at once."
    if not report.shared_gpus:
        return "No pool pays at these prices."
    if len(report.pools) == 1:
        return f"One shared pool of {found}"
    return f"{len(report.pools)} pools, as no GPU links their classes, of together {found}"


def _sections(report: NeedReport) -> Iterator[Section]:
    apart = report.separate_gpus
    yield Section(
        "Needs",
        (f"Pools of their own for every class: {apart} GPUs.",) if apart > report.shared_gpus else (),
        (hits.needs(report.needs),),
        (needs_table(report.needs),),
    )
    if not report.pools[0].steps:
        yield Section(
            "The price of the next hit",
            ("Without what an idle GPU costs (`--idle-price`), hits have no price.",),
        )
    shown = sorted(report.pools, key=lambda pool: -pool.gpus)[:_MOST_POOLS]
    for number, pool in enumerate(shown):
        drawings = [hits.hit_rates(str(number), pool.curve, pool.gpus, pool.service_level)]
        if pool.steps:
            drawings.append(hits.price_of_next_hit(str(number), pool.steps, pool.gpus, report.aim.value_usd))
        yield Section(
            "Hits and their price" + (f": {' + '.join(pool.classes)}" if len(report.pools) > 1 else ""),
            (f"{pool.gpus} GPUs: {percent(pool.hit_rate)} of {pool.scale_ups:,} scale-ups are hits.",),
            tuple(drawings),
            (steps_table(pool.milestones),) if pool.milestones else (),
        )
    if len(shown) < len(report.pools):
        yield Section(
            "Smaller pools", (f"{len(report.pools) - len(shown)} more are in the answer of `--json`.",)
        )
    if report.lead_times:
        yield Section(
            "Lead times in dollars",
            (),
            (hits.lead_times(report.lead_times),),
            (_lead_times_table(report.lead_times),),
        )
    if report.by_hour is not None:
        yield Section("Hours of the day", (), (hits.by_hour(report.by_hour),))


def needs_table(needs: Sequence[Need]) -> Table:
    return Table(
        ("classes", "scale-ups", "peak busy GPUs", "idle GPUs needed", "95 % of days"),
        tuple(
            (
                " + ".join(one.classes),
                f"{one.replicas:,}",
                "-" if one.peak_busy_gpus is None else str(one.peak_busy_gpus),
                str(one.gpus),
                "-" if one.interval is None else f"{one.interval[0]}-{one.interval[1]}",
            )
            for one in needs
        ),
        (1, 2, 3, 4),
    )


def steps_table(steps: Sequence[Step]) -> Table:
    return Table(
        ("GPUs", "hits", "USD for one avoided cold start"),
        tuple(
            (
                f"{one.from_gpus}-{one.to_gpus}",
                f"{percent(one.from_hit_rate)}-{percent(one.to_hit_rate)}",
                f"{one.usd_per_avoided_cold_start:.2f}",
            )
            for one in steps
        ),
        (0, 1, 2),
    )


def _lead_times_table(found: Sequence[LeadTimeCost]) -> Table:
    return Table(
        ("lead time", "GPUs", "hits", "USD a year", "USD a year for each second saved"),
        tuple(
            (
                f"{float(one.lead_time_seconds):g} s",
                str(one.gpus),
                percent(one.hit_rate),
                f"{one.usd_per_year:,.0f}",
                "-" if one.saved_usd_per_second_year is None else f"{one.saved_usd_per_second_year:,.0f}",
            )
            for one in found
        ),
        (0, 1, 2, 3, 4),
    )
