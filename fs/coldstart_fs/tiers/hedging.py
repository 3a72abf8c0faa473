"""When a second request is worth sending after a silent first one, and how many and large they may be."""

from __future__ import annotations

from collections import deque
from threading import Lock

SHARE = 0.02
_MOST_SAVED = 3.0
_SAVED_BYTES = 1 << 20
_MOST_SAVED_BYTES = 4 << 20
_LEAST_SECONDS = 0.02
_SAMPLES = 256
_LEAST_SAMPLES = 20
_RECOMPUTE_EVERY = 16


class HedgeBudget:
    """Hedges stay a small share of requests and of bytes, also when a tier is slow for all of them.

    A link that is full is silent to everybody: to ask for megabytes twice would make it worse. Thread-safe.
    """

    def __init__(self) -> None:
        self._saved = 1.0
        self._saved_bytes: float = _SAVED_BYTES
        self._lock = Lock()

    def asked(self, size_bytes: int = 0) -> None:
        with self._lock:
            self._save(SHARE, SHARE * size_bytes)

    def take(self, size_bytes: int = 0) -> bool:
        with self._lock:
            if self._saved < 1.0 or self._saved_bytes < size_bytes:
                return False
            self._saved -= 1.0
            self._saved_bytes -= size_bytes
            return True

    def give_back(self, size_bytes: int = 0) -> None:
        """The hedge could not be sent."""
        with self._lock:
            self._save(1.0, size_bytes)

    def _save(self, requests: float, size_bytes: float) -> None:
        self._saved = min(_MOST_SAVED, self._saved + requests)
        self._saved_bytes = min(_MOST_SAVED_BYTES, self._saved_bytes + size_bytes)


class Silences:
    """How long a tier lets its readers wait for the first byte, lately. Thread-safe."""

    def __init__(self) -> None:
        self._waits: deque[float] = deque(maxlen=_SAMPLES)
        self._new = 0
        self._patience: float | None = None
        self._lock = Lock()

    def heard_after(self, seconds: float) -> None:
        with self._lock:
            self._waits.append(seconds)
            self._new += 1
            if len(self._waits) >= _LEAST_SAMPLES and (
                self._patience is None or self._new >= _RECOMPUTE_EVERY
            ):
                self._new = 0
                ordered = sorted(self._waits)
                self._patience = max(_LEAST_SECONDS, ordered[len(ordered) * 95 // 100])

    @property
    def patience_seconds(self) -> float | None:
        """Longer than 95 of 100 waits; None before enough is known."""
        return self._patience
