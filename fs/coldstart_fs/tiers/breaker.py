"""A circuit breaker: after failures in a row a tier is left alone, then asked by one request at a time."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

FAILURES_IN_A_ROW = 5
FIRST_OPEN_SECONDS = 1.0
DAMAGES = 3
DAMAGE_WINDOW_SECONDS = 600.0
DAMAGE_OPEN_SECONDS = 60.0


class State(StrEnum):
    """`half-open`: one request is let through to find out."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True)
class Permit:
    """Leave to ask a tier once; its holder says what came of it, once."""

    probe: bool


class Breaker:
    """Thread-safe. Open periods double up to `longest_seconds`; a quarter of each is left to chance."""

    def __init__(
        self,
        *,
        longest_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._longest_seconds = longest_seconds
        self._clock = clock
        self._draw = draw
        self._lock = Lock()
        self._failures = 0
        self._damages: deque[float] = deque(maxlen=DAMAGES)
        self._period_seconds = FIRST_OPEN_SECONDS
        self._open_until: float | None = None
        self._probing = False

    @property
    def state(self) -> State:
        with self._lock:
            if self._open_until is None:
                return State.CLOSED
            return State.OPEN if self._clock() < self._open_until else State.HALF_OPEN

    def enter(self) -> Permit | None:
        """Leave to ask; None while it is open, or while somebody else finds out."""
        with self._lock:
            if self._open_until is None:
                return Permit(probe=False)
            if self._clock() < self._open_until or self._probing:
                return None
            self._probing = True
            return Permit(probe=True)

    def succeeded(self, permit: Permit) -> None:
        with self._lock:
            # what was asked before it opened says nothing of now
            if self._open_until is not None and not permit.probe:
                return
            self._probing = False
            self._failures = 0
            self._open_until = None
            self._period_seconds = FIRST_OPEN_SECONDS

    def failed(self, permit: Permit) -> bool:
        """Whether this failure opened it."""
        with self._lock:
            if permit.probe:
                self._probing = False
                self._period_seconds = min(self._longest_seconds, self._period_seconds * 2)
            elif self._open_until is not None:
                return False
            self._failures += 1
            if not permit.probe and self._failures < FAILURES_IN_A_ROW:
                return False
            self._open(self._period_seconds)
            return not permit.probe

    def damaged(self, permit: Permit) -> bool:
        """Wrong bytes: right ones in between excuse nothing. Whether this opened it."""
        now = self._clock()
        with self._lock:
            if permit.probe:
                self._probing = False
            self._damages.append(now)
            if len(self._damages) < DAMAGES or self._damages[0] < now - DAMAGE_WINDOW_SECONDS:
                return False
            self._damages.clear()
            self._open(DAMAGE_OPEN_SECONDS)
            return True

    def nothing(self, permit: Permit) -> None:
        """The attempt was given up before it said anything about the tier."""
        with self._lock:
            if permit.probe:
                self._probing = False

    def rest(self, seconds: float) -> None:
        """The server asked to be left alone that long."""
        with self._lock:
            until = self._clock() + seconds
            self._open_until = max(until, self._open_until or until)

    @property
    def closed_to(self) -> float:
        """When the next request may be let through, on the clock; in the past when it may be now."""
        with self._lock:
            return self._open_until if self._open_until is not None else self._clock()

    def _open(self, seconds: float) -> None:
        self._open_until = self._clock() + seconds * (0.75 + 0.25 * self._draw())
