"""Chunks for readers: from the cache, else from the store; verified on every fill, fetched once for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock

from coldstart_cli.errors import ColdstartError, DataError
from coldstart_fs.cache import ChunkCache
from coldstart_fs.chunk import decode_chunk, verify
from coldstart_fs.locator import Locator
from coldstart_fs.names import digest_text, pack_key
from coldstart_fs.store import Store

_WAIT_SECONDS = 60.0


@dataclass
class _Flight:
    """One fetch in progress: its leader sets the outcome and wakes everybody, whatever happened."""

    done: Event = field(default_factory=Event)
    data: bytes | None = None
    failure: Exception | None = None


@dataclass
class FetchCounters:
    """What was served from where since the server started."""

    cache_chunks: int = 0
    store_chunks: int = 0
    store_bytes: int = 0
    failures: int = 0


class ChunkSource:
    """Reads chunks of one image. Thread-safe; errors are never remembered."""

    def __init__(self, store: Store, locator: Locator, cache: ChunkCache, log: Callable[[str], None]) -> None:
        self.cache = cache
        self.counters = FetchCounters()
        self._store = store
        self._locator = locator
        self._log = log
        self._flights: dict[bytes, _Flight] = {}
        self._lock = Lock()

    def read(self, digest: bytes) -> bytes:
        """A whole chunk with the right digest, or an error; concurrent readers share one fetch."""
        with self._lock:
            flight = self._flights.get(digest)
            leader = flight is None
            if flight is None:
                flight = self._flights[digest] = _Flight()
        if leader:
            try:
                flight.data = self._load(digest)
            except Exception as error:  # noqa: BLE001 - every waiter must hear of it, whatever it is
                flight.failure = error
            finally:
                with self._lock:
                    del self._flights[digest]
                flight.done.set()
        elif not flight.done.wait(_WAIT_SECONDS):
            raise ColdstartError(f"chunk did not arrive in {_WAIT_SECONDS:g} s: {digest_text(digest)}")
        if flight.failure is not None:
            raise flight.failure
        assert flight.data is not None
        return flight.data

    def _load(self, digest: bytes) -> bytes:
        damaged = self.cache.quarantined
        if (data := self.cache.load(digest)) is not None:
            self.counters.cache_chunks += 1
            return data
        if self.cache.quarantined > damaged:
            self._log(f"cached chunk was damaged, fetching it again: {digest_text(digest)}")
        try:
            return self._fetch(digest)
        except Exception:
            self.counters.failures += 1
            raise

    def _fetch(self, digest: bytes) -> bytes:
        location = self._locator.find(digest)
        if location is None:
            raise DataError(f"store does not know where this chunk is: {digest_text(digest)}")
        stored = self._store.get_range(pack_key(location.pack), location.offset, location.stored_bytes)
        try:
            data = decode_chunk(location, stored)
            verify(digest, data)
        except DataError as error:
            raise DataError(
                f"{error.message}: pack {digest_text(location.pack)}, offset {location.offset}",
                hint=error.hint,
            ) from error
        self.counters.store_chunks += 1
        self.counters.store_bytes += len(stored)
        self.cache.put(digest, data)
        return data
