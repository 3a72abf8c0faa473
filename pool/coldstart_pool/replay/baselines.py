"""What operators do without a plan, to compare with: nothing, a tenth of the peak, one per application."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from coldstart_pool.need.counts import peak_busy_gpus
from coldstart_pool.need.trace import Trace
from coldstart_pool.replay.fleet import Fleet, Shelf

NONE, TENTH_OF_PEAK, ONE_PER_APPLICATION = "none", "10% of peak", "one per application"


def baselines(trace: Trace, plan: Fleet) -> Iterator[tuple[str, Trace, Fleet]]:
    """Each with its trace and fleet: machines that just hold one replica, at the plan's mean price of a GPU.

    A tenth of the peak needs stops in the trace: without them nobody knows the peak, and it is left out.
    """
    yield NONE, trace, _fleet(trace, plan, [0] * len(trace.classes))
    if trace.has_stops:
        peaks = [peak_busy_gpus(trace.of((number,))) or 0 for number in range(len(trace.classes))]
        sizes = [entry.gpus_per_replica for entry in trace.classes]
        hosts = [math.ceil(peak / 10 / size) for peak, size in zip(peaks, sizes, strict=True)]
        yield TENTH_OF_PEAK, trace, _fleet(trace, plan, hosts)
    apart, came_from = _by_application(trace)
    allowed = tuple(plan.allowed[number] for number in came_from)
    yield ONE_PER_APPLICATION, apart, _fleet(apart, replace(plan, allowed=allowed), [1] * len(apart.classes))


def _fleet(trace: Trace, plan: Fleet, hosts: list[int]) -> Fleet:
    shelves = tuple(
        Shelf(entry.name, entry.gpus_per_replica, count, _price(plan, number, entry.gpus_per_replica))
        for number, (entry, count) in enumerate(zip(trace.classes, hosts, strict=True))
    )
    return Fleet(shelves, tuple((number,) for number in range(len(shelves))))


def _price(plan: Fleet, class_number: int, gpus: int) -> float | None:
    """What these GPUs cost an hour on the plan's machines for this class, weighted by how many it keeps."""
    shelves = [plan.shelves[number] for number in plan.allowed[class_number]]
    known = [(shelf, shelf.usd_per_host_hour) for shelf in shelves if shelf.usd_per_host_hour is not None]
    held = sum(shelf.gpus_per_host * shelf.hosts for shelf, _ in known)
    if not held or len(known) < len(shelves):
        return None
    return gpus * sum(price * shelf.hosts for shelf, price in known) / held


def _by_application(trace: Trace) -> tuple[Trace, list[int]]:
    """The trace with a class for each application, and the class that each came from."""
    import numpy as np

    owners = np.concatenate((trace.owners, np.array([owner for owner, _ in trace.given_at_start], np.int64)))
    found = np.unique(owners).tolist()
    came_from = [owner // len(trace.applications) for owner in found]
    classes = tuple(
        replace(trace.classes[number], application=trace.applications[owner % len(trace.applications)])
        for number, owner in zip(came_from, found, strict=True)
    )
    apart = replace(
        trace,
        classes=classes,
        applications=("",),
        class_of=np.searchsorted(found, trace.owners).astype(np.int64),
        application_of=np.zeros_like(trace.application_of),
        given_at_start=tuple((found.index(owner), replicas) for owner, replicas in trace.given_at_start),
    )
    return apart, came_from
