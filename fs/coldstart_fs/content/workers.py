"""Threads for work that may wait for a disk or a network, as many as are needed, up to a bound."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread, current_thread

_Desk = SimpleQueue[Callable[[], None] | None]
"""Where one thread finds its next job."""


class Workers:
    """Daemon threads: one that hangs for ever keeps nobody from ending the process."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._threads: list[Thread] = []
        self._idle: list[_Desk] = []
        """The latest to become idle comes last: what it needs is still in the caches of a processor."""
        self._waiting: deque[Callable[[], None]] = deque()
        """Jobs for which there is no thread yet."""
        self._closed = False
        self._lock = Lock()

    def submit(self, job: Callable[[], None]) -> None:
        """Do this soon; `job` raises nothing."""
        with self._lock:
            if self._idle:
                desk = self._idle.pop()
            elif len(self._threads) < self._most:
                desk = SimpleQueue()
                thread = Thread(
                    target=self._run, args=(desk,), name=f"{self._name} {len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            else:
                self._waiting.append(job)
                return
        desk.put(job)

    def attempt(self, job: Callable[[], None]) -> None:
        """Do this soon; what it raises costs speed only: who needs what it was to bring hears why."""
        self.submit(partial(_attempted, job))

    def lose(self) -> None:
        """One of the threads hangs: another one may take its place."""
        with self._lock:
            self._most += 1

    def regain(self) -> None:
        """It is back; one thread too many is not worth the trouble of ending it."""
        with self._lock:
            self._most -= 1

    def close(self, wait_seconds: float) -> None:
        """Let the threads do what was submitted and end; those that hang are not waited for longer."""
        with self._lock:
            self._most = 0
            self._closed = True
            idle, self._idle = self._idle, []
        for desk in idle:
            desk.put(None)
        deadline = time.monotonic() + wait_seconds
        for thread in self._threads:
            if thread is not current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, desk: _Desk) -> None:
        job = desk.get()
        while job is not None:
            job()
            del job  # it may hold megabytes
            with self._lock:
                if self._waiting:
                    job = self._waiting.popleft()
                    continue
                if self._closed:
                    return
                self._idle.append(desk)
            job = desk.get()


def _attempted(job: Callable[[], None]) -> None:
    with suppress(Exception):
        job()
