"""Everything that a trace says about the size of a pool, in one answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from coldstart_cli.errors import UsageError
from coldstart_pool.need.by_hour import needs_by_hour
from coldstart_pool.need.counts import counts_in_lead_time
from coldstart_pool.need.families import shared_pools
from coldstart_pool.need.hit_curve import HitCurve, Step, hit_curve, joint_hit_rate, milestones
from coldstart_pool.need.lead_times import Aim, LeadTimeCost, compare_lead_times
from coldstart_pool.need.needs import Need, needs, require_span
from coldstart_pool.need.trace import Trace


@dataclass(frozen=True)
class SharedPool:
    """Classes that can share machines, and the pool they take together; money fields need a price."""

    classes: tuple[str, ...]
    service_level: Fraction
    """What sizes it: the level asked for, or the one that money chose; 0 where no pool pays."""
    gpus: int
    scale_ups: int
    implied_value_usd: float | None
    """What an avoided cold start must be worth for the pool to pay."""
    steps: tuple[Step, ...]
    milestones: tuple[Step, ...]
    curve: HitCurve

    @property
    def hit_rate(self) -> float:
        return self.curve.hit_rate(self.gpus)


@dataclass(frozen=True)
class NeedReport:
    """Needs by class and union; the pools that classes can share; and of all of them: lead times, hours."""

    needs: tuple[Need, ...]
    aim: Aim
    """Its service level is the one that money chose, over all pools, where money decides."""
    pools: tuple[SharedPool, ...]
    lead_times: tuple[LeadTimeCost, ...]
    by_hour: tuple[int, ...] | None

    @property
    def shared_gpus(self) -> int:
        return sum(pool.gpus for pool in self.pools)

    @property
    def shared_hit_rate(self) -> float:
        return joint_hit_rate((pool.curve, pool.gpus) for pool in self.pools)

    @property
    def separate_gpus(self) -> int:
        """What pools of their own for every class would take."""
        return sum(need.gpus for need in self.needs if len(need.classes) == 1)

    @property
    def implied_value_usd(self) -> float | None:
        """What an avoided cold start must be worth for every pool to pay; None without a price."""
        return max(
            (one.implied_value_usd for one in self.pools if one.implied_value_usd is not None), default=None
        )


def need_report(
    trace: Trace,
    lead_times_seconds: Sequence[Fraction],
    aim: Aim,
    *,
    idle_usd_per_gpu_hour: float | None = None,
    returns: bool = False,
    critical: Sequence[str] = (),
    hours: bool = False,
) -> NeedReport:
    """The first lead time sizes the pools; all of them are compared where a price is known."""
    lead = lead_times_seconds[0]
    price = idle_usd_per_gpu_hour
    if aim.value_usd is not None and price is None:
        raise UsageError(
            "what a cold start costs says nothing without what an idle GPU costs",
            hint="pass `--idle-price USD`, for one GPU and one hour",
        )
    require_span(trace, lead)
    trace.numbers_of(critical)  # an unknown name is refused, whichever pool it was meant for
    found: list[Need] = []
    pools = []
    hourly = [0] * 24
    for members in shared_pools(trace):
        part = trace.of(members)
        if not part.scale_ups:  # it only stops: nothing asks a pool for a GPU
            continue
        curve = hit_curve(counts_in_lead_time(part, lead, returns=returns), trace.span_seconds)
        level = aim.service_level if price is None else aim.level(curve, price)
        urgent = [name for name in critical if name in {trace.names[number] for number in members}]
        own = needs(part, lead, level, returns=returns, critical=urgent)
        found += own
        pools.append(_pool(max(own, key=lambda need: len(need.classes)), curve, level, price))
        if hours:
            more = needs_by_hour(part, lead, level, returns=returns)
            hourly = [sum(pair) for pair in zip(hourly, more, strict=True)]
    if aim.value_usd is not None:
        hits = sum(pool.curve.hits_in(pool.gpus) for pool in pools)
        aim = Aim(Fraction(hits, trace.scale_ups), aim.value_usd)
    return NeedReport(
        tuple(found),
        aim,
        tuple(pools),
        () if price is None else compare_lead_times(trace, lead_times_seconds, aim, price, returns=returns),
        tuple(hourly) if hours else None,
    )


def _pool(need: Need, curve: HitCurve, level: Fraction, price: float | None) -> SharedPool:
    return SharedPool(
        need.classes,
        level,
        need.gpus,
        need.replicas,
        None if price is None else curve.implied_value_usd(need.gpus, price),
        () if price is None else curve.steps(price),
        () if price is None else milestones(curve, price),
        curve,
    )


def lead_time(value: float) -> Fraction:
    """Exact seconds from what was typed."""
    if not (math.isfinite(value) and 0 < value <= 10**9):
        raise UsageError(f"--lead-time must be a number of seconds above 0: {value}")
    return Fraction(str(value))


def share(value: float) -> Fraction:
    """An exact service level from what was typed."""
    if not (math.isfinite(value) and 0 < value <= 1):
        raise UsageError(f"--service-level must be above 0 and at most 1: {value}")
    return Fraction(str(value))
