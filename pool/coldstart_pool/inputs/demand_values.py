"""Demand as values: wanted GPUs, or replicas that started and stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, order=True)
class Target:
    """Idle GPUs wanted of one class; `scale_ups` replicas were counted where it came from events."""

    gpu: str
    target_gpus: Fraction
    scale_ups: int | None = None
    application: str = ""


@dataclass(frozen=True, order=True)
class ReplicaEvent:
    """Replicas of one application that start (`replicas` > 0) or stop (< 0) at one instant.

    Seconds count from 1970 (UTC), or from the start of the trace where the table counts so.
    """

    time_seconds: Fraction
    application: str
    gpu: str
    gpus_per_replica: int
    replicas: int

    @property
    def order(self) -> tuple[float, str, str, int, int, Fraction]:
        """Sorts by time; comparing fractions first would take most of the time that a table takes."""
        place = (self.application, self.gpu, self.gpus_per_replica, self.replicas)
        return (float(self.time_seconds), *place, self.time_seconds)


@dataclass(frozen=True)
class DemandTrace:
    """Replica starts and stops in order of time, between its first and last instant."""

    events: tuple[ReplicaEvent, ...]
    first_seconds: Fraction
    last_seconds: Fraction
    since_1970: bool
    """Whether the seconds are a date: only then has a day or an hour of the day a meaning."""
    has_stops: bool
    running_at_start: tuple[tuple[str, str, int, int], ...] = ()
    """(application, GPU, GPUs a replica, replicas) that ran before the first event, from sampled counts."""
    sampled_every_seconds: Fraction | None = None
    """Where the events come from samples: what happened between two of them is seen at the later one."""

    @property
    def starts(self) -> Iterator[ReplicaEvent]:
        return (event for event in self.events if event.replicas > 0)


@dataclass(frozen=True)
class Demand:
    """What a demand table says: targets, or a trace of replicas."""

    targets: tuple[Target, ...] = ()
    trace: DemandTrace | None = None


@dataclass(frozen=True, order=True)
class DemandClass:
    """What one application needs of a machine; an empty tuple sets no limit."""

    application: str
    gpus: tuple[str, ...]
    """The GPU it is sized for, then those it accepts instead."""
    gpus_per_replica: int = 1
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    service_rate: Fraction | None = None
    """Requests per second that one replica serves."""
    snapshot: str = ""
    """The snapshot its replicas are restored from; empty: its own name."""
