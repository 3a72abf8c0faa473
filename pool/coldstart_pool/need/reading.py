"""From demand tables to a trace: which replicas are one class, for plans and replays alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.demand_values import Demand, DemandClass
from coldstart_pool.need.trace import ReplicaChange, ReplicaClass, Trace, build_trace

ClassOf = Callable[[str, str, int], ReplicaClass]
"""The class of an application's replicas of so many GPUs of one kind."""


def by_wants(wants: Sequence[DemandClass]) -> ClassOf:
    """Replicas of one size on one GPU are a class; applications with wants of their own have their own."""
    own = {entry.application: entry for entry in wants if _has_own_wants(entry)}

    def class_of(application: str, gpu: str, gpus_per_replica: int) -> ReplicaClass:
        if (entry := own.get(application)) is None:
            return ReplicaClass(gpu, gpus_per_replica)
        others = tuple(other for other in entry.gpus if other != gpu)
        return ReplicaClass(gpu, gpus_per_replica, application=application, also_accepts=others)

    return class_of


def by_classes(classes: Iterable[ReplicaClass]) -> ClassOf:
    """As a plan has them: an application's own class where there is one, else the one that it shares."""
    own = {(entry.application, entry.gpu, entry.gpus_per_replica): entry for entry in classes}

    def class_of(application: str, gpu: str, gpus_per_replica: int) -> ReplicaClass:
        return own.get((application, gpu, gpus_per_replica)) or ReplicaClass(gpu, gpus_per_replica)

    return class_of


def trace_of(demand: Demand, class_of: ClassOf) -> Trace:
    """The trace of a demand table; refused where the table holds targets, which no replica asked for."""
    if demand.trace is None:
        raise DataError(
            "the demand is a table of targets: there is no scale-up in it",
            hint="pass replica events, running replicas over time, or a request rate",
        )
    given = demand.trace
    class_of = cache(class_of)
    changes = (
        ReplicaChange(
            event.time_seconds,
            class_of(event.application, event.gpu, event.gpus_per_replica),
            abs(event.replicas),
            event.application,
            event.replicas > 0,
        )
        for event in given.events
    )
    running = (
        ReplicaChange(given.first_seconds, class_of(application, gpu, gpus), replicas, application)
        for application, gpu, gpus, replicas in given.running_at_start
        if replicas
    )
    return build_trace(
        changes,
        (given.first_seconds, given.last_seconds),
        has_stops=given.has_stops or given.sampled_every_seconds is not None,
        running_at_start=running,
    )


def _has_own_wants(entry: DemandClass) -> bool:
    """Whether more than a GPU model decides which machines will do."""
    return bool(len(entry.gpus) > 1 or entry.providers or entry.regions or entry.snapshot)
