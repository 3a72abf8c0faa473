"""Needs that differ between hours of the day: nights ask for less than a pool sized for all hours."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from coldstart_pool.need.counts import counts_in_lead_time, quantile
from coldstart_pool.need.needs import require_span
from coldstart_pool.need.trace import NANOSECONDS, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HOUR_NS = 3600 * NANOSECONDS


def needs_by_hour(
    trace: Trace, lead_time_seconds: Fraction, service_level: Fraction, *, returns: bool = False
) -> tuple[int, ...]:
    """GPUs that one pool of all classes needs in each hour of the day (UTC); 0 where nothing starts."""
    require_span(trace, lead_time_seconds)
    counts: NDArray[np.int64] = counts_in_lead_time(trace, lead_time_seconds, returns=returns)
    hours = trace.times_ns[trace.starts] // _HOUR_NS % 24
    return tuple(quantile(counts[hours == hour], service_level) for hour in range(24))
