"""What waits for a time or for a socket, called in one thread, to a few microseconds."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import monotonic

_LONGEST_SPIN_SECONDS = 50e-6


class Loop:
    """Instead of asyncio, which costs more than all that it would call here."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._descriptor = self._epoll.fileno()
        self._watchers: dict[int, Callable[[int, float], None]] = {}
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._wakes_after = 0.0

    def at(self, when: float, call: Callable[[float], None]) -> None:
        heappush(self._timers, (when, next(self._order), call))

    def watch(self, watched: socket.socket, events: int, call: Callable[[int, float], None]) -> None:
        self._epoll.register(watched, events)
        self._watchers[watched.fileno()] = call

    def close(self, watched: socket.socket) -> None:
        self._watchers.pop(watched.fileno(), None)
        watched.close()

    def run(self) -> None:
        while True:
            if self._wait():
                self._call_watchers()
            self._call_due()

    def _wait(self) -> bool:
        """Until a socket may be ready, or, false, until the first time, less what waking up takes."""
        if not self._timers:
            return bool(select.select([self._descriptor], [], []))
        asked = self._timers[0][0] - self._wakes_after
        left = asked - monotonic()
        # epoll's own timeouts are whole milliseconds
        if left <= 0 or select.select([self._descriptor], [], [], left)[0]:
            return True
        # an idle processor of a virtual machine takes 45 us, a busy one 5
        late = min(monotonic() - asked, _LONGEST_SPIN_SECONDS)
        self._wakes_after += (late - self._wakes_after) / 8
        return False

    def _call_watchers(self) -> None:
        now = monotonic()
        for descriptor, events in self._epoll.poll(0):
            if watcher := self._watchers.get(descriptor):  # an earlier one may have closed it
                watcher(events, now)

    def _call_due(self) -> None:
        until = monotonic() + self._wakes_after  # not what is added meanwhile: sockets have their turn
        while self._timers and self._timers[0][0] <= until:
            when, _, call = heappop(self._timers)
            while (now := monotonic()) < when:
                pass
            call(now)
