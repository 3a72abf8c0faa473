"""One request on its way: how far it is, who ended it, and how to give it up."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from coldstart_fs.tiers.breaker import Permit

Stored = bytes | bytearray
"""Bytes as a tier keeps them."""


class GivenUp(Exception):  # noqa: N818 - not a failure of anybody
    """Nobody waits for this attempt any more."""


class Attempt:
    """Shared by who works on it and who waits for it; exactly one of them settles it."""

    def __init__(self, permit: Permit, *, read_seconds: float, connect_seconds: float) -> None:
        self.permit = permit
        self.read_seconds = read_seconds
        self.connect_seconds = connect_seconds
        self.started = time.monotonic()
        self.heard_at = self.started
        self.first_byte_seconds: float | None = None
        self._settled = False
        self._cancel: Callable[[], None] | None = None
        self._lock = Lock()

    def heard(self) -> None:
        """Bytes came."""
        now = time.monotonic()
        if self.first_byte_seconds is None:
            self.first_byte_seconds = now - self.started
        self.heard_at = now
        if self._settled:
            raise GivenUp

    def breakable_by(self, cancel: Callable[[], None]) -> None:
        """How to interrupt what the worker waits for from now on."""
        with self._lock:
            if self._settled:
                raise GivenUp
            self._cancel = cancel

    def unbreakable(self) -> None:
        """What was waited for belongs to the attempt no longer."""
        with self._lock:
            self._cancel = None

    def settle(self) -> bool:
        """Whether the caller is the one to say what came of it."""
        with self._lock:
            if self._settled:
                return False
            self._settled = True
            return True

    def give_up(self) -> bool:
        """Settle it, if nobody has, and interrupt the worker."""
        if not self.settle():
            return False
        with self._lock:
            if self._cancel is not None:
                with suppress(Exception):
                    self._cancel()
        return True

    @property
    def overdue_at(self) -> float:
        """When the silence has lasted longer than any healthy one."""
        if self.first_byte_seconds is None:
            return self.heard_at + self.connect_seconds + self.read_seconds
        return self.heard_at + self.read_seconds
