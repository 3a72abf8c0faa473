"""Demand as it came: every replica that started or stopped, in the order of time, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from coldstart_cli.errors import DataError, UnavailableError
from coldstart_pool.inputs.times import FURTHEST_SECONDS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NANOSECONDS = 10**9


@dataclass(frozen=True, order=True)
class ReplicaClass:
    """What one replica asks for: GPUs of one kind, all on one host, perhaps in one region.

    Replicas of equal wants are one class; `application` is set where one has wants of its own.
    """

    gpu: str
    gpus_per_replica: int = 1
    region: str = ""
    application: str = ""
    also_accepts: tuple[str, ...] = field(default=(), compare=False)
    """Other GPUs that do as well; they tell no classes apart, only which ones can share a pool."""

    @property
    def gpus_accepted(self) -> frozenset[str]:
        return frozenset((self.gpu, *self.also_accepts))

    @property
    def name(self) -> str:
        """`H100-80GB`, `H100-80GB x8 in eu-1`, `chat on H100-80GB`."""
        gang = f" x{self.gpus_per_replica}" if self.gpus_per_replica > 1 else ""
        owner = f"{self.application} on " if self.application else ""
        return owner + self.gpu + gang + (f" in {self.region}" if self.region else "")


class ReplicaChange(NamedTuple):
    """`replicas` of one application that start, or stop, at one instant (seconds since 1970)."""

    time: Fraction
    replica_class: ReplicaClass
    replicas: int = 1
    application: str = ""
    starts: bool = True


@dataclass(frozen=True, eq=False)
class Trace:
    """One row a replica, by time; at one instant starts come before stops, so that nothing is lent ahead."""

    classes: tuple[ReplicaClass, ...]
    applications: tuple[str, ...]
    times_ns: NDArray[np.int64]
    class_of: NDArray[np.int64]
    application_of: NDArray[np.int64]
    starts: NDArray[np.bool_]
    first_ns: int
    end_ns: int
    """The window that was watched: from its first instant to its last, events or not."""
    has_stops: bool
    """Whether stops were watched: only then is it known what is busy."""
    given_at_start: tuple[tuple[int, int], ...] = ()
    """(owner, replicas) said to run at the first instant; `running_at_start` knows more."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.classes)

    @property
    def gpus(self) -> NDArray[np.int64]:
        """GPUs of each row's replica."""
        import numpy as np

        return np.array([entry.gpus_per_replica for entry in self.classes], dtype=np.int64)[self.class_of]

    @property
    def scale_ups(self) -> int:
        return int(self.starts.sum())

    @property
    def owners(self) -> NDArray[np.int64]:
        """Class and application of each row in one number: class x applications + application."""
        return self.class_of * len(self.applications) + self.application_of

    @property
    def running_at_start(self) -> dict[int, int]:
        """Replicas by owner from before the first row: those said to run, those that stop without a start."""
        import numpy as np

        found = dict(self.given_at_start)
        if len(self.starts):
            owners = self.owners
            order = np.argsort(owners, kind="stable")
            change = np.where(self.starts[order], 1, -1)
            present, first = np.unique(owners[order], return_index=True)
            running = np.cumsum(change)
            lowest = np.minimum.reduceat(running, first) - (running[first] - change[first])
            for owner, low in zip(present.tolist(), lowest.tolist(), strict=True):
                found[owner] = max(found.get(owner, 0), -low)
        return {owner: replicas for owner, replicas in found.items() if replicas}

    @property
    def span_seconds(self) -> float:
        return (self.end_ns - self.first_ns) / NANOSECONDS

    def of(self, members: Sequence[int]) -> Trace:
        """Only the rows of these classes, by number; classes keep their numbers."""
        import numpy as np

        chosen = self.rows(np.isin(self.class_of, np.array(members, dtype=np.int64)))
        kept = tuple(entry for entry in self.given_at_start if entry[0] // len(self.applications) in members)
        return replace(chosen, given_at_start=kept)

    def between(self, first_ns: int, end_ns: int) -> Trace:
        """Only the rows with first <= time < end, and that window."""
        import numpy as np

        first, end = np.searchsorted(self.times_ns, [first_ns, end_ns])
        running = self.running_at_start
        owners, changes = self.owners[:first], np.where(self.starts[:first], 1, -1)
        for owner in np.unique(owners).tolist():
            running[owner] = running.get(owner, 0) + int(changes[owners == owner].sum())
        return replace(
            self.rows(slice(int(first), int(end))),
            first_ns=first_ns,
            end_ns=end_ns,
            given_at_start=tuple(sorted(running.items())) if self.has_stops else (),
        )

    def rows(self, chosen: NDArray[np.bool_] | slice) -> Trace:
        return replace(
            self,
            times_ns=self.times_ns[chosen],
            class_of=self.class_of[chosen],
            application_of=self.application_of[chosen],
            starts=self.starts[chosen],
        )

    def numbers_of(self, names: Iterable[str]) -> tuple[int, ...]:
        """The numbers of named classes; an unknown one is refused with those that there are."""
        numbers = {name: number for number, name in enumerate(self.names)}
        wanted = list(names)
        for name in wanted:
            if name not in numbers:
                raise DataError(f"no demand of class `{name}`", hint=f"the classes are: {', '.join(numbers)}")
        return tuple(sorted({numbers[name] for name in wanted}))


def build_trace(
    events: Iterable[ReplicaChange],
    window_seconds: tuple[Fraction, Fraction] | None = None,
    *,
    has_stops: bool | None = None,
    running_at_start: Iterable[ReplicaChange] = (),
) -> Trace:
    """A trace from events, whose order does not matter; without a window, from the first to the last event.

    `has_stops` says that stops were watched though none came; `running_at_start` are replicas from before.
    """
    try:
        import numpy as np
    except ModuleNotFoundError as error:
        raise UnavailableError("numpy is not installed", hint="pip install 'coldstart[pool]'") from error

    given = _Columns(events)
    if not any(given.starts):
        raise DataError("the trace holds no scale-up")
    for instant in (min(given.instants), max(given.instants)):
        if abs(instant) > FURTHEST_SECONDS * NANOSECONDS:
            raise DataError(f"a time out of any sensible range: {instant / NANOSECONDS:g} seconds after 1970")
    before = _Columns(running_at_start)
    classes = tuple(sorted({*given.classes, *before.classes}))
    applications = tuple(sorted({*given.applications, *before.applications}))
    class_numbers = {entry: number for number, entry in enumerate(classes)}
    application_numbers = {name: number for number, name in enumerate(applications)}
    times = np.array(given.instants, dtype=np.int64)
    class_of = np.array([class_numbers[entry] for entry in given.classes], dtype=np.int64)[given.class_of]
    application_of = np.array([application_numbers[name] for name in given.applications], dtype=np.int64)[
        given.application_of
    ]
    starts = np.array(given.starts, dtype=np.bool_)
    order = np.lexsort((application_of, class_of, ~starts, times))
    order = np.repeat(order, np.array(given.replicas, dtype=np.int64)[order])
    first, end = map(_nanoseconds, window_seconds) if window_seconds else (given.instants[0],) * 2
    running: dict[int, int] = {}
    for entry, name, replicas in zip(before.class_of, before.application_of, before.replicas, strict=True):
        owner = class_numbers[before.class_list[entry]] * len(applications)
        owner += application_numbers[before.application_list[name]]
        running[owner] = running.get(owner, 0) + replicas
    return Trace(
        classes,
        applications,
        times[order],
        class_of[order],
        application_of[order],
        starts[order],
        min(first, int(times.min())),
        max(end, int(times.max())),
        not bool(starts.all()) if has_stops is None else has_stops,
        tuple(sorted(running.items())),
    )


class _Columns:
    """Events as plain columns: as many objects, kept, would cost the garbage collector seconds."""

    def __init__(self, events: Iterable[ReplicaChange]) -> None:
        self.instants: list[int] = []
        self.class_of: list[int] = []
        self.application_of: list[int] = []
        self.starts: list[bool] = []
        self.replicas: list[int] = []
        self.classes: dict[ReplicaClass, int] = {}
        self.applications: dict[str, int] = {}
        for time, replica_class, replicas, application, starts in events:
            if replicas <= 0 or replica_class.gpus_per_replica <= 0:
                raise DataError(f"a scale-up of nothing: {replica_class.name} at {float(time):f}")
            self.instants.append(_nanoseconds(time))
            self.class_of.append(self.classes.setdefault(replica_class, len(self.classes)))
            self.application_of.append(self.applications.setdefault(application, len(self.applications)))
            self.starts.append(starts)
            self.replicas.append(replicas)

    @property
    def class_list(self) -> list[ReplicaClass]:
        return list(self.classes)

    @property
    def application_list(self) -> list[str]:
        return list(self.applications)


def _nanoseconds(seconds: Fraction) -> int:
    return seconds.numerator * NANOSECONDS // seconds.denominator
