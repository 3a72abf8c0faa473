"""What the server is doing, for Prometheus, under the names that vLLM and SGLang use for the same things."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60, float("inf"))
_BUSY_WINDOW_SECONDS = 30.0


class Metrics:
    """The watcher of a `BatchQueue`, and what an HTTP handler observes of whole requests."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        ProcessCollector(registry=registry)
        self._running = Gauge(
            "vllm:num_requests_running", "Requests in the batch that is being computed.", registry=registry
        )
        self._waiting = Gauge("vllm:num_requests_waiting", "Requests in the queue.", registry=registry)
        self._finished = Counter("vllm:request_success", "Requests that were answered.", registry=registry)
        self._batch = Histogram(
            # of an engine that answers whole, requests are what a step processes
            "vllm:iteration_tokens_total",
            "Requests in each batch.",
            buckets=(1, 2, 4, 8, 16, 32, 64, float("inf")),
            registry=registry,
        )
        self._queue = _seconds("request_queue_time", "Time in the queue.", registry)
        self._inference = _seconds("request_inference_time", "Time in a batch.", registry)
        self._first = _seconds("time_to_first_token", "Time to the first result.", registry)
        self._latency = _seconds("e2e_request_latency", "Time from request to answer.", registry)
        self._busy = Gauge(
            "sglang:fwd_occupancy", "Percent of the last 30 s spent computing.", registry=registry
        )
        self._busy.set_function(lambda: 100 * self._busy_share())
        self._computed: deque[tuple[float, float]] = deque()
        self._computing_since: float | None = None
        self._began = time.monotonic()

    def waiting(self, requests: int) -> None:
        self._waiting.set(requests)

    def started(self, queue_seconds: Sequence[float]) -> None:
        self._computing_since = time.monotonic()
        self._running.set(len(queue_seconds))
        self._batch.observe(len(queue_seconds))
        for seconds in queue_seconds:
            self._queue.observe(seconds)

    def finished(self, requests: int, seconds: float) -> None:
        now = time.monotonic()
        self._computing_since = None
        self._computed.append((now - seconds, now))
        while self._computed and self._computed[0][1] < now - _BUSY_WINDOW_SECONDS:
            self._computed.popleft()
        self._running.set(0)
        for _ in range(requests):
            self._inference.observe(seconds)

    def answered(self, seconds: float) -> None:
        """A whole request; this server's first result is its last."""
        self._finished.inc()
        self._first.observe(seconds)
        self._latency.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _busy_share(self) -> float:
        now = time.monotonic()
        since = max(self._began, now - _BUSY_WINDOW_SECONDS)
        spans = list(self._computed)
        if (computing := self._computing_since) is not None:
            spans.append((computing, now))
        busy = sum(max(0.0, end - max(begin, since)) for begin, end in spans)
        return min(1.0, busy / max(1e-9, now - since))


def _seconds(name: str, meaning: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(f"vllm:{name}_seconds", meaning, buckets=_BUCKETS, registry=registry)
