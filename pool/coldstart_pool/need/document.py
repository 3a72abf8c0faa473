"""Needs as plain values, without schema and version; units are in the keys."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from coldstart_pool.need.hit_curve import Step
from coldstart_pool.need.report import NeedReport, SharedPool
from coldstart_pool.need.trace import Trace

SCHEMA_VERSION = 1


def need_document(report: NeedReport, trace: Trace, lead_time_seconds: Fraction) -> dict[str, Any]:
    return {
        "lead_time_seconds": float(lead_time_seconds),
        "service_level": float(report.aim.service_level),
        "cold_start_cost_usd": report.aim.value_usd,
        "implied_cold_start_cost_usd": report.implied_value_usd,
        "trace": {
            "span_seconds": trace.span_seconds,
            "scale_ups": trace.scale_ups,
            "has_stops": trace.has_stops,
        },
        "needs": [
            {
                "classes": list(need.classes),
                "gpus": need.gpus,
                "gpus_interval": None if need.interval is None else list(need.interval),
                "peak_busy_gpus": need.peak_busy_gpus,
                "scale_ups": need.replicas,
            }
            for need in report.needs
        ],
        "pools": [_pool_document(pool) for pool in report.pools],
        "shared_pool_gpus": report.shared_gpus,
        "shared_pool_hit_rate": report.shared_hit_rate,
        "separate_pools_gpus": report.separate_gpus,
        "lead_times": [
            {
                "lead_time_seconds": float(entry.lead_time_seconds),
                "gpus": entry.gpus,
                "hit_rate": entry.hit_rate,
                "cost_per_year_usd": entry.usd_per_year,
                "saved_per_second_and_year_usd": entry.saved_usd_per_second_year,
            }
            for entry in report.lead_times
        ],
        "gpus_by_hour_utc": None if report.by_hour is None else list(report.by_hour),
    }


def _pool_document(pool: SharedPool) -> dict[str, Any]:
    return {
        "classes": list(pool.classes),
        "service_level": float(pool.service_level),
        "gpus": pool.gpus,
        "hit_rate": pool.hit_rate,
        "scale_ups": pool.scale_ups,
        "implied_cold_start_cost_usd": pool.implied_value_usd,
        "price_of_next_hit": [_step_document(step) for step in pool.steps],
    }


def _step_document(step: Step) -> dict[str, Any]:
    return {
        "from_gpus": step.from_gpus,
        "to_gpus": step.to_gpus,
        "from_hit_rate": step.from_hit_rate,
        "to_hit_rate": step.to_hit_rate,
        "per_avoided_cold_start_usd": step.usd_per_avoided_cold_start,
    }
