"""Chunks on their way: one flight for each, however many wait; errors go to all of them, and no further."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from threading import Condition, Lock
from typing import Protocol

from coldstart_cli.errors import BusyError, ColdstartError, IoFailure
from coldstart_fs.content.chunks import PlacedChunk
from coldstart_fs.content.fetch import Content, Outcome, Run, runs_of
from coldstart_fs.content.memory import ChunkMemory
from coldstart_fs.content.workers import Workers
from coldstart_fs.format.names import digest_text

DEMAND_BYTES = 4 << 20
"""The largest request that a read makes."""

# a source of packs keeps the deadline by itself, a little late at worst
_GRACE_SECONDS = 5.0


class Waiter(Protocol):
    """Who is told of chunks; of some that were not asked for too, and maybe twice."""

    def landed(self, outcomes: Mapping[int, Outcome]) -> None: ...


class Flight:
    """One request's chunks. `attempt` counts who brings them: a thread that hangs is given up."""

    __slots__ = (
        *("attempt", "deadline", "demand", "disk_since", "gap_bytes", "origin", "run", "waiters"),
        "yielding",
    )

    def __init__(
        self,
        run: Run,
        deadline: float,
        *,
        demand: bool,
        gap_bytes: int,
        origin: int,
        yielding: bool,
    ) -> None:
        self.run = run
        self.deadline = deadline
        self.demand = demand
        self.gap_bytes = gap_bytes
        self.origin = origin
        """The inode that is read, where neighbours may be brought along; else -1."""
        self.yielding = yielding
        """Whether nobody may ever want it: it goes after all others."""
        self.waiters: list[Waiter] = []
        self.attempt = 1
        self.disk_since = 0.0
        """Since when a thread waits for the cache's disk; 0 while none does."""


Bring = Callable[[Flight, int], None]


class Flights:
    """Thread-safe."""

    def __init__(self, memory: ChunkMemory, workers: Workers, log: Callable[[str], None]) -> None:
        self._memory = memory
        self._workers = workers
        self._log = log
        self._by_position: dict[int, Flight] = {}
        self._active: set[Flight] = set()
        self._lock = Lock()
        self._settled = Condition(self._lock)
        self.bring: Bring
        """Does what a flight is for, in a thread of the workers."""
        self.recovered: Callable[[], None] = lambda: None
        """Hears that a thread that was given up is back."""

    def join(
        self,
        chunks: Iterable[PlacedChunk],
        waiter: Waiter,
        *,
        deadline: float,
        demand: bool = True,
        largest_bytes: int = DEMAND_BYTES,
        gap_bytes: int = 0,
        origin: int = -1,
        yielding: bool = False,
    ) -> None:
        """Have `waiter` told of these chunks; a flight begins for each that is not on its way."""
        found: dict[int, Outcome] = {}
        with self._lock:
            mine: list[PlacedChunk] = []
            for chunk in chunks:
                if (data := self._memory.get(chunk.position)) is not None:
                    found[chunk.position] = data
                elif (flight := self._by_position.get(chunk.position)) is not None:
                    if waiter not in flight.waiters:
                        flight.waiters.append(waiter)
                else:
                    mine.append(chunk)
            begun = []
            for run in runs_of(mine, largest_bytes=largest_bytes, gap_bytes=gap_bytes):
                flight = Flight(
                    run, deadline, demand=demand, gap_bytes=gap_bytes, origin=origin, yielding=yielding
                )
                flight.waiters.append(waiter)
                for chunk in run.chunks:
                    self._by_position[chunk.position] = flight
                self._active.add(flight)
                begun.append(flight)
        for flight in begun:
            self._begin(flight, 1)
        if found:
            waiter.landed(found)

    def _begin(self, flight: Flight, attempt: int) -> None:
        self._workers.submit(lambda: self._run(flight, attempt))

    def land(self, flight: Flight, outcomes: Mapping[int, Outcome], *, hold: bool = False) -> None:
        """Tell everybody; with `hold` chunks stay in memory until the cache has them."""
        with self._lock:
            for position, outcome in outcomes.items():
                if self._by_position.get(position) is flight:
                    if hold and isinstance(outcome, Content):
                        self._memory.hold(position, outcome)
                    del self._by_position[position]
            waiters = list(flight.waiters)
        for waiter in waiters:
            try:
                waiter.landed(outcomes)
            except Exception as error:  # noqa: BLE001 - one who cannot take it keeps it from nobody else
                self._log(f"an answer could not be given: {error!r}")

    @property
    def any(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._active)

    def has(self, position: int) -> bool:
        """Whether the chunk at a place of the locator is on its way, or in memory."""
        return position in self._by_position or self._memory.get(position) is not None

    def adopt(self, flight: Flight, chunks: Iterable[PlacedChunk]) -> list[PlacedChunk]:
        """Take chunks along that are not on their way; those that are taken."""
        with self._lock:
            taken = [
                chunk
                for chunk in chunks
                if chunk.position not in self._by_position and self._memory.get(chunk.position) is None
            ]
            for chunk in taken:
                self._by_position[chunk.position] = flight
            flight.run.chunks = sorted({*flight.run.chunks, *taken}, key=lambda chunk: chunk.offset)
        return taken

    def settle(self) -> None:
        """Wait until nothing is on its way, neither to who waits nor into the cache."""
        with self._settled:
            self._settled.wait_for(lambda: not self._active)

    def missing(self, flight: Flight) -> list[PlacedChunk]:
        """The chunks of a flight that have not landed."""
        with self._lock:
            return [chunk for chunk in flight.run.chunks if self._by_position.get(chunk.position) is flight]

    def give_up(self, disk_seconds: float) -> list[Flight]:
        """Give up threads that hang: in the cache's disk for so long, or beyond the deadline.

        The flights of the former, which another thread has to bring.
        """
        now = time.monotonic()
        stuck, late = [], []
        with self._lock:
            for flight in list(self._active):
                if now > flight.deadline + _GRACE_SECONDS:
                    late.append(flight)
                elif 0 < flight.disk_since < now - disk_seconds:
                    stuck.append(flight)
                else:
                    continue
                flight.attempt += 1
                flight.disk_since = 0.0
                self._active.discard(flight)
                self._workers.lose()
            self._settled.notify_all()
        for flight in late:
            gone = BusyError(f"no answer in time: pack {digest_text(flight.run.pack)}")
            self.land(flight, {chunk.position: gone for chunk in self.missing(flight)})
        for flight in stuck:
            with self._lock:
                self._active.add(flight)
            self._begin(flight, flight.attempt)
        return stuck

    def _run(self, flight: Flight, attempt: int) -> None:
        failure: ColdstartError = IoFailure("fetch was given up")
        try:
            self.bring(flight, attempt)
        except ColdstartError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait for these chunks
            failure = IoFailure(f"chunks cannot be had: {error!r}")
        if flight.attempt != attempt:  # others have taken over
            self._workers.regain()
            self.recovered()
            return
        with self._lock:
            self._active.discard(flight)
            if not self._active:
                self._settled.notify_all()
        if rest := self.missing(flight):  # whoever waits is woken, whatever happened
            self.land(flight, {chunk.position: failure for chunk in rest})
