"""What a replay says, for the pages of `pool simulate` and of `pool plan --verify`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from coldstart_pool.need.trace import NANOSECONDS
from coldstart_pool.replay.outcome import ClassOutcome, Outcome
from coldstart_pool.replay.walk_forward import WalkForward
from coldstart_pool.report.charts import replays
from coldstart_pool.report.page import Section, Table
from coldstart_pool.shares import percent, percent_range


def replay_sections(outcomes: Sequence[Outcome], promise: float, *, since_1970: bool) -> Iterator[Section]:
    """The plan's outcome comes first; the others are its rivals."""
    own = outcomes[0]
    kinds: list[tuple[str, list[tuple[str, Outcome | ClassOutcome]]]] = []
    if len(outcomes) > 1:
        kinds.append(("policy", [(one.policy, one) for one in outcomes]))
    if len(own.classes) > 1 or not kinds:
        kinds.append(("class", [("all classes", own), *((one.name, one) for one in own.classes)]))
    yield Section(
        "Hits",
        (),
        tuple(replays.hit_rates(kind, f"Hits by {kind}", rows, promise) for kind, rows in kinds),
        tuple(_hits_table(kind, rows) for kind, rows in kinds),
    )
    yield Section("Waits", (), (replays.waits(outcomes),), (_waits_table(outcomes),))
    yield Section("Over time", (), (replays.timeline(own.timeline, _began(own, since_1970=since_1970)),))
    yield Section("Cost", (), (replays.gpu_hours(outcomes),), (_costs_table(outcomes),))


def walk_section(walked: WalkForward) -> Section:
    level = walked.level_that_keeps_it
    promise = percent(float(walked.service_level))
    sentences = [
        f"Sized anew each day from the {walked.trained_days} days before: {percent(walked.hit_rate)} "
        f"({percent_range(walked.hit_rate_interval)}) on {walked.judged_days} unseen days, "
        f"{walked.mean_gpus:.1f} GPUs on average."
    ]
    if not walked.kept:
        sentences.append(
            f"No level keeps {promise} there."
            if level is None
            else f"{promise} takes a service level of {float(level):g}."
        )
    return Section(
        "Walk-forward",
        tuple(sentences),
        (replays.unseen_days(walked),),
        (
            Table(
                ("day", "GPUs kept", "scale-ups", "hits"),
                tuple(
                    (
                        str(one.number + 1),
                        str(one.gpus),
                        str(one.scale_ups),
                        percent(one.hits / one.scale_ups) if one.scale_ups else "-",
                    )
                    for one in walked.days
                ),
                (0, 1, 2, 3),
            ),
        ),
    )


def _began(own: Outcome, *, since_1970: bool) -> str:
    """The first instant of the trace where its times are dates."""
    if not since_1970:
        return ""
    return datetime.fromtimestamp(own.timeline.first_ns // NANOSECONDS, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _hits_table(kind: str, rows: Sequence[tuple[str, Outcome | ClassOutcome]]) -> Table:
    return Table(
        (kind, "scale-ups", "hits", "share of hits", "95 % of days"),
        tuple(
            (
                name,
                f"{one.scale_ups:,}",
                f"{one.hits:,}",
                percent(one.hit_rate),
                percent_range(one.hit_rate_interval),
            )
            for name, one in rows
        ),
        (1, 2, 3, 4),
    )


def _waits_table(outcomes: Sequence[Outcome]) -> Table:
    return Table(
        ("policy", "50 %", "90 %", "95 %", "99 %", "longest", "never served"),
        tuple(
            (
                one.policy,
                *(
                    f"{wait:.0f} s"
                    for wait in (
                        one.waits_seconds.p50,
                        one.waits_seconds.p90,
                        one.waits_seconds.p95,
                        one.waits_seconds.p99,
                        one.waits_seconds.max,
                    )
                ),
                str(one.never_served),
            )
            for one in outcomes
        ),
        (1, 2, 3, 4, 5, 6),
    )


def _costs_table(outcomes: Sequence[Outcome]) -> Table:
    return Table(
        (
            "policy",
            "GPUs kept",
            "idle GPU-hours",
            "paid GPU-hours",
            "USD",
            "used",
            "at peak",
            "launches",
            "releases",
            "minutes below floor",
        ),
        tuple(
            (
                one.policy,
                str(one.pool_gpus),
                f"{one.idle_gpu_hours:,.0f}",
                f"{one.paid_gpu_hours:,.0f}",
                "-" if one.cost_usd is None else f"{one.cost_usd:,.0f}",
                "-" if one.allocation_utilisation is None else percent(one.allocation_utilisation),
                "-" if one.peak_utilisation is None else percent(one.peak_utilisation),
                f"{one.launches:,}",
                f"{one.releases:,}",
                f"{one.minutes_below_floor:,.0f}",
            )
            for one in outcomes
        ),
        tuple(range(1, 10)),
    )
