"""Everything of an image into the cache while it is served: at once, or when lazy turns out to lose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from threading import Event, Lock, Thread
from typing import Any

from coldstart_fs.content.chunks import PlacedChunk
from coldstart_fs.content.fetch import Run
from coldstart_fs.content.fetch_mode import FetchMode
from coldstart_fs.content.lazy_loss import Figures, LazyLoss, Way
from coldstart_fs.content.prefetch import LARGEST_BYTES, SMALLEST_BYTES
from coldstart_fs.content.reader import ImageReader
from coldstart_fs.tiers.link import Link

_LOOK_SECONDS = 0.25
# a reader may come to wait for all of a request
_REQUEST_SECONDS = 0.05
_DEADLINE_SECONDS = 60.0
# what is chosen at a time, so that it follows the readers
_STEP_REQUESTS = 4
_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 60.0
# the blocks of a file system: what is larger than two of them has one to itself
_SURE_BYTES = 8 << 10


class WholeFetch:
    """One image's, in a thread of its own. Readers go first; what goes wrong is logged and costs no read."""

    def __init__(
        self, reader: ImageReader, mode: FetchMode, link: Callable[[], Link], log: Callable[[str], None]
    ) -> None:
        self.state = "lazy"
        self.reason: str | None = None
        self._reader = reader
        self._mode = mode
        self._link = link
        self._log = log
        self._misses = 0
        self._last_miss: tuple[bytes, int] | None = None
        self._missed_lately = Event()
        self._stopped = Event()
        self._lock = Lock()
        self._brought_bytes = 0
        self._missing_bytes = 0
        self._seconds = 0.0
        self._thread = Thread(target=self._run, name="fetch", daemon=True)

    def start(self) -> None:
        self._reader.bringer.on_miss.append(self._missed)
        if self._mode is not FetchMode.LAZY:
            self._thread.start()

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped.set()
        self._missed_lately.set()

    def status(self) -> dict[str, Any]:
        """For the counters of the mount."""
        return {
            "mode": self._mode.value,
            "state": self.state,
            "reason": self.reason,
            "missing_bytes": self._missing_bytes,
            "brought_bytes": self._brought_bytes,
            "seconds": round(self._seconds, 3),
            "misses": self._misses,
            "waited_seconds": round(self._reader.bringer.slots.waited_seconds, 3),
        }

    def _missed(self, run: Run) -> None:
        with self._lock:
            self._misses += 1
            self._last_miss = (run.pack, run.end)
        self._missed_lately.set()

    def _run(self) -> None:
        try:
            if self._mode is FetchMode.ALL:
                self.reason = "asked for"
            else:
                self._await_loss()
            if not self._stopped.is_set():
                self._fetch()
        except Exception as error:  # noqa: BLE001 - it is never worth a mount
            if not self._stopped.is_set():
                self.state = "failed"
                self._log(f"fetching everything failed: {error}")

    def _await_loss(self) -> None:
        """Until lazy loses. A mount that nobody waits for costs nothing."""
        loss = LazyLoss()
        bringer = self._reader.bringer
        image_bytes: int | None = None
        while not self._stopped.is_set():
            self._missed_lately.wait()
            self._missed_lately.clear()
            link = self._link()
            round_trip, rate = link.round_trip_seconds, link.bytes_per_second
            if round_trip is not None and rate is not None:
                if image_bytes is None:
                    image_bytes = sum(record[2] for record in self._reader.chunks.locator.table())
                missing_bytes = image_bytes - bringer.counters.fetched_bytes - bringer.counters.cache_bytes
                now = Figures(time.monotonic(), bringer.slots.waited_seconds, self._misses)
                self.reason = loss.saw(now, Way(round_trip, rate, max(0, missing_bytes)))
                if self.reason is not None:
                    self._log(f"lazy loses, fetching everything in the background: {self.reason}")
                    return
            self._stopped.wait(_LOOK_SECONDS)

    def _fetch(self) -> None:
        began = time.monotonic()
        for attempt in count():
            missing = Missing(self._reader)
            self._missing_bytes = missing.size_bytes
            if not missing.chunks:
                self.state = "whole"
                self._log(f"everything is in the cache: {self._brought_bytes} bytes in {self._seconds:.1f} s")
                return
            if (refusal := self._refusal()) is not None:
                self.state, self.reason = "refused", refusal
                self._log(f"not everything is fetched: {refusal}")
                return
            self.state = "fetching"
            self._bring(missing)
            self._seconds = time.monotonic() - began
            # what landed is being written; a store that is down may come back
            if self._stopped.wait(min(_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS)):
                return

    def _refusal(self) -> str | None:
        """Why the cache cannot take what is missing; nothing of other images goes for it."""
        if (failure := self._reader.cache.failure) is not None:
            return failure
        spare_bytes = self._reader.cache.spare_bytes()
        if spare_bytes >= self._missing_bytes:
            return None
        return f"{self._missing_bytes} bytes are missing, and the cache may take {spare_bytes} more"

    def _bring(self, missing: Missing) -> None:
        rate = self._link().bytes_per_second or LARGEST_BYTES
        request_bytes = max(SMALLEST_BYTES, min(int(rate * _REQUEST_SECONDS), LARGEST_BYTES))
        done = self._reader.prefetcher.bring(
            missing.in_order(self._take_place, _STEP_REQUESTS * request_bytes),
            on_landed=self._landed,
            request_seconds=_DEADLINE_SECONDS,
            most_bytes=request_bytes,
            step_bytes=_STEP_REQUESTS * request_bytes,
            yielding=True,
            stop=lambda: self._stopped.is_set() or self._reader.cache.failure is not None,
        )
        if done.failure is not None:
            self.reason = done.failure.message

    def _landed(self, size_bytes: int) -> None:
        with self._lock:
            self._brought_bytes += size_bytes

    def _take_place(self) -> tuple[bytes, int] | None:
        """Where a reader missed something last, the first time that it is asked for."""
        with self._lock:
            place, self._last_miss = self._last_miss, None
        return place


class Missing:
    """The chunks of an image that the cache lacks, as far as its files tell."""

    def __init__(self, reader: ImageReader) -> None:
        self.chunks = 0
        self.size_bytes = 0
        self._reader = reader
        self._map = reader.pack_map()
        self._wanted = bytearray(reader.chunks.locator.chunk_count)
        self._left: dict[bytes, int] = {}
        for pack in self._map.packs:
            self._look_at(pack)

    def _look_at(self, pack: bytes) -> None:
        file = self._reader.cache.open(pack)
        if file is not None and file.original:
            return
        for position in self._map.onwards(pack):
            if self._reader.has_seen(position):
                continue
            place = self._reader.chunks.locator.location(position)
            size_bytes = place.stored_bytes
            if file is None or size_bytes < _SURE_BYTES or not file.holds_all(place.offset, size_bytes):
                self._wanted[position] = 1
                self._left[pack] = self._left.get(pack, 0) + 1
                self.chunks += 1
                self.size_bytes += size_bytes

    def in_order(
        self, take_place: Callable[[], tuple[bytes, int] | None], step_bytes: int
    ) -> Iterator[PlacedChunk]:
        """All of them: on from where somebody missed something, in steps, else pack by pack."""
        while self._left:
            place = take_place()
            if place is None or place[0] not in self._left:
                place = (next(iter(self._left)), 0)
            pack, taken_bytes = place[0], 0
            for position in self._map.onwards(*place):
                if not self._wanted[position]:
                    continue
                self._wanted[position] = 0
                self._left[pack] -= 1
                if not self._reader.has_seen(position):  # else a reader was faster
                    chunk = self._reader.chunks.placed(position)
                    taken_bytes += chunk.end - chunk.offset
                    yield chunk
                if taken_bytes >= step_bytes:
                    break
            if not self._left[pack]:
                del self._left[pack]
