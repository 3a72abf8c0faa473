"""Bytes of an image's files, for threads: at hand at once, or waited for; verified in either case."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from typing import Any

from coldstart_cli.errors import BusyError, ColdstartError
from coldstart_fs.content.bringing import Bringer, is_blank
from coldstart_fs.content.cache import PackCache
from coldstart_fs.content.chunks import ChunkMap, PlacedChunk
from coldstart_fs.content.fetch import Content, Outcome, decoded_chunk
from coldstart_fs.content.flights import Flights
from coldstart_fs.content.memory import ChunkMemory
from coldstart_fs.content.neighbours import LEAST_BYTES, Neighbours
from coldstart_fs.content.pack_file import PackFile
from coldstart_fs.content.pack_map import PackMap
from coldstart_fs.content.packs import PackSource
from coldstart_fs.content.prefetch import LARGEST_BYTES, Hand, Prefetched, Prefetcher
from coldstart_fs.content.reading import Done, Read
from coldstart_fs.content.room import CacheLimits
from coldstart_fs.content.slots import REQUESTS
from coldstart_fs.content.sweep import sweep
from coldstart_fs.content.workers import Workers
from coldstart_fs.format.index import Index
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import pack_key
from coldstart_fs.stores.copies import Tell
from coldstart_fs.stores.images import open_image
from coldstart_fs.stores.store import Store
from coldstart_fs.tiers.packs import TieredPacks, open_tiers

Observer = Callable[[int, int, int], None]
READ_SECONDS = 60.0
"""One read's deadline, over disk, other processes and stores."""
DISK_SECONDS = 5.0
"""How long the cache's disk may take before readers go around it."""
_WATCH_SECONDS = 0.25
_IDLE_SECONDS = 10.0
_CLOSING_SECONDS = 2.0
# what is verified in the caller's thread: a hop into another one costs as much
_VERIFIED_AT_HAND_BYTES = 256 << 10


def open_reader(
    store: Store,
    digest: bytes,
    cache: Path,
    *,
    packs: TieredPacks | None = None,
    image: tuple[Index, Locator] | None = None,
    limits: CacheLimits | None = None,
    log: Callable[[str], None] = lambda _: None,
    tell: Tell = lambda _: None,
) -> ImageReader:
    """The reader of one image; its packs and its index come from the store, or from the tiers of `packs`.

    `image` is its index and locator where a predecessor has opened them.

    A cache that takes nothing is no failure; `tell` hears of it.
    """
    files = PackCache(cache, log, lambda pack: store.local_path(pack_key(pack)), limits)
    try:
        files.prepare()
    except ColdstartError as error:
        files.failure = error.message
        tell(f"cache cannot keep chunks, serving through it: {error.message}")
    tiers = packs or open_tiers(store, log=log)
    if image is None:
        image = open_image(store, digest, cache, tell, fetch_index=tiers.index, on_outage=tiers.store_is_down)
    return ImageReader(*image, tiers, files, log)


class ImageReader:
    """One image's contents, by inode number of its index. Thread-safe; to be made after the last fork."""

    def __init__(
        self,
        index: Index,
        locator: Locator,
        packs: PackSource,
        cache: PackCache,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.index = index
        self.observer: Observer | None = None
        """Told of each demand read: inode number, offset, length."""
        self._log = log
        self._packs = packs
        self.cache = cache
        self.chunks = ChunkMap(index, locator)
        self._memory = ChunkMemory()
        self._workers = Workers("content", 2 * REQUESTS)
        self._flights = Flights(self._memory, self._workers, log)
        self.bringer = Bringer(packs, cache, self._memory, self._flights, self.chunks, self.pack_map)
        self._flights.bring = self.bringer.bring
        self._flights.recovered = self._disk_is_back
        self._verified = self.bringer.verified
        self._companions = self.bringer.companions
        self._unused = self._companions.unused
        self.prefetcher = Prefetcher(self.chunks, self._flights)
        self.neighbours = Neighbours(
            self.chunks,
            self._flights,
            self._companions,
            self.pack_map,
            self.expects,
            self._workers.submit,
        )
        self._companions.on_used = self.neighbours.reached
        self._companions.is_here = self.expects
        self.bringer.on_miss.append(self.neighbours.missed)
        self._companions.is_wanted = lambda: self.neighbours.free_bytes() < LEAST_BYTES
        self._pack_map: PackMap | None = None
        self._mapping = Lock()
        self._reads: dict[Read, None] = {}
        self._closed = False
        self._watcher_sleeps = False
        self._watched = Condition()
        self._workers.submit(self._take_care)
        Thread(target=self._watch, name="content watch", daemon=True).start()

    @property
    def demand_waiting(self) -> int:
        """Reads that wait for a disk or a store now."""
        return len(self._reads)

    def counters(self) -> dict[str, Any]:
        """What came from where since the start; keys may be added."""
        return {
            **asdict(self.bringer.counters),
            "companion_bytes": self._companions.brought_bytes,
            "companion_used_bytes": self._companions.used_bytes,
            "quarantined_chunks": self.cache.damaged_chunks,
            "cache_failure": self.cache.failure,
        }

    def has_seen(self, position: int) -> bool:
        """Whether the chunk at a place of the locator was on this host at some time since the start."""
        return bool(self._verified[position])

    def expects(self, position: int) -> bool:
        """The same, or whether it is on its way."""
        return bool(self._verified[position]) or self._flights.has(position)

    def is_in_place(self, number: int) -> bool:
        """Whether a file stands on a disk of this host, whose kernel reads ahead by itself."""
        first = next(iter(self.chunks.file(number)), None)
        file = None if first is None else self.cache.open(first.pack)
        return file is not None and file.original

    def unseen(self, number: int, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
        """Chunks in ranges (offset, length) of a file that nobody has asked for yet, for `prefetch_all`."""
        file = self.chunks.file(number)
        size = file.chunk_bytes
        for offset, length in ranges:
            end = min(offset + length, file.size_bytes)
            for place in range(offset // size, -(-end // size)):
                chunk = file[place]
                if chunk is not None and not self.expects(chunk.position):
                    yield number, place * size, chunk.size_bytes

    def pack_map(self) -> PackMap:
        """Where in packs the image's chunks are; the first who asks waits until it is made."""
        with self._mapping:
            if self._pack_map is None:
                self._pack_map = PackMap(self.chunks.locator)
            return self._pack_map

    def at_hand(self, number: int, offset: int, length: int) -> Content | None:
        """These bytes, less only at the end of the file; None when that means to wait."""
        found = self.peek(number, offset, length)
        if found and self.observer is not None:
            self.observer(number, offset, length)
        return found

    def peek(self, number: int, offset: int, length: int) -> Content | None:
        """The same for ourselves: nobody is told that it was read."""
        file = self.chunks.file(number)
        end = min(offset + length, file.size_bytes)
        if offset >= end:
            return b""
        size = file.chunk_bytes
        first, last = offset // size, (end - 1) // size
        if first == last:
            found = self._part(file[first], offset - first * size, end - first * size)
        else:
            chunks = [file[place] for place in range(first, last + 1)]
            found = self._stretch(chunks, offset - first * size, end - offset)
            if found is None:
                found = self._parts(chunks, offset - first * size, end - first * size, size)
        return found

    def read(self, number: int, offset: int, length: int) -> Content:
        """These bytes, less only at the end of the file; waits, with one deadline over everything."""
        answered = Event()
        outcomes: list[Outcome] = []

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        self.read_later(number, offset, length, done)
        answered.wait()
        outcome = outcomes[0]
        if isinstance(outcome, ColdstartError):
            raise outcome.with_traceback(None)
        return outcome

    def read_later(self, number: int, offset: int, length: int, done: Done) -> None:
        """The same without waiting: `done` gets the bytes or the error, in a thread of the reader, once."""
        if self.observer is not None:
            self.observer(number, offset, length)
        file = self.chunks.file(number)
        size = file.chunk_bytes
        end = min(offset + length, file.size_bytes)
        parts: list[tuple[PlacedChunk | None, int, int]] = [
            (file[place], max(offset - place * size, 0), min(end - place * size, size))
            for place in range(offset // size, -(-end // size))
        ]
        chunks = [chunk for chunk, _, _ in parts if chunk is not None]

        def forget(outcome: Outcome) -> None:
            self._reads.pop(read, None)
            done(outcome)

        read = Read(parts, forget, time.monotonic() + READ_SECONDS)
        if not chunks:
            read.finish()
            return
        self._reads[read] = None
        if self._watcher_sleeps:
            with self._watched:
                self._watched.notify()
        for chunk in chunks:
            if self._unused[chunk.position]:
                self._companions.used(chunk)
        self._flights.join(chunks, read, deadline=read.deadline, origin=number)

    def prefetch(
        self, number: int, offset: int, length: int, *, into: Callable[[int, Content], None] | None = None
    ) -> Prefetched:
        """Bring a range of a file into the cache; `into` gets its verified pieces, each with its offset.

        The pieces come in any order, in several threads at once.
        """
        hand: Hand | None = None if into is None else lambda _, place, data: into(place, data)
        return self.prefetch_all([(number, offset, length)], into=hand)

    def prefetch_all(
        self,
        ranges: Iterable[tuple[int, int, int]],
        *,
        into: Hand | None = None,
        stop: Callable[[], bool] = lambda: False,
        most_bytes: int = LARGEST_BYTES,
    ) -> Prefetched:
        """Bring ranges (inode number, offset, length) into the cache, in this order, neighbours together."""
        return self.prefetcher.run(ranges, into=into, stop=stop, most_bytes=most_bytes)

    def was_read(self, number: int, offset: int, length: int) -> None:
        """Hear of a range that the kernel had already, so that nobody asked for it here."""
        if self.observer is not None:
            self.observer(number, offset, length)
        file = self.chunks.file(number)
        for place in range(offset // file.chunk_bytes, -(-(offset + length) // file.chunk_bytes)):
            chunk = file[place]
            if chunk is not None and self._unused[chunk.position]:
                self._companions.used(chunk)

    def forget(self, chunk: PlacedChunk) -> None:
        """Look for a chunk in the cache, or fetch it, also where it is in memory."""
        self._memory.forget(chunk.position)

    def settle(self) -> None:
        """Wait until the cache has what is on its way into it."""
        self._flights.settle()

    def close(self) -> None:
        """End the threads; reads that wait fail."""
        self._closed = True
        with self._watched:
            self._watched.notify()
        for read in list(self._reads):
            read.finish(BusyError("image is closed"))
        self._packs.close()
        self._workers.close(_CLOSING_SECONDS)
        self.cache.close_all()
        self.chunks.close()

    def _part(self, chunk: PlacedChunk | None, begin: int, end: int) -> Content | None:
        if chunk is None:
            return bytes(end - begin)
        position = chunk.position
        if self._unused[position]:
            self._companions.used(chunk)
        held = self._memory.get(position)
        if held is not None:
            return memoryview(held)[begin:end]
        file = self.cache.opened(chunk.pack)
        if file is None or self.bringer.cache_hangs or not (generation := file.current()):
            return None
        if chunk.raw and self._verified[position] == generation:
            found = file.read_now(chunk.offset + begin, end - begin)
            return found if file.current() == generation else None
        data = self._proven(file, chunk, generation)
        return None if data is None else memoryview(data)[begin:end]

    def _proven(self, file: PackFile, chunk: PlacedChunk, generation: int) -> Content | None:
        """A chunk that is in memory, and not verified yet or stored compressed."""
        if chunk.size_bytes > _VERIFIED_AT_HAND_BYTES:
            return None
        stored = file.read_now(chunk.offset, chunk.end - chunk.offset)
        if stored is None or (not file.original and is_blank(memoryview(stored))):
            return None
        try:
            data = decoded_chunk(chunk, stored)
        except ColdstartError:  # who waits for it hears what is wrong
            return None
        if self._verified[chunk.position] != generation:
            self._verified[chunk.position] = generation
            self.bringer.count_found(file, {chunk.position: data})
        if not chunk.raw:
            self._memory.retain(chunk.position, data)
        return data

    def _stretch(self, chunks: list[PlacedChunk | None], begin: int, length: int) -> Content | None:
        """Chunks that stand side by side in one pack and are verified, in one call of the system."""
        start = chunks[0]
        if start is None:
            return None
        file = self.cache.opened(start.pack)
        if file is None or self.bringer.cache_hangs or not (generation := file.current()):
            return None
        offset = start.offset
        for chunk in chunks:
            if (
                chunk is None
                or chunk.offset != offset
                or not chunk.raw
                or self._verified[chunk.position] != generation
                or chunk.pack is not start.pack
            ):
                return None
            offset = chunk.end
        found = file.read_now(start.offset + begin, length)
        return found if file.current() == generation else None

    def _parts(self, chunks: list[PlacedChunk | None], begin: int, end: int, size: int) -> Content | None:
        parts: list[Content] = []
        # threads verify side by side, while the caller would keep everybody waiting
        if sum(map(self._is_unproven, chunks)) * size > _VERIFIED_AT_HAND_BYTES:
            return None
        for place, chunk in enumerate(chunks):
            part = self._part(chunk, max(begin - place * size, 0), min(end - place * size, size))
            if part is None:
                return None
            parts.append(part)
        return b"".join(parts)

    def _take_care(self) -> None:
        """What is of no hurry: lease what is here of the image, remove what nobody needs."""
        with suppress(ColdstartError, OSError, ValueError):  # closed before it began
            self.cache.lease(self.chunks.locator.packs)
            for orphan in sweep(self.cache.folder):
                self._log(f"removed from the cache, nobody reads it any more: {orphan}")

    def _is_unproven(self, chunk: PlacedChunk | None) -> bool:
        file = None if chunk is None else self.cache.opened(chunk.pack)
        return file is not None and chunk is not None and self._verified[chunk.position] != file.generation

    def _watch(self) -> None:
        """Keep the deadlines, which nobody else does when a disk or a server hangs."""
        while not self._closed:
            with self._watched:
                self._watcher_sleeps = not self._flights.any
                # who begins a read between the two lines is seen the next time
                self._watched.wait(
                    _IDLE_SECONDS if self._watcher_sleeps and not self._reads else _WATCH_SECONDS
                )
                self._watcher_sleeps = False
            now = time.monotonic()
            for read in [read for read in list(self._reads) if read.deadline < now]:
                read.finish(BusyError(f"no answer in {READ_SECONDS:g} s"))
            if self._flights.give_up(DISK_SECONDS):
                if not self.bringer.cache_hangs:
                    folder = self.cache.folder
                    self._log(f"cache has not answered for {DISK_SECONDS:g} s, going around it: {folder}")
                self.bringer.cache_hangs = True

    def _disk_is_back(self) -> None:
        if self.bringer.cache_hangs:
            self.bringer.cache_hangs = False
            self._log(f"cache answers again: {self.cache.folder}")
