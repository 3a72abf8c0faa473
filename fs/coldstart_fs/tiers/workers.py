"""Threads for attempts and for stand-ins: kept while they are of use, and abandoned with the process."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread

_IDLE_SECONDS = 30.0


class Workers:
    """Runs each job at once, in an idle thread or a new one: whoever gives jobs bounds their number."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = 0
        self._lock = Lock()

    def run(self, job: Callable[[], None]) -> None:
        """`job` raises nothing."""
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._jobs.put(job)
                return
        Thread(target=self._work, args=(job,), name="coldstart-fetch", daemon=True).start()

    def close(self) -> None:
        """End the idle ones."""
        with self._lock:
            for _ in range(self._idle):
                self._jobs.put(None)
            self._idle = 0

    def _work(self, job: Callable[[], None]) -> None:
        while True:
            job()
            with self._lock:
                self._idle += 1
            next_job = self._next()
            if next_job is None:
                return
            job = next_job

    def _next(self) -> Callable[[], None] | None:
        while True:
            try:
                return self._jobs.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    # else one was given to us a moment ago
                    if self._jobs.empty():
                        self._idle -= 1
                        return None
