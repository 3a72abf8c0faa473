"""What one flight does: look into the cache, agree with other processes, fetch, hand over, keep."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock

from coldstart_cli.errors import DataError
from coldstart_fs.content.cache import PackCache
from coldstart_fs.content.chunks import ChunkMap, PlacedChunk
from coldstart_fs.content.companions import Companions
from coldstart_fs.content.fetch import Content, Outcome, Run, decoded_chunk, fetch_run, runs_of
from coldstart_fs.content.flights import DEMAND_BYTES, Flight, Flights
from coldstart_fs.content.memory import ChunkMemory
from coldstart_fs.content.pack_file import PackFile
from coldstart_fs.content.pack_map import PackMap
from coldstart_fs.content.packs import PackSource
from coldstart_fs.content.slots import RequestSlots

_NEIGHBOUR_SECONDS = 20.0
"""How long to wait for another process that fetches the same, at most; half of what is left, if less."""
_FIRST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.05


@dataclass
class ReadCounters:
    """What came from where since the start."""

    cache_chunks: int = 0
    cache_bytes: int = 0
    store_chunks: int = 0
    store_bytes: int = 0
    failed_chunks: int = 0
    fetches: int = 0
    fetched_bytes: int = 0
    """As packs have them, wanted or not; of these `prefetched_bytes` before anybody asked."""
    prefetched_bytes: int = 0


class Bringer:
    """Chunks of one image, from this host's files or from its packs' source. Thread-safe."""

    def __init__(
        self,
        packs: PackSource,
        cache: PackCache,
        memory: ChunkMemory,
        flights: Flights,
        chunks: ChunkMap,
        pack_map: Callable[[], PackMap],
    ) -> None:
        self.counters = ReadCounters()
        self.slots = RequestSlots()
        self.companions = Companions(chunks, pack_map)
        self.cache_hangs = False
        self.pace: Callable[[int], None] = lambda _: None
        """Holds back a prefetch of so many bytes, where there is a limit."""
        self.on_miss: list[Callable[[Run], None]] = []
        """Hear of each request that a reader waits for, before it is sent; they must not wait."""
        self.verified = array("Q", bytes(8 * chunks.locator.chunk_count))
        """By position in the locator: the generation of the pack in which the chunk was verified."""
        self._packs = packs
        self._cache = cache
        self._memory = memory
        self._flights = flights
        self._counting = Lock()

    def bring(self, flight: Flight, attempt: int) -> None:
        """Land every chunk of a flight, and keep what was fetched."""
        chunks = self._flights.missing(flight)
        if self.cache_hangs or attempt > 1:
            self._fetch(flight, chunks, None)
            return
        flight.disk_since = time.monotonic()
        file = self._cache.open(flight.run.pack)
        suspects: list[tuple[PlacedChunk, bytes]] = []
        if file is not None:
            chunks = self._look(flight, file, chunks, suspects)
        if flight.origin >= 0 and len(chunks) == 1:
            chunks = self._with_companions(flight, chunks[0])
        filled = self._to_fill(flight.run.pack, file) if chunks else None
        if not chunks or self._given_up(flight, attempt):
            return
        if filled is None or self._cache.failure is not None:
            flight.disk_since = 0.0
            self._put_aside(suspects)  # nobody fills it, as far as anybody can tell
            self._fetch(flight, chunks, filled)
            return
        mine, theirs = _locked(filled, chunks)
        try:
            rest = self._look_alone(flight, filled, mine) if mine else []
            if self._given_up(flight, attempt):
                return
            flight.disk_since = 0.0
            if rest:
                self._fetch(flight, rest, filled)
        finally:
            for run in runs_of(mine, largest_bytes=1 << 62):
                filled.unlock(run.offset, run.length)
        if theirs:
            self._await_others(flight, attempt, filled, theirs)

    def _to_fill(self, pack: bytes, file: PackFile | None) -> PackFile | None:
        return file if file is not None and file.writable else self._cache.open_for_filling(pack)

    def _with_companions(self, flight: Flight, chunk: PlacedChunk) -> list[PlacedChunk]:
        file = self._cache.opened(chunk.pack)
        if file is not None and file.original:
            return [chunk]
        known = 0 if file is None else file.generation
        found, kind = self.companions.of(flight.origin, chunk)
        around = [other for other in found if not known or self.verified[other.position] != known]
        taken = self._flights.adopt(flight, around) if around else []
        if not taken:
            return [chunk]
        self.companions.brought(taken, kind)
        return sorted([chunk, *taken], key=lambda chunk: chunk.offset)

    def _given_up(self, flight: Flight, attempt: int) -> bool:
        return flight.attempt != attempt

    def _await_others(self, flight: Flight, attempt: int, file: PackFile, theirs: list[PlacedChunk]) -> None:
        """Take what another process fetches; what does not come in time is fetched here too."""
        now = time.monotonic()
        until = now + min(_NEIGHBOUR_SECONDS, (flight.deadline - now) / 2)
        pause = _FIRST_PAUSE_SECONDS
        while theirs and time.monotonic() < until:
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
            flight.disk_since = time.monotonic()
            mine, theirs = _locked(file, self._look(flight, file, theirs, []))
            if mine:  # it has ended, or could not keep what it fetched
                try:
                    rest = self._look_alone(flight, file, mine)
                    if self._given_up(flight, attempt):
                        return
                    flight.disk_since = 0.0
                    self._fetch(flight, rest, file)
                finally:
                    for chunk in mine:
                        file.unlock(chunk.offset, chunk.end - chunk.offset)
            if self._given_up(flight, attempt):
                return
            flight.disk_since = 0.0
        if theirs:
            self._fetch(flight, theirs, file)

    def _look_alone(self, flight: Flight, file: PackFile, chunks: list[PlacedChunk]) -> list[PlacedChunk]:
        """`_look` at chunks whose range is ours to fill: what is wrong now is damage."""
        damaged: list[tuple[PlacedChunk, bytes]] = []
        missing = self._look(flight, file, chunks, damaged)
        self._put_aside(damaged)
        return missing

    def _put_aside(self, damaged: list[tuple[PlacedChunk, bytes]]) -> None:
        for chunk, stored in damaged:
            self._cache.put_aside(chunk, stored)

    def _look(
        self,
        flight: Flight,
        file: PackFile,
        chunks: list[PlacedChunk],
        suspects: list[tuple[PlacedChunk, bytes]],
    ) -> list[PlacedChunk]:
        """Land what the file has; the chunks that it lacks, or has wrongly: those are suspects too."""
        found: dict[int, Outcome] = {}
        missing: list[PlacedChunk] = []
        for run in runs_of(chunks, largest_bytes=DEMAND_BYTES):
            if not file.holds_data(run.offset, run.length):
                missing += run.chunks
                continue
            generation = file.current()
            known = all(self.verified[chunk.position] == generation for chunk in run.chunks)
            stored = file.read_now(run.offset, run.length) if known else None
            if file.current() != generation:
                stored = None
            from_disk = stored is None
            if stored is None:
                stored = file.read(run.offset, run.length)
            for chunk in run.chunks:
                part = memoryview(stored)[chunk.offset - run.offset : chunk.end - run.offset]
                data = part if chunk.raw and not from_disk else self._proven(file, chunk, part, suspects)
                if data is None:
                    missing.append(chunk)
                    continue
                self.verified[chunk.position] = generation
                found[chunk.position] = data
                if not chunk.raw or not file.reads_now:
                    self._memory.retain(chunk.position, data)
        if found:
            self.count_found(file, found)
            self._flights.land(flight, found)
        return missing

    def _proven(
        self,
        file: PackFile,
        chunk: PlacedChunk,
        stored: memoryview,
        suspects: list[tuple[PlacedChunk, bytes]],
    ) -> Content | None:
        """The chunk, or None where the file does not have it."""
        if is_blank(stored) and not file.original:
            return None
        try:
            return decoded_chunk(chunk, stored)
        except DataError:
            if not (file.original or is_torn(chunk, stored)):
                suspects.append((chunk, bytes(stored)))
            return None

    def _fetch(self, flight: Flight, chunks: list[PlacedChunk], file: PackFile | None) -> None:
        """Land chunks from the packs' source, then keep them in the cache."""
        for run in runs_of(
            chunks, largest_bytes=max(flight.run.length, DEMAND_BYTES), gap_bytes=flight.gap_bytes
        ):
            if flight.demand:
                for hear in self.on_miss:
                    hear(run)
            else:
                self.pace(run.length)
            # a prefetch keeps its place until the cache has it: that bounds what is in memory
            with nullcontext() if flight.demand else self._prefetch_slot(flight, run.length):
                with self.slots.demand(flight.deadline) if flight.demand else nullcontext():
                    fetched = fetch_run(self._packs, run, deadline=flight.deadline)
                self._count_fetched(flight, run, fetched.outcomes)
                self._flights.land(flight, fetched.outcomes, hold=True)
                crowded = flight.demand and self._memory.is_crowded
                self._keep(flight, run.chunks, fetched.pieces, None if crowded else file)

    def _prefetch_slot(self, flight: Flight, size_bytes: int) -> AbstractContextManager[None]:
        return self.slots.prefetch(flight.deadline, size_bytes, yielding=flight.yielding)

    def _keep(
        self,
        flight: Flight,
        chunks: list[PlacedChunk],
        pieces: Iterable[tuple[Run, Content]],
        file: PackFile | None,
    ) -> None:
        if file is not None and not self.cache_hangs:
            flight.disk_since = time.monotonic()
            for run, stored in pieces:
                if not self._cache.has_room_for(len(stored)):
                    break
                try:
                    generation = file.write(run.offset, stored)
                except OSError as error:
                    self._cache.failed(error)
                    break
                self._cache.keeps_again()
                for chunk in run.chunks:
                    self.verified[chunk.position] = generation
                    if chunk.raw and file.reads_now:
                        self._memory.release(chunk.position)
            flight.disk_since = 0.0
        for chunk in chunks:
            self._memory.retain(chunk.position)

    def count_found(self, file: PackFile, found: Mapping[int, Outcome]) -> None:
        with self._counting:
            size_bytes = sum(len(data) for data in found.values() if isinstance(data, Content))
            if file.original:
                self.counters.store_chunks += len(found)
                self.counters.store_bytes += size_bytes
            else:
                self.counters.cache_chunks += len(found)
                self.counters.cache_bytes += size_bytes

    def _count_fetched(self, flight: Flight, run: Run, outcomes: dict[int, Outcome]) -> None:
        good = [data for data in outcomes.values() if isinstance(data, Content)]
        with self._counting:
            self.counters.fetches += 1
            self.counters.fetched_bytes += run.length
            self.counters.store_chunks += len(good)
            self.counters.store_bytes += sum(map(len, good))
            self.counters.failed_chunks += len(outcomes) - len(good)
            if not flight.demand:
                self.counters.prefetched_bytes += run.length


def is_blank(stored: memoryview) -> bool:
    """Whether nothing was written there: no stored chunk is all zeros."""
    return not any(stored[:64]) and bytes(stored) == bytes(len(stored))


def is_torn(chunk: PlacedChunk, stored: memoryview) -> bool:
    """Whether the end is missing: nobody wrote there yet, or who did was killed, or the host lost power."""
    return len(stored) < chunk.location.stored_bytes or not any(stored[-64:])


def _locked(file: PackFile, chunks: list[PlacedChunk]) -> tuple[list[PlacedChunk], list[PlacedChunk]]:
    """The chunks that this process may fetch now, and those that another one fetches."""
    mine: list[PlacedChunk] = []
    theirs: list[PlacedChunk] = []
    for run in runs_of(chunks, largest_bytes=1 << 62):
        if file.lock(run.offset, run.length):
            mine += run.chunks
            continue
        for chunk in run.chunks:
            (mine if file.lock(chunk.offset, chunk.end - chunk.offset) else theirs).append(chunk)
    return mine, theirs
