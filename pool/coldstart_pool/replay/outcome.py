"""What a replay says to an operator: hits, waits, GPU-hours, dollars, launches, time with too little left."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from coldstart_pool.need.bootstrap import share_interval
from coldstart_pool.need.trace import NANOSECONDS, Trace
from coldstart_pool.replay.fleet import Fleet
from coldstart_pool.replay.simulation import NEVER, Played
from coldstart_pool.replay.timeline import Timeline

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HOUR_NS = 3600 * NANOSECONDS
_MINUTE_NS = 60 * NANOSECONDS


@dataclass(frozen=True)
class Waits:
    """How long replicas waited for GPUs, in seconds, hits as 0; those that never got any are not in it."""

    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class ClassOutcome:
    """The scale-ups of one class."""

    name: str
    scale_ups: int
    hits: int
    hit_rate_interval: tuple[float, float] | None

    @property
    def hit_rate(self) -> float:
        return self.hits / self.scale_ups


@dataclass(frozen=True)
class Outcome:
    """One way to run the pool on one trace. GPU-hours of machines: idle, booting, busy; paid is all of them.

    Without stops nobody knows how long replicas hold their GPUs: what is paid is the pool's alone.
    """

    policy: str
    pool_gpus: int
    scale_ups: int
    hits: int
    never_served: int
    """Scale-ups that were stopped before they got GPUs, or for which no machine is large enough."""
    hit_rate_interval: tuple[float, float] | None
    waits_seconds: Waits
    idle_gpu_hours: float
    booting_gpu_hours: float
    busy_gpu_hours: float | None
    cost_usd: float | None
    """None when the price of some machine is not known."""
    peak_utilisation: float | None
    launches: int
    launch_failures: int
    health_rejects: int
    releases: int
    preempted_machines: int
    restarts: int
    restart_hits: int
    minutes_below_floor: float
    minutes_empty: float
    classes: tuple[ClassOutcome, ...]
    timeline: Timeline

    @property
    def hit_rate(self) -> float:
        return self.hits / self.scale_ups

    @property
    def paid_gpu_hours(self) -> float:
        return self.idle_gpu_hours + self.booting_gpu_hours + (self.busy_gpu_hours or 0.0)

    @property
    def allocation_utilisation(self) -> float | None:
        """GPU-hours that ran replicas over GPU-hours paid; None when the trace has no stops."""
        if self.busy_gpu_hours is None or not self.paid_gpu_hours:
            return None
        return self.busy_gpu_hours / self.paid_gpu_hours


def outcome(policy: str, trace: Trace, fleet: Fleet, played: Played, lead_time_seconds: Fraction) -> Outcome:
    """Sum up a replay."""
    starts = trace.rows(trace.starts)
    hits = played.waits_ns == 0
    totals = played.totals
    idle, booting, busy = (
        sum(getattr(one, kind) for one in totals.values()) / _HOUR_NS for kind in ("idle", "booting", "busy")
    )
    return Outcome(
        policy,
        sum(shelf.hosts * shelf.gpus_per_host for shelf in fleet.shelves),
        len(hits),
        int(hits.sum()),
        int((played.waits_ns == NEVER).sum()),
        share_interval(trace, hits, lead_time_seconds),
        _waits(played.waits_ns),
        idle,
        booting,
        busy if trace.has_stops else None,
        _cost(fleet, played),
        played.peak_busy_share,
        sum(one.launches for one in totals.values()),
        sum(one.launch_failures for one in totals.values()),
        sum(one.rejects for one in totals.values()),
        sum(one.releases for one in totals.values()),
        sum(one.preempted for one in totals.values()),
        played.restarts,
        played.restart_hits,
        played.below_floor_ns / _MINUTE_NS,
        played.empty_ns / _MINUTE_NS,
        tuple(
            ClassOutcome(
                name,
                int(mine.sum()),
                int(hits[mine].sum()),
                share_interval(trace.of((number,)), hits[mine], lead_time_seconds),
            )
            for number, name in enumerate(trace.names)
            if (mine := starts.class_of == number).any()
        ),
        played.timeline,
    )


def _waits(waits_ns: NDArray[np.int64]) -> Waits:
    import numpy as np

    served = waits_ns[waits_ns != NEVER]
    if not len(served):
        return Waits(0.0, 0.0, 0.0, 0.0, 0.0)
    found = np.quantile(served, [0.5, 0.9, 0.95, 0.99, 1.0], method="inverted_cdf") / NANOSECONDS
    return Waits(*(float(value) for value in found))


def _cost(fleet: Fleet, played: Played) -> float | None:
    cost = 0.0
    for number, totals in played.totals.items():
        shelf = fleet.shelves[number]
        if shelf.usd_per_host_hour is not None:
            cost += totals.paid / _HOUR_NS * shelf.usd_per_host_hour / shelf.gpus_per_host
        elif totals.paid:
            return None
    return cost
