"""What the way to a tier is like, measured on what was fetched anyway."""

from __future__ import annotations

from collections import deque
from threading import Lock

_SAMPLES = 32
_LEAST_WAITS = 8
_LEAST_RATES = 3
# less than that comes with the first packets, and says nothing about the rate
_LEAST_BODY_BYTES = 64 << 10
# a network next door, the server, and threads of a busy host: nothing of it is the link's length
_NEAR_SECONDS = 0.01


class Link:
    """Round trip and rate, as they were lately. Thread-safe."""

    def __init__(self) -> None:
        self._waits: deque[float] = deque(maxlen=_SAMPLES)
        self._rates: deque[float] = deque(maxlen=_SAMPLES)
        self._lock = Lock()

    def heard(self, wait_seconds: float, total_seconds: float, size_bytes: int) -> None:
        """Hear of an answer: its first byte came after `wait_seconds`, its last after `total_seconds`."""
        body_seconds = total_seconds - wait_seconds
        with self._lock:
            self._waits.append(wait_seconds)
            if size_bytes >= _LEAST_BODY_BYTES and body_seconds > 0:
                self._rates.append(size_bytes / body_seconds)

    @property
    def round_trip_seconds(self) -> float | None:
        """From a request to its first byte, where nothing else is in the way; None when not known yet."""
        return self._share(self._waits, 0.0, _LEAST_WAITS)

    @property
    def bytes_per_second(self) -> float | None:
        """What one request gets; None when not known yet."""
        return self._share(self._rates, 0.5, _LEAST_RATES)

    @property
    def free_bytes(self) -> int:
        """What a request may bring more than is wanted for no more time than its round trip costs anyway.

        None at all next door: there bytes cost more than round trips.
        """
        seconds, rate = self.round_trip_seconds, self.bytes_per_second
        if seconds is None or rate is None:
            return 0
        return int(max(0.0, seconds - _NEAR_SECONDS) * rate)

    def _share(self, samples: deque[float], share: float, least: int) -> float | None:
        with self._lock:
            if len(samples) < least:
                return None
            ordered = sorted(samples)
        return ordered[int(len(ordered) * share)]
