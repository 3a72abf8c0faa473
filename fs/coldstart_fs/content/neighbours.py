"""What stands beside a chunk that somebody waits for: brought with it where the link gives that for free.

A request over a long link costs its round trip, in which the link could carry a megabyte: so much is brought
around each miss, in a second request beside the one that is waited for. Next door that is nothing at first;
where misses of small files follow each other in a pack (it was written in the order of imports, maybe), what
comes next is brought all the same, and on from there as long as it is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock

from coldstart_cli.errors import DataError
from coldstart_fs.content.chunks import ChunkMap, PlacedChunk
from coldstart_fs.content.companions import Companions, Kind
from coldstart_fs.content.fetch import Outcome, Run
from coldstart_fs.content.flights import Flights
from coldstart_fs.content.pack_map import PackMap
from coldstart_fs.content.windows import LARGEST_BYTES, Window, Windows

LEAST_BYTES = 128 << 10
"""What is not worth a request of its own."""
NEAR_BYTES = 96 << 10
"""What a request over a short link has along at most: round trips cost more than these bytes."""
MOST_REQUESTS = 4
"""On their way at once: more would only be in the way of who waits."""
_GAP_BYTES = 32 << 10
_NEAR = Kind("neighbours", beginning_bytes=4 << 20)
_FAR = Kind("far neighbours", beginning_bytes=64 << 20, is_free=True)
# next door a window that grew further would have more in vain than it saves
_GROWN_BYTES = 4 * NEAR_BYTES
_REQUEST_SECONDS = 30.0
_MOST_MIDDLES = 64


class Neighbours:
    """Thread-safe."""

    def __init__(
        self,
        chunks: ChunkMap,
        flights: Flights,
        companions: Companions,
        pack_map: Callable[[], PackMap],
        is_here: Callable[[int], bool],
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        self.brought_bytes = 0
        """Of chunks that nobody had asked for."""
        self.running = 0
        """Requests of its own that are on their way."""
        self.free_bytes: Callable[[], int] = lambda: 0
        """How much the link gives for free, as `tiers.link.Link` has it."""
        self._chunks = chunks
        self._flights = flights
        self._pack_map = pack_map
        self._is_here = is_here
        self._submit = submit
        self._companions = companions
        self._largest_bytes = chunks.index.chunk_bytes
        self._windows = Windows()
        self._middles: dict[int, Window] = {}
        """By position: the window whose middle that chunk is. Whoever reads it will read on."""
        self._lock = Lock()

    def missed(self, run: Run) -> None:
        """Hear of a request that somebody waits for, and send another one for what stands beside."""
        free_bytes = self.free_bytes()
        is_far = free_bytes >= LEAST_BYTES
        if not is_far and any(chunk.size_bytes == self._largest_bytes for chunk in run.chunks):
            return
        first_bytes, largest_bytes = (free_bytes, LARGEST_BYTES) if is_far else (NEAR_BYTES, _GROWN_BYTES)
        with self._lock:
            window = self._windows.around(run.pack, run.offset, run.end, first_bytes, largest_bytes)
            # next door a request has along what is worth it the first time
            is_brought = not is_far and window.size_bytes <= NEAR_BYTES
            if is_brought or self.running >= MOST_REQUESTS:
                return
            self.running += 1
        wanted = {chunk.position for chunk in run.chunks}
        self._submit(partial(self._bring, window, wanted, None if is_far else run.offset))

    def reached(self, position: int) -> None:
        """Hear that a chunk which was brought is read: what comes after its window is next."""
        if position not in self._middles:  # without the lock: the request loop asks for each chunk
            return
        with self._lock:
            window = self._middles.pop(position, None)
            if window is None or self.running >= MOST_REQUESTS:
                return
            self.running += 1
            following = self._windows.after(window)
        self._submit(partial(self._bring, following, set(), (window.begin + window.end) // 2))

    def _bring(self, window: Window, wanted: set[int], if_read_to: int | None) -> None:
        chunks: list[PlacedChunk] = []
        kind = _FAR if self.free_bytes() >= LEAST_BYTES else _NEAR
        with suppress(DataError):  # who reads those hears what is wrong
            if if_read_to is None or self._is_read(window.pack, if_read_to):
                chunks = self._missing(window, wanted, kind)
        if not chunks:
            self.ended()
            return
        self._companions.brought(chunks, kind)
        with self._lock:
            self._middles[chunks[len(chunks) // 2].position] = window
            if len(self._middles) > _MOST_MIDDLES:
                del self._middles[next(iter(self._middles))]
        self._flights.join(
            chunks,
            _Request(self, chunks),
            deadline=time.monotonic() + _REQUEST_SECONDS,
            demand=False,
            largest_bytes=2 * LARGEST_BYTES,
            gap_bytes=_GAP_BYTES,
        )

    def _is_read(self, pack: bytes, end: int) -> bool:
        """Whether somebody read more than half of what stands right before a place in a pack."""
        balance = 0
        for position in self._pack_map().within(pack, end - NEAR_BYTES, end):
            is_read = self._is_here(position) and not self._companions.unused[position]
            size_bytes = self._chunks.placed(position).size_bytes
            balance += size_bytes if is_read else -size_bytes
        return balance > 0

    def _missing(self, window: Window, wanted: set[int], kind: Kind) -> list[PlacedChunk]:
        """What of a window is not here, as far as there is room for it; next door only small files."""
        left_bytes = self._companions.room_bytes(kind)
        found = []
        for position in self._pack_map().within(window.pack, window.begin, window.end):
            if position in wanted or self._is_here(position):
                continue
            chunk = self._chunks.placed(position)
            if kind.is_free or chunk.size_bytes < self._largest_bytes:
                left_bytes -= chunk.end - chunk.offset
                if left_bytes < 0:
                    break
                found.append(chunk)
        return found

    def ended(self, brought_bytes: int = 0) -> None:
        with self._lock:
            self.running -= 1
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
