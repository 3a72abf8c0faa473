"""How many requests are on their way: those that somebody waits for go first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

from coldstart_cli.errors import BusyError

REQUESTS = 32
PREFETCHES = 4
_MOST_PREFETCHES = 16
_PREFETCHED_BYTES = 64 << 20
_BESIDE_READERS_BYTES = 8 << 20


class RequestSlots:
    """Thread-safe. Prefetches take a share of the link, a smaller one while anybody waits."""

    def __init__(self) -> None:
        self._free = REQUESTS
        self._prefetching = 0
        self._prefetching_bytes = 0
        self._demanding = 0
        self._waited_seconds = 0.0
        self._waiting_since = 0.0
        self._changed = Condition()

    @property
    def waited_seconds(self) -> float:
        """For how long at least one reader has waited for a request, since the start."""
        with self._changed:
            now = time.monotonic() - self._waiting_since if self._demanding else 0.0
            return self._waited_seconds + now

    @contextmanager
    def demand(self, deadline: float) -> Iterator[None]:
        with self._changed:
            if not self._demanding:
                self._waiting_since = time.monotonic()
            self._demanding += 1
            free = self._changed.wait_for(lambda: self._free, max(0.0, deadline - time.monotonic()))
            if free:
                self._free -= 1
            else:
                self._left()
        if not free:
            raise BusyError("too many requests are on their way, and none ended in time")
        try:
            yield
        finally:
            with self._changed:
                self._left()
                self._free += 1
                self._changed.notify_all()

    def _left(self) -> None:
        self._demanding -= 1
        if not self._demanding:
            self._waited_seconds += time.monotonic() - self._waiting_since

    @contextmanager
    def prefetch(self, deadline: float, size_bytes: int, *, yielding: bool = False) -> Iterator[None]:
        """`yielding`: with all others before it, as what nobody may ever want."""

        def may_begin() -> bool:
            if not self._prefetching:
                return self._free > 0
            if self._demanding and yielding:
                return False
            most_bytes = _BESIDE_READERS_BYTES if self._demanding else _PREFETCHED_BYTES
            fits = self._prefetching_bytes + size_bytes <= most_bytes
            return self._free > 0 and self._prefetching < _MOST_PREFETCHES and fits

        with self._changed:
            if not self._changed.wait_for(may_begin, max(0.0, deadline - time.monotonic())):
                raise BusyError("others went first until the time was over")
            self._free -= 1
            self._prefetching += 1
            self._prefetching_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._prefetching -= 1
                self._prefetching_bytes -= size_bytes
                self._free += 1
                self._changed.notify_all()
