"""Whether sizing from the past keeps its promise: size on the days before, judge the next day, move on."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from coldstart_cli.errors import DataError
from coldstart_pool.need.bootstrap import share_interval
from coldstart_pool.need.counts import counts_in_lead_time, quantile
from coldstart_pool.need.trace import NANOSECONDS, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DAY_NS = 86_400 * NANOSECONDS
# a promise is stated in tenths of a percent; one more digit finds the level that keeps it
_FINEST = 10_000


@dataclass(frozen=True)
class JudgedDay:
    """A day that its pools had not seen; `number` counts from the first day of the trace, which is 0."""

    number: int
    gpus: int
    scale_ups: int
    hits: int


@dataclass(frozen=True)
class WalkForward:
    """Every judged day was unseen when its pool was sized; pools are by class, and a mean over the days."""

    trained_days: int
    judged_days: int
    service_level: Fraction
    hit_rate: float
    hit_rate_interval: tuple[float, float] | None
    mean_gpus: float
    level_that_keeps_it: Fraction | None
    """The smallest level to size for that reaches the promise on unseen days; None when not even 1 does."""
    days: tuple[JudgedDay, ...]

    @property
    def kept(self) -> bool:
        return self.hit_rate >= self.service_level


def walk_forward(
    trace: Trace,
    lead_time_seconds: Fraction,
    service_level: Fraction,
    trained_days: int,
    *,
    returns: bool = False,
) -> WalkForward:
    """Size each class on the days before each day, and count the next day's hits in that pool."""
    days = (trace.end_ns - trace.first_ns) // DAY_NS + 1
    if days <= trained_days:
        raise DataError(
            f"the trace has {days} days: none is left to judge after {trained_days} days to size from",
            hint=f"pass a longer trace, or `--walk-forward {days - 1}`"
            if days > 1
            else "pass a longer trace",
        )
    walk = _Walk(trace, lead_time_seconds, trained_days, days, returns=returns)
    hits, gpus_of_day = walk.hits(service_level)
    if not len(hits):
        raise DataError(f"no scale-up on any day after the first {trained_days}")
    judged = trace.between(trace.first_ns + trained_days * DAY_NS, trace.end_ns + 1)
    return WalkForward(
        trained_days,
        days - trained_days,
        service_level,
        float(hits.mean()),
        share_interval(judged, hits, lead_time_seconds),
        sum(gpus_of_day) / len(gpus_of_day),
        walk.level_for(service_level),
        walk.by_day(hits, gpus_of_day),
    )


class _Walk:
    def __init__(
        self, trace: Trace, lead_time_seconds: Fraction, trained_days: int, days: int, *, returns: bool
    ) -> None:
        self.trained_days = trained_days
        self.days = range(trained_days, days)
        starts = trace.rows(trace.starts)
        self.judged = starts.times_ns >= trace.first_ns + trained_days * DAY_NS
        self.of_class = [
            np_class for number in range(len(trace.classes)) if (np_class := starts.class_of == number).any()
        ]
        self.day_of = (starts.times_ns - trace.first_ns) // DAY_NS
        self.counts = self.day_of.copy()
        for number in range(len(trace.classes)):
            part = trace.of((number,))
            if part.scale_ups:
                self.counts[starts.class_of == number] = counts_in_lead_time(
                    part, lead_time_seconds, returns=returns
                )

    def hits(self, level: Fraction) -> tuple[NDArray[np.bool_], list[int]]:
        """Whether each scale-up of the judged days was a hit, and the GPUs of the pools on each day."""
        hits = self.judged.copy()
        gpus = [0] * len(self.days)
        for mine in self.of_class:
            counts, day_of = self.counts[mine], self.day_of[mine]
            hit = hits[mine]
            for day in self.days:
                # times ascend, and so do days
                first, today, end = day_of.searchsorted([day - self.trained_days, day, day + 1])
                size = quantile(counts[first:today], level)
                gpus[day - self.trained_days] += size
                hit[today:end] = counts[today:end] <= size
            hits[mine] = hit
        return hits[self.judged], gpus

    def by_day(self, hits: NDArray[np.bool_], gpus_of_day: list[int]) -> tuple[JudgedDay, ...]:
        """What `hits` gave, day by day."""
        day_of = self.day_of[self.judged]
        return tuple(
            JudgedDay(day, gpus, int((day_of == day).sum()), int(hits[day_of == day].sum()))
            for day, gpus in zip(self.days, gpus_of_day, strict=True)
        )

    def level_for(self, promise: Fraction) -> Fraction | None:
        """More hits come with a higher level: search between the promise and 1."""
        if self.hits(Fraction(1))[0].mean() < promise:
            return None
        low, high = 0, _FINEST
        while low < high:
            middle = (low + high) // 2
            if self.hits(Fraction(middle, _FINEST))[0].mean() >= promise:
                high = middle
            else:
                low = middle + 1
        return Fraction(high, _FINEST)
