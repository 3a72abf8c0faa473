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


class MustNotHang(Exception):  # noqa: N818 - not a failure of anybody
    """The work is for another thread than that of who waits: it cannot be interrupted everywhere."""


class Attempt:
    """Shared by who works on it and who waits for it; exactly one of them settles it."""

    def __init__(self, permit: Permit, *, read_seconds: float, connect_seconds: float) -> None:
        self.permit = permit
        self.read_seconds = read_seconds
        self.connect_seconds = connect_seconds
        self.started = time.monotonic()
        self.heard_at = self.started
        self.first_byte_seconds: float | None = None
        self.must_not_hang = False
        """Whether who waits works on it himself: he must be gone at once when somebody interrupts it."""
        self._stand_in: Callable[[], None] | None = None
        self._patience_seconds = read_seconds
        self._until = 0.0
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

    def by_who_waits(
        self, stand_in: Callable[[], None], *, patience_seconds: float | None, until: float
    ) -> None:
        """Who waits works on it; after a silence, and at the end, `stand_in` has another thread wait."""
        self.must_not_hang = True
        self._stand_in = stand_in
        self._patience_seconds = min(patience_seconds or self.read_seconds, self.read_seconds)
        self._until = until

    def by_another(self) -> None:
        """A thread works on it that may hang for as long as it likes."""
        self.must_not_hang = False
        self._stand_in = None

    def silence_seconds(self) -> float:
        """For how long nothing may come, from now on, before `silent` is to be called."""
        if self._stand_in is None:
            return self.read_seconds
        left = self._until - time.monotonic()
        if left > self._patience_seconds:
            return self._patience_seconds
        if left > 0:
            return left
        self.silent()
        return self.read_seconds

    def silent(self) -> bool:
        """Nothing has come for so long: whether to go on, since another thread waits from now on."""
        stand_in, self._stand_in = self._stand_in, None
        if stand_in is None:
            return False
        stand_in()
        return True

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
