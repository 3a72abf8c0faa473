"""Verified chunks in memory: those that the cache lacks yet, and the latest of those that it never gets."""

from __future__ import annotations

from threading import Lock

from coldstart_fs.content.fetch import Content

_RECENT_BYTES = 32 << 20
_UNWRITTEN_BYTES = 128 << 20


class ChunkMemory:
    """Chunks by their position in the locator. Thread-safe."""

    def __init__(self) -> None:
        self._unwritten: dict[int, Content] = {}
        self._unwritten_bytes = 0
        self._recent: dict[int, Content] = {}
        self._recent_bytes = 0
        self._lock = Lock()

    def get(self, position: int) -> Content | None:
        data = self._unwritten.get(position)
        return self._recent.get(position) if data is None else data

    @property
    def is_crowded(self) -> bool:
        """Whether more waits for the cache's disk than is good."""
        return self._unwritten_bytes > _UNWRITTEN_BYTES

    def hold(self, position: int, data: Content) -> None:
        """Keep a chunk until `release` or `retain`."""
        with self._lock:
            self._drop(position)
            self._unwritten[position] = data
            self._unwritten_bytes += len(data)

    def release(self, position: int) -> None:
        """The chunk is in the cache now."""
        with self._lock:
            self._drop(position)

    def retain(self, position: int, data: Content | None = None) -> None:
        """Keep a chunk for a while: it is nowhere else, or would have to be decoded again."""
        held = self._unwritten.get(position)
        data = held if data is None else data
        if data is None:
            return
        # a view would keep all that came with it
        kept = data if isinstance(data, bytes | bytearray) else bytes(data)
        with self._lock:
            self._recent_bytes += len(kept) - len(self._recent.pop(position, b""))
            self._recent[position] = kept
            while self._recent_bytes > _RECENT_BYTES and len(self._recent) > 1:
                self._recent_bytes -= len(self._recent.pop(next(iter(self._recent))))
            self._drop(position)

    def forget(self, position: int) -> None:
        """Keep a chunk no longer, unless the cache is to have it yet."""
        with self._lock:
            self._recent_bytes -= len(self._recent.pop(position, b""))

    def _drop(self, position: int) -> None:
        self._unwritten_bytes -= len(self._unwritten.pop(position, b""))
