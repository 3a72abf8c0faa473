"""A limit on how fast something goes."""

from __future__ import annotations

import time
from threading import Lock


class Pace:
    """So many bytes a second, over all threads."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = time.monotonic()
        self._lock = Lock()

    def __call__(self, size_bytes: int) -> None:
        """Wait until this many bytes may go."""
        with self._lock:
            begin = max(self._free_at, time.monotonic())
            self._free_at = begin + size_bytes / self._bytes_per_second
        time.sleep(max(0.0, begin - time.monotonic()))
