"""Replays as plain values, without schema and version; units are in the keys."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from coldstart_pool.need.trace import Trace
from coldstart_pool.replay.outcome import ClassOutcome, Outcome
from coldstart_pool.replay.planned import PlannedPool
from coldstart_pool.replay.simulate import Setting
from coldstart_pool.replay.walk_forward import WalkForward

SCHEMA_VERSION = 1


def simulation_document(
    plan: PlannedPool,
    trace: Trace,
    setting: Setting,
    outcomes: list[Outcome],
    walked: WalkForward | None,
    *,
    sized_from_this_trace: bool,
) -> dict[str, Any]:
    market = setting.market
    return {
        "plan": plan.path,
        "service_level": float(plan.service_level),
        "kept": outcomes[0].hit_rate >= plan.service_level,
        "sized_from_this_trace": sized_from_this_trace,
        "trace": {
            "span_seconds": trace.span_seconds,
            "replica_events": len(trace.times_ns),
            "has_stops": trace.has_stops,
        },
        "market": {
            "lead_time_seconds": market.lead_time_seconds,
            "lead_time_spread": market.lead_time_spread,
            "launch_failure_share": market.launch_failure_share,
            "health_reject_share": market.health_reject_share,
            "preemptions_per_hour": market.preemptions_per_hour,
            "keep_seconds": market.keep_seconds,
            "seed": market.seed,
        },
        "floor_share": setting.floor_share,
        "policies": [outcome_document(one) for one in outcomes],
        "walk_forward": None if walked is None else walk_document(walked),
    }


def outcome_document(one: Outcome) -> dict[str, Any]:
    waits = one.waits_seconds
    return {
        "policy": one.policy,
        "pool_gpus": one.pool_gpus,
        "scale_ups": one.scale_ups,
        "hits": one.hits,
        "hit_rate": one.hit_rate,
        "hit_rate_interval": _pair(one.hit_rate_interval),
        "never_served": one.never_served,
        "wait_seconds": {
            "p50": waits.p50,
            "p90": waits.p90,
            "p95": waits.p95,
            "p99": waits.p99,
            "max": waits.max,
        },
        "idle_gpu_hours": one.idle_gpu_hours,
        "booting_gpu_hours": one.booting_gpu_hours,
        "busy_gpu_hours": one.busy_gpu_hours,
        "paid_gpu_hours": one.paid_gpu_hours,
        "cost_usd": one.cost_usd,
        "allocation_utilisation": one.allocation_utilisation,
        "peak_utilisation": one.peak_utilisation,
        "launches": one.launches,
        "launch_failures": one.launch_failures,
        "health_rejects": one.health_rejects,
        "releases": one.releases,
        "preempted_machines": one.preempted_machines,
        "restarts": one.restarts,
        "restart_hits": one.restart_hits,
        "below_floor_minutes": one.minutes_below_floor,
        "empty_minutes": one.minutes_empty,
        "classes": [_class_document(entry) for entry in one.classes],
    }


def walk_document(walked: WalkForward) -> dict[str, Any]:
    return {
        "trained_days": walked.trained_days,
        "judged_days": walked.judged_days,
        "kept": walked.kept,
        "hit_rate": walked.hit_rate,
        "hit_rate_interval": _pair(walked.hit_rate_interval),
        "mean_gpus": walked.mean_gpus,
        "level_that_keeps_it": _number(walked.level_that_keeps_it),
    }


def _class_document(entry: ClassOutcome) -> dict[str, Any]:
    return {
        "class": entry.name,
        "scale_ups": entry.scale_ups,
        "hits": entry.hits,
        "hit_rate": entry.hit_rate,
        "hit_rate_interval": _pair(entry.hit_rate_interval),
    }


def _pair(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _number(value: Fraction | None) -> float | None:
    return None if value is None else float(value)
