"""What a shorter lead time is worth: the same trace and promise, several refill times, in dollars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from coldstart_pool.need.counts import counts_in_lead_time
from coldstart_pool.need.families import shared_pools
from coldstart_pool.need.hit_curve import HOURS_A_YEAR, HitCurve, hit_curve, joint_hit_rate
from coldstart_pool.need.needs import require_span
from coldstart_pool.need.trace import Trace


@dataclass(frozen=True)
class Aim:
    """What sizes the pool: a share of hits, or, with `value_usd`, what one avoided cold start is worth."""

    service_level: Fraction
    value_usd: float | None = None

    def gpus(self, curve: HitCurve, idle_usd_per_gpu_hour: float) -> int:
        if self.value_usd is None:
            return curve.gpus_for_level(self.service_level)
        return curve.gpus_for_value(self.value_usd, idle_usd_per_gpu_hour)

    def level(self, curve: HitCurve, idle_usd_per_gpu_hour: float) -> Fraction:
        """The share of hits that sizes a pool of this curve; 0 where money says that none pays."""
        if self.value_usd is None:
            return self.service_level
        return Fraction(curve.hits_in(self.gpus(curve, idle_usd_per_gpu_hour)), curve.replicas)


@dataclass(frozen=True)
class LeadTimeCost:
    """One refill time: the pool it takes, and its yearly cost, with cold starts where they have a worth."""

    lead_time_seconds: Fraction
    gpus: int
    hit_rate: float
    usd_per_year: float
    saved_usd_per_second_year: float | None
    """What a second between the next longer lead time and this one saves a year; None for the longest."""


def compare_lead_times(
    trace: Trace,
    lead_times_seconds: Sequence[Fraction],
    aim: Aim,
    idle_usd_per_gpu_hour: float,
    *,
    returns: bool = False,
) -> tuple[LeadTimeCost, ...]:
    """All pools together, each shared by the classes that can share one; the longest lead time first."""
    found: list[LeadTimeCost] = []
    parts = [part for members in shared_pools(trace) if (part := trace.of(members)).scale_ups]
    for lead in sorted(set(lead_times_seconds), reverse=True):
        require_span(trace, lead)
        curves = [
            hit_curve(counts_in_lead_time(part, lead, returns=returns), trace.span_seconds) for part in parts
        ]
        sizes = [aim.gpus(curve, idle_usd_per_gpu_hour) for curve in curves]
        gpus = sum(sizes)
        hit_rate = joint_hit_rate(zip(curves, sizes, strict=True))
        usd_per_hour = idle_usd_per_gpu_hour * gpus
        if aim.value_usd is not None:
            usd_per_hour += aim.value_usd * (1 - hit_rate) * trace.scale_ups / (trace.span_seconds / 3600)
        yearly = usd_per_hour * HOURS_A_YEAR
        saved = None
        if found:
            longer = found[-1]
            saved = (longer.usd_per_year - yearly) / float(longer.lead_time_seconds - lead)
        found.append(LeadTimeCost(lead, gpus, hit_rate, yearly, saved))
    return tuple(found)
