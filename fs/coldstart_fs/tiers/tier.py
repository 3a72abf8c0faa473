"""One tier: how many requests it gets, how long it is waited for, when it is left alone, and what it did."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import BoundedSemaphore

from coldstart_cli.errors import DataError, IoFailure, UnreachableError
from coldstart_fs.stores import answers
from coldstart_fs.tiers.attempt import Attempt, GivenUp, MustNotHang, Stored
from coldstart_fs.tiers.backoff import full_jitter
from coldstart_fs.tiers.breaker import Breaker, Permit, State
from coldstart_fs.tiers.counters import TierCounters
from coldstart_fs.tiers.failure import Kind, TierFailure
from coldstart_fs.tiers.hedging import HedgeBudget, Silences
from coldstart_fs.tiers.link import Link
from coldstart_fs.tiers.race import Outcome, Race, StandIn, Wanted
from coldstart_fs.tiers.settings import TierSettings
from coldstart_fs.tiers.source import Source
from coldstart_fs.tiers.workers import Workers

LONGEST_OPEN_SECONDS = 30.0
LONGEST_STORE_OPEN_SECONDS = 3.0
"""Of the store: nobody comes after it, so it is asked again soon."""
_SLOT_SECONDS = 2.0
"""How long a read waits for its turn at a tier before it goes to the next."""
_LONGEST_REST_SECONDS = 60.0
_FAIR_SECONDS = 1.0
"""A tier that had less time than that is not to blame for having no answer."""


class Tier:
    """Thread-safe. `last` is the store: it is left alone only while it does not answer."""

    def __init__(
        self,
        source: Source,
        settings: TierSettings,
        workers: Workers,
        *,
        last: bool,
        log: Callable[[str], None],
    ) -> None:
        self.last = last
        self.source = source
        self.settings = settings
        self.breaker = Breaker(longest_seconds=LONGEST_STORE_OPEN_SECONDS if last else LONGEST_OPEN_SECONDS)
        self._counters = TierCounters(source.name)
        self._workers = workers
        self._log = log
        self._slots = BoundedSemaphore(settings.concurrency)
        self._budget = HedgeBudget()
        self._silences = Silences()
        self.link = Link()

    def counters(self) -> TierCounters:
        """The tier's own, with the breaker as it is now."""
        self._counters.breaker = self.breaker.state.value
        return self._counters

    def fetch(self, wanted: Wanted, *, until: float, hedge_to: Tier) -> Stored:
        """Right bytes by `until` on the monotonic clock, or `TierFailure`; wrong ones are asked for again."""
        fresh = False
        tries = 0
        while True:
            try:
                return self._race(wanted, until=until, hedge_to=hedge_to, fresh=fresh)
            except TierFailure as failure:
                if failure.kind.is_wrong_answer and not fresh:
                    fresh = True
                    continue
                tries += 1
                pause = full_jitter(tries)
                if (
                    not failure.kind.worth_another_try
                    or failure.retry_after_seconds is not None
                    or tries > self.settings.retries
                    or time.monotonic() + pause >= until
                ):
                    raise
            time.sleep(pause)

    def _race(self, wanted: Wanted, *, until: float, hedge_to: Tier, fresh: bool) -> Stored:
        """One request, and a second one when the first is silent for longer than usual."""
        race = Race(wanted, until)
        first = self._begin(wanted, until=until)
        size_bytes = 0 if wanted.span is None else wanted.span.length
        self._budget.asked(size_bytes)
        patience_seconds = self._silences.patience_seconds

        def second() -> tuple[Attempt, Tier] | None:
            if not self._budget.take(size_bytes):
                return None
            attempt = hedge_to.hedge(wanted, race)
            if attempt is None:
                self._budget.give_back(size_bytes)
                return None
            return attempt, hedge_to

        def wait() -> Stored:
            return race.run(first, self, patience_seconds=patience_seconds, second=second)

        stand_in = StandIn(wait, self._workers)
        first.by_who_waits(stand_in.begin, patience_seconds=patience_seconds, until=until)
        try:
            self._work(wanted, race, first, hedge=False, fresh=fresh)
        except BaseException:  # a signal, in the main thread
            self.give_up(first)
            raise
        first.by_another()
        return stand_in.verdict() if stand_in.has_begun else wait()

    def _begin(self, wanted: Wanted, *, until: float) -> Attempt:
        permit = self.breaker.enter()
        if permit is None:
            self._counters.passed_over()
            raise self._skipped(wanted.key, "it failed a moment ago and is left alone")
        if not self._slots.acquire(blocking=False):
            left = until - time.monotonic()
            if not self._slots.acquire(timeout=max(0.0, left if self.last else min(_SLOT_SECONDS, left))):
                self.breaker.nothing(permit)
                self._counters.passed_over()
                raise self._skipped(wanted.key, "all its requests are taken")
        return self._attempt(permit, hedge=False)

    def hedge(self, wanted: Wanted, race: Race) -> Attempt | None:
        """A second request, unless the tier is in trouble or busy itself."""
        if self.breaker.state is not State.CLOSED or not self._slots.acquire(blocking=False):
            return None
        attempt = self._attempt(Permit(probe=False), hedge=True)
        self._workers.run(partial(self._work, wanted, race, attempt, hedge=True, fresh=False))
        return attempt

    def _attempt(self, permit: Permit, *, hedge: bool) -> Attempt:
        self._counters.began(hedge=hedge)
        return Attempt(
            permit,
            read_seconds=self.settings.read_timeout_seconds,
            connect_seconds=self.settings.connect_timeout_seconds,
        )

    def _work(self, wanted: Wanted, race: Race, attempt: Attempt, *, hedge: bool, fresh: bool) -> None:
        """Report what comes of an attempt, and give its slot back."""
        try:
            result = self._result(wanted, attempt, fresh=fresh)
        except MustNotHang:
            attempt.by_another()
            self._workers.run(partial(self._work, wanted, race, attempt, hedge=hedge, fresh=fresh))
            return
        except BaseException:
            self._slots.release()
            raise
        self._slots.release()
        if result is None:
            return  # who gave it up has counted it
        if isinstance(result, TierFailure):
            if not attempt.settle():
                return
            self._failed(attempt, result)
        else:
            seconds = time.monotonic() - attempt.started
            self._counters.answered(len(result), seconds, hedge=hedge)
            self.breaker.succeeded(attempt.permit)
            if attempt.first_byte_seconds is not None:
                self._silences.heard_after(attempt.first_byte_seconds)
                self.link.heard(attempt.first_byte_seconds, seconds, len(result))
        race.outcomes.put(Outcome(attempt, result))

    def _result(self, wanted: Wanted, attempt: Attempt, *, fresh: bool) -> Stored | TierFailure | None:
        """Right bytes, the attempt being settled; why there are none; None when nobody waits any more."""
        try:
            data = self.source.read(wanted.key, wanted.span, attempt, fresh=fresh)
        except GivenUp:
            return None
        except MustNotHang:
            raise
        except TierFailure as failure:
            return failure
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            text = f"cannot use `{self.source.name}/{wanted.key}`: {type(error).__name__}: {error}"
            return TierFailure(Kind.OTHER, IoFailure(text))
        try:
            if not wanted.won_by(attempt, data):
                return None
        except DataError as error:
            return TierFailure(Kind.DAMAGED, error)
        except Exception as error:  # noqa: BLE001 - bytes that cannot be judged are not right
            return TierFailure(Kind.DAMAGED, DataError(f"{wanted.key}: {type(error).__name__}: {error}"))
        return data

    def too_late(self, attempt: Attempt, key: str) -> TierFailure | None:
        """Give up an attempt that has been silent for too long; None when its outcome is here just now."""
        if not attempt.give_up():
            return None
        place = f"{self.source.name}/{key}"
        failure = TierFailure(Kind.TIMEOUT, answers.unreachable(place, answers.NO_ANSWER))
        if time.monotonic() - attempt.started >= _FAIR_SECONDS or time.monotonic() >= attempt.overdue_at:
            self._failed(attempt, failure)
        else:
            self._counters.gave_up()
            self.breaker.nothing(attempt.permit)
        return failure

    def give_up(self, attempt: Attempt) -> None:
        """Nobody needs its answer any more."""
        if attempt.give_up():
            self._counters.gave_up()
            self.breaker.nothing(attempt.permit)
            if attempt.first_byte_seconds is None:  # else the slow ones would never count
                self._silences.heard_after(time.monotonic() - attempt.started)

    def _failed(self, attempt: Attempt, failure: TierFailure) -> None:
        permit, opened = attempt.permit, False
        if failure.kind is Kind.DAMAGED and not self.last:
            opened = self.breaker.damaged(permit)
        elif failure.kind.is_tiers_fault and (failure.kind.passes or not self.last):
            opened = self.breaker.failed(permit)
        else:  # it answers, and nobody comes after the store who might answer better
            self.breaker.succeeded(permit)
        if failure.retry_after_seconds is not None and failure.kind.passes:
            self.breaker.rest(min(failure.retry_after_seconds, _LONGEST_REST_SECONDS))
        self._counters.failed(failure.kind.value, opened=opened)
        if opened:
            self._log(f"tier {self.source.name} is left alone for a while: {failure.error.message}")

    def _skipped(self, key: str, why: str) -> TierFailure:
        text = f"cannot use `{self.source.name}/{key}`: {why}"
        return TierFailure(Kind.SKIPPED, UnreachableError(text, hint=answers.RETRY_HINT))
