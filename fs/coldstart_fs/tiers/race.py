"""Attempts at the same bytes: the first right answer wins, and the others are given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock
from typing import NamedTuple, Protocol

from coldstart_fs.tiers.attempt import Attempt, Stored
from coldstart_fs.tiers.failure import Kind, TierFailure
from coldstart_fs.tiers.source import Span
from coldstart_fs.tiers.workers import Workers

Check = Callable[[Stored], None]


@dataclass
class Wanted:
    """Bytes of an object, or all of it. `check` raises `DataError` for wrong ones, in any thread."""

    key: str
    span: Span | None
    check: Check
    _found: bool = False
    _checking: Lock = field(default_factory=Lock)

    def won_by(self, attempt: Attempt, data: Stored) -> bool:
        """Check and settle, one attempt at a time; false when another one was right before or nobody waits.

        `check` may keep what it saw: after the bytes that are returned it sees no others.
        """
        with self._checking:
            if self._found:
                return False
            self.check(data)
            self._found = attempt.settle()
            return self._found


class Sender(Protocol):
    """Who sent an attempt, and ends it: a tier."""

    def too_late(self, attempt: Attempt, key: str) -> TierFailure | None: ...

    def give_up(self, attempt: Attempt) -> None: ...


class Outcome(NamedTuple):
    attempt: Attempt
    result: Stored | TierFailure


@dataclass
class Race:
    """Run by who waits, or by his `StandIn`; attempts report to `outcomes` from their threads."""

    wanted: Wanted
    until: float
    outcomes: SimpleQueue[Outcome] = field(default_factory=SimpleQueue)
    _running: dict[Attempt, Sender] = field(default_factory=dict)
    _failure: TierFailure | None = None

    def run(
        self,
        first: Attempt,
        tier: Sender,
        *,
        patience_seconds: float | None,
        second: Callable[[], tuple[Attempt, Sender] | None],
    ) -> Stored:
        """Right bytes, or the graver failure. `second` sends another attempt, once, after a silence."""
        self._running[first] = tier
        try:
            while self._running:
                impatient_at = None if patience_seconds is None else first.heard_at + patience_seconds
                outcome = self._wait(impatient_at)
                if outcome is not None:
                    if not isinstance(outcome.result, TierFailure):
                        return outcome.result
                    self._lost(outcome.attempt, outcome.result)
                    patience_seconds = None
                    continue
                self._end_late_ones()
                if impatient_at is not None and first in self._running and time.monotonic() >= impatient_at:
                    patience_seconds = None
                    if (sent := second()) is not None:
                        self._running[sent[0]] = sent[1]
        finally:
            for attempt, its_tier in self._running.items():
                its_tier.give_up(attempt)
        assert self._failure is not None
        raise self._failure

    def _wait(self, impatient_at: float | None) -> Outcome | None:
        """The next outcome; None when it is time to look after those that are under way."""
        with suppress(Empty):  # who waits has worked on it himself
            return self.outcomes.get_nowait()
        wake = min(self.until, *(attempt.overdue_at for attempt in self._running))
        if impatient_at is not None:
            wake = min(wake, impatient_at)
        with suppress(Empty):
            return self.outcomes.get(timeout=max(0.0, wake - time.monotonic()))
        return None

    def _end_late_ones(self) -> None:
        now = time.monotonic()
        for attempt, tier in list(self._running.items()):
            if now >= min(self.until, attempt.overdue_at):
                late = tier.too_late(attempt, self.wanted.key)
                if late is not None:
                    self._lost(attempt, late)

    def _lost(self, attempt: Attempt, failure: TierFailure) -> None:
        del self._running[attempt]
        if self._failure is None or _gravity(failure) > _gravity(self._failure):
            self._failure = failure


class StandIn:
    """Waits in a thread of its own for what somebody works on who should be waiting himself."""

    def __init__(self, wait: Callable[[], Stored], workers: Workers) -> None:
        self.has_begun = False
        self._wait = wait
        self._workers = workers
        self._verdicts: SimpleQueue[Stored | Exception] = SimpleQueue()

    def begin(self) -> None:
        self.has_begun = True
        self._workers.run(self._run)

    def verdict(self) -> Stored:
        """What came of it; waits as long as the race does."""
        verdict = self._verdicts.get()
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def _run(self) -> None:
        try:
            self._verdicts.put(self._wait())
        except Exception as error:  # noqa: BLE001 - it belongs to who works
            self._verdicts.put(error)


def _gravity(failure: TierFailure) -> tuple[bool, bool]:
    """Wrong bytes say more than anything, and what will not pass more than what may."""
    return failure.kind is Kind.DAMAGED, not failure.kind.passes
