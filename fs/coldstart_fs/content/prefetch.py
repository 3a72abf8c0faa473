"""Ranges fetched before anybody asks for them: in few large requests, in parallel, with bounded memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Condition

from coldstart_cli.errors import ColdstartError
from coldstart_fs.content.chunks import ChunkMap, PlacedChunk
from coldstart_fs.content.fetch import Content, Outcome, Run, runs_of
from coldstart_fs.content.flights import Flights
from coldstart_fs.content.slots import PREFETCHES

Hand = Callable[[int, int, Content], None]
"""Gets inode number, offset and verified bytes."""
SMALLEST_BYTES = 1 << 20
_FIRST_BYTES = 4 << 20
LARGEST_BYTES = 16 << 20
# a reader who needs one chunk of a request waits for all of it
_LONG_SECONDS = 0.5
_SHORT_SECONDS = 0.15
# reading over a gap costs less than asking again
_GAP_BYTES = 32 << 10
# how much is looked at together to find neighbours
_WINDOW_BYTES = 64 << 20
_WINDOW_CHUNKS = 4096
_REQUEST_SECONDS = 60.0


@dataclass(frozen=True)
class Prefetched:
    """What a prefetch did, in bytes of chunks; what failed is counted, never raised."""

    done_bytes: int = 0
    failed_bytes: int = 0
    failure: ColdstartError | None = None
    """The first of them."""


@dataclass(slots=True)
class _Want:
    """A part of a file that is in one chunk."""

    number: int
    offset: int
    begin: int
    end: int


class Prefetcher:
    """Thread-safe; each run has its own requests on their way, and all share the slots for them."""

    def __init__(self, chunks: ChunkMap, flights: Flights) -> None:
        self._chunks = chunks
        self._flights = flights
        self._request_bytes = _FIRST_BYTES

    def run(
        self,
        ranges: Iterable[tuple[int, int, int]],
        *,
        into: Hand | None,
        stop: Callable[[], bool],
        most_bytes: int = LARGEST_BYTES,
    ) -> Prefetched:
        """Bring ranges, window by window, the first ones first."""
        batch = _Batch(into)
        window: dict[int, tuple[PlacedChunk, list[_Want]]] = {}
        window_bytes = 0
        for number, offset, length in ranges:
            if stop():
                break
            try:
                window_bytes += self._want(window, batch, number, offset, length)
            except ColdstartError:
                batch.failed_bytes += length
                continue
            while window_bytes >= _WINDOW_BYTES or len(window) >= _WINDOW_CHUNKS:
                self._bring(window, batch, stop, most_bytes)
                window, window_bytes = {}, 0
        self._bring(window, batch, stop, most_bytes)
        batch.wait(0)
        return batch.report()

    def bring(
        self,
        chunks: Iterable[PlacedChunk],
        *,
        on_landed: Callable[[int], None],
        request_seconds: float,
        most_bytes: int = LARGEST_BYTES,
        step_bytes: int = 1 << 62,
        stop: Callable[[], bool] = lambda: False,
        yielding: bool = False,
    ) -> Prefetched:
        """Bring chunks, given in the order of their packs; `on_landed` hears how many bytes are there.

        They are taken when requests can be sent for them, about `step_bytes` at a time.
        """
        batch = _Batch(lambda _, __, data: on_landed(len(data)), request_seconds, yielding=yielding)
        window: dict[int, tuple[PlacedChunk, list[_Want]]] = {}
        window_bytes = 0
        for chunk in chunks:
            if stop():
                break
            window[chunk.position] = (chunk, [_Want(0, 0, 0, chunk.size_bytes)])
            window_bytes += chunk.size_bytes
            if len(window) >= _WINDOW_CHUNKS or window_bytes >= step_bytes:
                self._bring(window, batch, stop, most_bytes)
                window, window_bytes = {}, 0
        self._bring(window, batch, stop, most_bytes)
        batch.wait(0)
        return batch.report()

    def _want(
        self,
        window: dict[int, tuple[PlacedChunk, list[_Want]]],
        batch: _Batch,
        number: int,
        offset: int,
        length: int,
    ) -> int:
        file = self._chunks.file(number)
        size = file.chunk_bytes
        end = min(offset + length, file.size_bytes)
        added = 0
        for place in range(offset // size, -(-end // size)):
            chunk = file[place]
            start = place * size
            begin, stop = max(offset - start, 0), min(end - start, size)
            want = _Want(number, start + begin, begin, stop)
            if chunk is None:
                batch.hand(want, bytes(stop))
                continue
            if chunk.position not in window:
                window[chunk.position] = (chunk, [])
                added += chunk.size_bytes
            window[chunk.position][1].append(want)
        return added

    def _bring(
        self,
        window: dict[int, tuple[PlacedChunk, list[_Want]]],
        batch: _Batch,
        stop: Callable[[], bool],
        most_bytes: int = LARGEST_BYTES,
    ) -> None:
        request_bytes = min(self._request_bytes, most_bytes)
        for run in _ordered([chunk for chunk, _ in window.values()], request_bytes):
            batch.wait(PREFETCHES)
            if stop():
                return
            wants = {chunk.position: window[chunk.position][1] for chunk in run.chunks}
            began = time.monotonic()
            waiter = _Request(batch, wants, partial(self._learn, began, run.length))
            batch.begin()
            self._flights.join(
                run.chunks,
                waiter,
                deadline=began + batch.request_seconds,
                demand=False,
                largest_bytes=LARGEST_BYTES,
                gap_bytes=_GAP_BYTES,
                yielding=batch.yielding,
            )

    def _learn(self, began: float, size_bytes: int) -> None:
        """Requests as large as the link carries in a moment."""
        seconds = time.monotonic() - began
        if seconds > _LONG_SECONDS:
            self._request_bytes = max(self._request_bytes // 2, SMALLEST_BYTES)
        elif seconds < _SHORT_SECONDS and size_bytes > self._request_bytes // 2:
            self._request_bytes = min(self._request_bytes * 2, LARGEST_BYTES)


def _ordered(chunks: list[PlacedChunk], largest_bytes: int) -> list[Run]:
    """Requests for these chunks, the one with the earliest of them first."""
    first = {chunk.position: number for number, chunk in enumerate(chunks)}
    chunks = sorted(chunks, key=lambda chunk: (chunk.pack, chunk.offset))
    runs = runs_of(chunks, largest_bytes=largest_bytes, gap_bytes=_GAP_BYTES)
    return sorted(runs, key=lambda run: min(first[chunk.position] for chunk in run.chunks))


class _Batch:
    """The requests of one prefetch, and what came of them."""

    def __init__(
        self, into: Hand | None, request_seconds: float = _REQUEST_SECONDS, *, yielding: bool = False
    ) -> None:
        self.yielding = yielding
        self.request_seconds = request_seconds
        self.done_bytes = 0
        self.failed_bytes = 0
        self.failure: ColdstartError | None = None
        self._into = into
        self._running = 0
        self._changed = Condition()

    def begin(self) -> None:
        with self._changed:
            self._running += 1

    def ended(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def wait(self, running: int) -> None:
        """Wait until no more than so many requests are running; their deadlines bound it."""
        with self._changed:
            while self._running > running:
                self._changed.wait()

    def hand(self, want: _Want, data: Content) -> None:
        with self._changed:
            self.done_bytes += want.end - want.begin
        if self._into is not None:
            self._into(want.number, want.offset, memoryview(data)[want.begin : want.end])

    def failed(self, want: _Want, failure: ColdstartError) -> None:
        with self._changed:
            self.failed_bytes += want.end - want.begin
            self.failure = self.failure or failure

    def report(self) -> Prefetched:
        return Prefetched(self.done_bytes, self.failed_bytes, self.failure)


class _Request:
    """Waits for one request's chunks and hands them over."""

    def __init__(self, batch: _Batch, wants: dict[int, list[_Want]], on_end: Callable[[], None]) -> None:
        self._batch = batch
        self._wants = wants
        self._on_end = on_end
        self._taking = Condition()

    def landed(self, outcomes: Mapping[int, Outcome]) -> None:
        with self._taking:
            mine = [
                (self._wants.pop(position), outcomes[position])
                for position in self._wants.keys() & outcomes.keys()
            ]
            over = bool(mine) and not self._wants
        try:
            for wants, outcome in mine:
                for want in wants:
                    if isinstance(outcome, ColdstartError):
                        self._batch.failed(want, outcome)
                    else:
                        self._batch.hand(want, outcome)
        finally:
            if over:
                self._on_end()
                self._batch.ended()
