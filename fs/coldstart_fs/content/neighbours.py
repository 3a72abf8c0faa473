"""What stands beside a chunk that somebody waits for: brought with it where the link gives that for free.

A request over a long link costs its round trip, in which the link could carry a megabyte: so much is brought
around each miss, in a second request beside the one that is waited for. Next door that is nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock

from coldstart_fs.content.chunks import ChunkMap, PlacedChunk
from coldstart_fs.content.fetch import Outcome, Run
from coldstart_fs.content.flights import Flights
from coldstart_fs.content.pack_map import PackMap

LEAST_BYTES = 128 << 10
"""What is not worth a request of its own."""
LARGEST_BYTES = 1 << 20
MOST_REQUESTS = 4
"""On their way at once: more would only be in the way of who waits."""
_GAP_BYTES = 32 << 10
_REQUEST_SECONDS = 30.0
# how many places of an image are read at the same time
_MOST_WINDOWS = 16
# a start reads forward more often than backward
_BEFORE_SHARE = 4


@dataclass(slots=True)
class _Window:
    """What was brought around misses in one place of a pack."""

    begin: int
    end: int
    size_bytes: int


class Windows:
    """How much to bring around each miss; no input or output of its own."""

    def __init__(self) -> None:
        self._packs: dict[bytes, list[_Window]] = {}

    def around(self, pack: bytes, begin: int, end: int, free_bytes: int) -> tuple[int, int]:
        """The range to have around a miss: twice as much as before where the last one was next to it."""
        windows = self._packs.setdefault(pack, [])
        size_bytes = min(free_bytes, LARGEST_BYTES)
        for window in windows:
            if window.begin - window.size_bytes <= end and begin <= window.end + window.size_bytes:
                size_bytes = min(max(size_bytes, 2 * window.size_bytes), LARGEST_BYTES)
                windows.remove(window)
                break
        first = max(0, begin - size_bytes // _BEFORE_SHARE)
        found = _Window(first, first + max(size_bytes, end - first), size_bytes)
        windows.insert(0, found)
        del windows[_MOST_WINDOWS:]
        return found.begin, found.end


class Neighbours:
    """Thread-safe."""

    def __init__(
        self,
        chunks: ChunkMap,
        flights: Flights,
        pack_map: Callable[[], PackMap],
        is_here: Callable[[int], bool],
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        self.brought_bytes = 0
        """Of chunks that nobody had asked for."""
        self.free_bytes: Callable[[], int] = lambda: 0
        """How much the link gives for free, as `tiers.link.Link` has it."""
        self._chunks = chunks
        self._flights = flights
        self._pack_map = pack_map
        self._is_here = is_here
        self._submit = submit
        self._windows = Windows()
        self._running = 0
        self._lock = Lock()

    def missed(self, run: Run) -> None:
        """Hear of a request that somebody waits for, and send another one for what stands beside."""
        free_bytes = self.free_bytes()
        if free_bytes < LEAST_BYTES:
            return
        with self._lock:
            if self._running >= MOST_REQUESTS:
                return
            self._running += 1
            begin, end = self._windows.around(run.pack, run.offset, run.end, free_bytes)
        self._submit(partial(self._bring, run, begin, end))

    def _bring(self, run: Run, begin: int, end: int) -> None:
        wanted = {chunk.position for chunk in run.chunks}
        chunks = [
            self._chunks.placed(position)
            for position in self._pack_map().within(run.pack, begin, end)
            if position not in wanted and not self._is_here(position)
        ]
        if not chunks:
            self.ended()
            return
        request = _Request(self, chunks)
        self._flights.join(
            chunks,
            request,
            deadline=time.monotonic() + _REQUEST_SECONDS,
            demand=False,
            largest_bytes=2 * LARGEST_BYTES,
            gap_bytes=_GAP_BYTES,
        )

    def ended(self, brought_bytes: int = 0) -> None:
        with self._lock:
            self._running -= 1
            self.brought_bytes += brought_bytes


class _Request:
    """Waits until all of its chunks have landed; what fails is asked for again by who needs it."""

    def __init__(self, neighbours: Neighbours, chunks: list[PlacedChunk]) -> None:
        self._neighbours = neighbours
        self._missing = {chunk.position for chunk in chunks}
        self._brought_bytes = 0
        self._lock = Lock()

    def landed(self, outcomes: Mapping[int, Outcome]) -> None:
        with self._lock:
            mine = self._missing & outcomes.keys()
            self._missing -= mine
            self._brought_bytes += sum(
                len(data) for position in mine if not isinstance(data := outcomes[position], Exception)
            )
            is_last = bool(mine) and not self._missing
        if is_last:
            self._neighbours.ended(self._brought_bytes)
