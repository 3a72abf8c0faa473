"""Requests computed together: a batch starts when it is full, or when its oldest has waited enough."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFullError(Exception):
    """More requests wait than may."""


class Watcher(Protocol):
    """Hears what the queue does; called while it is locked, so briefly."""

    def waiting(self, requests: int) -> None: ...

    def started(self, queue_seconds: Sequence[float]) -> None: ...

    def finished(self, requests: int, seconds: float) -> None: ...


@dataclass
class _Waiting(Generic[Item, Result]):
    item: Item
    since: float = field(default_factory=time.monotonic)
    outcome: Future[Result] = field(default_factory=Future)


class BatchQueue(Generic[Item, Result]):
    """A queue before one worker thread that computes up to `batch_limit` requests at a time.

    `compute` gives one result or exception for each item. With a limit of 1 there is no batching.
    """

    def __init__(
        self,
        compute: Callable[[list[Item]], Sequence[Result | Exception]],
        watcher: Watcher,
        *,
        batch_limit: int,
        wait_seconds: float,
        queue_limit: int,
    ) -> None:
        self._compute = compute
        self._watcher = watcher
        self._batch_limit = batch_limit
        self._wait_seconds = wait_seconds
        self._queue_limit = queue_limit
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name="batches", daemon=True).start()

    def submit(self, item: Item) -> Future[Result]:
        """The result, later; raises QueueFullError at once where too many wait."""
        request: _Waiting[Item, Result] = _Waiting(item)
        with self._changed:
            if len(self._waiting) >= self._queue_limit:
                raise QueueFullError(f"{self._queue_limit} requests wait already")
            self._waiting.append(request)
            self._watcher.waiting(len(self._waiting))
            self._changed.notify()
        return request.outcome

    def _work(self) -> None:
        while True:
            batch = self._next_batch()
            began = time.monotonic()
            try:
                results = self._compute([request.item for request in batch])
                if len(results) != len(batch):
                    raise RuntimeError(f"{len(results)} results for {len(batch)} requests")  # noqa: TRY301
            except Exception as error:  # noqa: BLE001 - a broken model answers its requests, too
                results = [error] * len(batch)
            # the books first: who has an answer may look at them
            with self._changed:
                self._watcher.finished(len(batch), time.monotonic() - began)
            for request, result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    request.outcome.set_exception(result)
                else:
                    request.outcome.set_result(result)

    def _next_batch(self) -> list[_Waiting[Item, Result]]:
        with self._changed:
            while not self._is_due():
                oldest = self._waiting[0].since if self._waiting else None
                due = None if oldest is None else oldest + self._wait_seconds - time.monotonic()
                self._changed.wait(due)
            batch = [self._waiting.popleft() for _ in range(min(self._batch_limit, len(self._waiting)))]
            now = time.monotonic()
            self._watcher.waiting(len(self._waiting))
            self._watcher.started([now - request.since for request in batch])
        return batch

    def _is_due(self) -> bool:
        if not self._waiting:
            return False
        full = len(self._waiting) >= self._batch_limit
        return full or time.monotonic() - self._waiting[0].since >= self._wait_seconds
