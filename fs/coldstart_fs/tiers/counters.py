"""What one tier did since the server started, for the status and for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass
class TierCounters:
    """`latency_counts` has one more than `BUCKETS_SECONDS`: what took longer than all. Thread-safe."""

    tier: str
    requests: int = 0
    answers: int = 0
    received_bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    given_up: int = 0
    hedges: int = 0
    hedges_won: int = 0
    skipped: int = 0
    times_opened: int = 0
    breaker: str = "closed"
    latency_seconds: float = 0.0
    latency_counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_SECONDS) + 1))
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def began(self, *, hedge: bool) -> None:
        with self._lock:
            self.requests += 1
            self.in_flight += 1
            self.hedges += hedge

    def answered(self, received_bytes: int, seconds: float, *, hedge: bool) -> None:
        with self._lock:
            self.in_flight -= 1
            self.answers += 1
            self.hedges_won += hedge
            self.received_bytes += received_bytes
            self.latency_seconds += seconds
            self.latency_counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1

    def failed(self, kind: str, *, opened: bool) -> None:
        with self._lock:
            self.in_flight -= 1
            self.errors[kind] = self.errors.get(kind, 0) + 1
            self.times_opened += opened

    def gave_up(self) -> None:
        with self._lock:
            self.in_flight -= 1
            self.given_up += 1

    def passed_over(self) -> None:
        with self._lock:
            self.skipped += 1

    def as_json(self) -> dict[str, Any]:
        """JSON values, as the status shows them."""
        with self._lock:
            return {
                "tier": self.tier,
                "breaker": self.breaker,
                "requests": self.requests,
                "answers": self.answers,
                "received_bytes": self.received_bytes,
                "errors": dict(sorted(self.errors.items())),
                "in_flight": self.in_flight,
                "given_up": self.given_up,
                "hedges": self.hedges,
                "hedges_won": self.hedges_won,
                "skipped": self.skipped,
                "times_opened": self.times_opened,
                "latency_seconds": {
                    "sum": round(self.latency_seconds, 6),
                    "counts": list(self.latency_counts),
                    "buckets": list(BUCKETS_SECONDS),
                },
            }
