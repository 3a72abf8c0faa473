"""Fetches in progress: one for each chunk, however many wait; written to the cache behind the readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import trio

from coldstart_cli.errors import BusyError, DataError
from coldstart_fs.fetch import Chunk, ChunkSource, Loaded, Run
from coldstart_fs.names import digest_text

_CONCURRENT_REQUESTS = 32
_DEADLINE_SECONDS = 60.0
# chunks in memory until the cache has them, and, where it cannot take them, while they are the latest
_HELD_CHUNKS = 256
# a cache whose disk hangs must not hang the readers
_CACHE_STALL_SECONDS = 5.0


class _Flight:
    """One chunk on its way: the leader sets the outcome and wakes everybody, whatever happened."""

    __slots__ = ("done", "outcome")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.outcome: Chunk | Exception = BusyError("fetch was given up")


@dataclass
class FetchCounters:
    """What came from where since the server started."""

    cache_chunks: int = 0
    store_chunks: int = 0
    store_bytes: int = 0
    failed_chunks: int = 0


class Flights:
    """The event loop's side of fetching. Blocking work is done in a bounded number of threads."""

    def __init__(self, source: ChunkSource) -> None:
        self.counters = FetchCounters()
        self._source = source
        self._limiter = trio.CapacityLimiter(_CONCURRENT_REQUESTS)
        self._flights: dict[bytes, _Flight] = {}
        self._held: dict[bytes, Chunk] = {}
        self._unwritten: dict[bytes, Chunk] = {}
        self._work = trio.Event()
        self._written = trio.Event()
        self._stalled = False

    def now(self, digest: bytes) -> Chunk | None:
        """A chunk that is in memory: held here until the cache has it, or in the store's pages."""
        data = self._held.get(digest)
        if data is None and digest not in self._flights:
            data = self._source.load_now(digest)
            if data is not None:
                self._hold(digest, data)
        return data

    async def room(self) -> None:
        """Readers wait here while the cache takes chunks more slowly than the store gives them."""
        while len(self._unwritten) > _HELD_CHUNKS:
            with trio.move_on_after(_CACHE_STALL_SECONDS) as patience:
                await self._written.wait()
            if patience.cancelled_caught:  # until it moves again, nothing more is kept for it
                self._stalled = True
                self._unwritten.clear()

    async def write_behind(self) -> None:
        """Put what was fetched into the cache, many chunks at a time: a thread's hop costs more than one."""
        while True:
            await self._work.wait()
            self._work = trio.Event()
            batch, self._unwritten = self._unwritten, {}
            for digest in await trio.to_thread.run_sync(self._source.keep, batch):
                self._held.pop(digest, None)
            self._trim()
            self._stalled = False
            self._written.set()
            self._written = trio.Event()

    def _hold(self, digest: bytes, data: Chunk) -> None:
        self.counters.store_chunks += 1
        self.counters.store_bytes += len(data)
        self._held[digest] = data
        if self._stalled:
            self._trim()
            return
        self._unwritten[digest] = data
        self._work.set()

    def _trim(self) -> None:
        while len(self._held) > _HELD_CHUNKS:
            del self._held[next(iter(self._held))]

    async def get(self, digests: Sequence[bytes]) -> dict[bytes, Chunk]:
        """These chunks, or the first error among them."""
        flights: dict[bytes, _Flight] = {}
        mine: list[bytes] = []
        for digest in digests:
            flight = self._flights.get(digest)
            if flight is None:
                flight = self._flights[digest] = _Flight()
                mine.append(digest)
            flights[digest] = flight
        if mine:
            await self._lead(mine)
        found = {}
        for digest, flight in flights.items():
            await flight.done.wait()
            if isinstance(flight.outcome, Exception):
                raise flight.outcome
            found[digest] = flight.outcome
        return found

    async def _lead(self, digests: list[bytes]) -> None:
        try:
            runs = self._source.plan(digests)
            unknown = set(digests).difference(digest for run in runs for digest, _ in run.chunks)
            for digest in unknown:
                text = f"store does not know where this chunk is: {digest_text(digest)}"
                self._land(digest, DataError(text))
            if len(runs) == 1:
                await self._load(runs[0])
            elif runs:
                async with trio.open_nursery() as nursery:
                    for run in runs:
                        nursery.start_soon(self._load, run)
        finally:
            for digest in digests:  # a leader that is cancelled must not leave waiters behind
                self._land(digest, None)

    async def _load(self, run: Run) -> None:
        loaded: Mapping[bytes, Loaded]
        try:
            with trio.fail_after(_DEADLINE_SECONDS):
                loaded = await trio.to_thread.run_sync(
                    self._source.load, run, limiter=self._limiter, abandon_on_cancel=True
                )
        except trio.TooSlowError:
            late = BusyError(f"store did not answer in {_DEADLINE_SECONDS:g} s: pack {digest_text(run.pack)}")
            loaded = {digest: Loaded(late) for digest, _ in run.chunks}
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait for these chunks
            loaded = {digest: Loaded(error) for digest, _ in run.chunks}
        for digest, (outcome, from_cache) in loaded.items():
            if isinstance(outcome, Exception):
                self.counters.failed_chunks += 1
            elif from_cache:
                self.counters.cache_chunks += 1
            else:
                self._hold(digest, outcome)
            self._land(digest, outcome)

    def _land(self, digest: bytes, outcome: Chunk | Exception | None) -> None:
        flight = self._flights.pop(digest, None)
        if flight is not None:
            if outcome is not None:
                flight.outcome = outcome
            flight.done.set()
