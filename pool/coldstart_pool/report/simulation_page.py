"""The page of `pool simulate`."""

from __future__ import annotations

from collections.abc import Sequence

from coldstart_pool.need.trace import Trace
from coldstart_pool.replay.outcome import Outcome
from coldstart_pool.replay.planned import PlannedPool
from coldstart_pool.replay.simulate import Setting
from coldstart_pool.replay.walk_forward import WalkForward
from coldstart_pool.report.charts.replays import duration
from coldstart_pool.report.page import Page, Section
from coldstart_pool.report.replay_sections import replay_sections, walk_section
from coldstart_pool.shares import percent


def simulation_page(
    plan: PlannedPool,
    trace: Trace,
    setting: Setting,
    outcomes: Sequence[Outcome],
    walked: WalkForward | None,
    *,
    trace_name: str,
    since_1970: bool,
    sized_from_this_trace: bool,
) -> Page:
    own, market = outcomes[0], setting.market
    kept = own.hit_rate >= plan.service_level
    promise = percent(float(plan.service_level))
    facts = [
        ("plan", plan.path),
        ("trace", trace_name),
        ("length", duration(trace.span_seconds)),
        ("lead time", f"{market.lead_time_seconds:g} s"),
        ("spread of it", f"{market.lead_time_spread:g}"),
        ("failed launches", percent(market.launch_failure_share)),
        ("health rejects", percent(market.health_reject_share)),
        ("preemptions an hour", f"{market.preemptions_per_hour:g}"),
        ("spare machines kept", f"{market.keep_seconds:g} s"),
        ("seed", str(market.seed)),
    ]
    sections: list[Section] = []
    if sized_from_this_trace:
        sections.append(
            Section("Not unseen", ("The plan was sized from this very trace: its days prove nothing.",))
        )
    sections += replay_sections(outcomes, float(plan.service_level), since_1970=since_1970)
    if walked is not None:
        sections.append(walk_section(walked))
    return Page(
        "A plan replayed",
        f"Promise of {promise} {'kept' if kept else 'not kept'}: {percent(own.hit_rate)} of "
        f"{own.scale_ups:,} scale-ups found GPUs at once; the longest wait is {own.waits_seconds.max:.0f} s.",
        kept,
        tuple(facts),
        tuple(sections),
    )
