"""The warm floor that measured traffic asks for, and how long idle replicas are kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from coldstart_pool.inputs.demand_values import DemandTrace, ReplicaEvent
from coldstart_pool.need.counts import counts_in_lead_time, quantile
from coldstart_pool.need.trace import ReplicaChange, ReplicaClass, build_trace

# in cold starts: idling for this long to save one, where nobody says what one is worth
WORTH_IN_COLD_STARTS = 10.0
# replicas are counted here, not what each of them asks for
_ANY = ReplicaClass("any")


@dataclass(frozen=True)
class KeptIdle:
    """What it means to keep an idle replica for `seconds` before it is scaled down.

    `hit_share` of the starts then find a kept one; `idle_seconds_per_hit` of idling are paid for each of
    them (None: none does).
    """

    seconds: float
    hit_share: float
    idle_seconds_per_hit: float | None


@dataclass(frozen=True)
class Floor:
    """`replicas` warm ones beside those that serve let a share `service_level` of starts find one at once.

    `keep` is the scale-down window advised where an avoided cold start is worth `worth_seconds` of an idle
    replica, `longer` the cheapest longer one with what each further hit costs. `has_stops`: idle times were
    measured, from stop to start; else they are taken as the gaps between scale-ups.
    """

    replicas: int
    started_replicas: int
    service_level: float
    cold_start_seconds: float
    worth_seconds: float
    keep: KeptIdle
    longer: KeptIdle | None
    has_stops: bool

    @property
    def is_supported(self) -> bool:
        """Whether there are enough starts to tell such a level from the worst that happened."""
        return self.started_replicas * (1 - self.service_level) >= 1 - 1e-9


def warm_floors(
    trace: DemandTrace,
    *,
    cold_start_seconds: float,
    service_level: float = 0.99,
    worth_gpu_seconds: float | None = None,
) -> dict[str, Floor]:
    """One for each application, or for each GPU where the trace names no applications, by name.

    A warm replica serves its own model only: nothing is shared between applications. `worth_gpu_seconds` is
    what an avoided cold start is worth in seconds of an idle GPU.
    """
    events: dict[str, list[ReplicaEvent]] = {}
    for event in trace.events:
        events.setdefault(event.application or event.gpu, []).append(event)
    floors = {}
    for name, own in sorted(events.items()):
        gpus = max(event.gpus_per_replica for event in own)
        worth = None if worth_gpu_seconds is None else worth_gpu_seconds / gpus
        floor = warm_floor(
            own, cold_start_seconds=cold_start_seconds, service_level=service_level, worth_seconds=worth
        )
        if floor is not None:
            floors[name] = floor
    return floors


def warm_floor(
    events: Sequence[ReplicaEvent],
    *,
    cold_start_seconds: float,
    service_level: float = 0.99,
    worth_seconds: float | None = None,
) -> Floor | None:
    """From the starts and stops of one model; None without any start.

    The floor is the quantile, over arriving replicas, of the replicas wanted within one cold start. Idle
    replicas are kept for the time that would have cost least, in idling and in cold starts, and never
    shorter than a cold start: what is let go sooner is missed before its successor could be there.
    """
    ordered = sorted(events, key=lambda event: event.order)
    starts = [event for event in ordered if event.replicas > 0]
    if not starts:
        return None
    worth = WORTH_IN_COLD_STARTS * cold_start_seconds if worth_seconds is None else worth_seconds
    level = Fraction(service_level).limit_denominator(10**6)
    trace = build_trace(ReplicaChange(event.time_seconds, _ANY, event.replicas) for event in starts)
    wanted = counts_in_lead_time(trace, Fraction(cold_start_seconds).limit_denominator(10**6))
    replicas, count = quantile(wanted, level), len(wanted)
    has_stops = len(starts) < len(ordered)
    if has_stops:
        reused, unused = _idle_times(ordered)
    else:
        reused = [float(later.time_seconds - earlier.time_seconds) for earlier, later in pairwise(starts)]
        unused = []
    windows = _Windows(reused, unused, chances=count if has_stops else len(reused))
    keep, longer = windows.cheapest(cold_start_seconds, worth)
    return Floor(
        replicas=replicas,
        started_replicas=count,
        service_level=service_level,
        cold_start_seconds=cold_start_seconds,
        worth_seconds=worth,
        keep=keep,
        longer=longer,
        has_stops=has_stops,
    )


def _idle_times(ordered: Sequence[ReplicaEvent]) -> tuple[list[float], list[float]]:
    """Seconds from a stop to the start that could have used the replica, and to the end for those unused.

    The one that stopped last is used first: so the others come to the end of their window.
    """
    idle: list[float] = []
    reused: list[float] = []
    for event in ordered:
        moment = float(event.time_seconds)
        if event.replicas < 0:
            idle.extend([moment] * -event.replicas)
            continue
        reused.extend(moment - idle.pop() for _ in range(min(event.replicas, len(idle))))
    end = float(ordered[-1].time_seconds)
    return reused, [end - moment for moment in idle]


class _Windows:
    """What each window would have cost: seconds of idling, and the starts that found a kept replica."""

    def __init__(self, reused: Sequence[float], unused: Sequence[float], *, chances: int) -> None:
        self._chances = chances
        self._reused = sorted(reused)
        self._idle = sorted([*reused, *unused])
        self._sums = [0.0, *accumulate(self._idle)]

    def hits(self, seconds: float) -> int:
        return bisect_right(self._reused, seconds)

    def paid(self, seconds: float) -> float:
        whole = bisect_right(self._idle, seconds)
        return self._sums[whole] + seconds * (len(self._idle) - whole)

    def cheapest(self, shortest: float, worth: float) -> tuple[KeptIdle, KeptIdle | None]:
        """The window that costs least where a hit is worth `worth` seconds; the next one worth a thought."""
        choices = [shortest, *dict.fromkeys(idle for idle in self._reused if idle > shortest)]
        best = min(choices, key=lambda seconds: self.paid(seconds) - worth * self.hits(seconds))
        hits, paid = self.hits(best), self.paid(best)
        kept = KeptIdle(best, self._share(hits), paid / hits if hits else None)
        further = [
            ((self.paid(seconds) - paid) / (self.hits(seconds) - hits), seconds)
            for seconds in choices
            if seconds > best
        ]
        if not further:
            return kept, None
        each, seconds = min(further)
        return kept, KeptIdle(seconds, self._share(self.hits(seconds)), each)

    def _share(self, hits: int) -> float:
        return hits / self._chances if self._chances else 0.0
