"""Idle GPUs that each class, and each union of classes, needs so that scale-ups find them at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from coldstart_cli.errors import DataError
from coldstart_pool.need.bootstrap import interval
from coldstart_pool.need.counts import counts_in_lead_time, peak_busy_gpus, quantile
from coldstart_pool.need.families import families
from coldstart_pool.need.trace import Trace


@dataclass(frozen=True)
class Need:
    """GPUs kept idle for these classes together, so that a share `service_level` of replicas waits not.

    A level of 0 keeps none: money says that cold starts are cheaper.
    """

    classes: tuple[str, ...]
    gpus: int
    peak_busy_gpus: int | None
    """The most GPUs in use at once; None when the trace does not say when replicas stop."""
    interval: tuple[int, int] | None
    """Where the need lies in 95 of 100 redrawn traces; None when the trace is too short to redraw."""
    service_level: Fraction
    replicas: int


def needs(
    trace: Trace,
    lead_time_seconds: Fraction,
    service_level: Fraction,
    *,
    returns: bool = False,
    groups: Mapping[str, Collection[str]] | None = None,
    critical: Collection[str] = (),
) -> tuple[Need, ...]:
    """The need of every class and union; classes named `critical` get no less than their largest batch."""
    require_span(trace, lead_time_seconds)
    urgent = set(trace.numbers_of(critical))
    found = []
    for members in families(trace, groups):
        part = trace.of(members)
        if not part.scale_ups:  # it only stops: nothing asks the pool for a GPU
            continue
        counts = counts_in_lead_time(part, lead_time_seconds, returns=returns)
        least = max((largest_batch_gpus(trace.of((number,))) for number in urgent & set(members)), default=0)
        found.append(
            Need(
                tuple(trace.names[number] for number in members),
                max(quantile(counts, service_level), least),
                peak_busy_gpus(part),
                interval(part, counts, service_level, lead_time_seconds) if service_level else None,
                service_level,
                len(counts),
            )
        )
    return tuple(found)


def largest_batch_gpus(trace: Trace) -> int:
    """The most GPUs asked for at one instant."""
    import numpy as np

    starts = trace.rows(trace.starts)
    if not len(starts.times_ns):
        return 0
    _, instant = np.unique(starts.times_ns, return_inverse=True)
    return int(np.bincount(instant, weights=starts.gpus).max())


def require_span(trace: Trace, lead_time_seconds: Fraction) -> None:
    """Refuse a trace that is shorter than the lead time: every count in it would be cut short."""
    if trace.span_seconds == 0:
        raise DataError(
            "the trace holds one instant only: it says nothing about how scale-ups follow each other",
            hint="pass a longer trace, or a table of targets",
        )
    if trace.span_seconds < lead_time_seconds:
        raise DataError(
            f"the trace spans {trace.span_seconds:g} s, less than the lead time of "
            f"{float(lead_time_seconds):g} s",
            hint="pass a longer trace, or a table of targets",
        )
