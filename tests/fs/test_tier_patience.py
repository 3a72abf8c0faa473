"""Back-off, breaker and hedging, by their properties and on a clock of their own."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstart_fs.tiers import breaker as breakers
from coldstart_fs.tiers.backoff import full_jitter, retry_after_seconds
from coldstart_fs.tiers.breaker import Breaker, Permit, State
from coldstart_fs.tiers.hedging import SHARE, HedgeBudget, Silences


@given(
    tries=st.integers(-5, 10**9),
    base=st.floats(0, 1e6),
    cap=st.floats(0, 1e6),
    drawn=st.floats(0, 1) | st.sampled_from([-1.0, 0.0, 1.0, 2.0]),
)
def test_a_pause_is_never_negative_endless_or_above_its_cap(
    tries: int, base: float, cap: float, drawn: float
) -> None:
    pause = full_jitter(tries, base_seconds=base, cap_seconds=cap, draw=lambda: drawn)
    assert 0 <= pause <= cap
    assert math.isfinite(pause)


@given(tries=st.integers(1, 60))
def test_the_ceiling_of_pauses_doubles_and_all_below_it_can_come(tries: int) -> None:
    def ceiling(tries: int) -> float:
        return full_jitter(tries, base_seconds=0.05, cap_seconds=2.0, draw=lambda: 1.0)

    assert ceiling(tries + 1) == pytest.approx(min(2.0, 2 * ceiling(tries)))
    assert full_jitter(tries, draw=lambda: 0.0) == 0.0
    assert full_jitter(tries, draw=lambda: 0.5) == pytest.approx(ceiling(tries) / 2)


@given(st.text() | st.integers().map(str) | st.datetimes().map(format_datetime))
def test_any_retry_after_is_a_wait_or_nothing(header: str) -> None:
    seconds = retry_after_seconds(header)
    assert seconds is None or (seconds >= 0 and math.isfinite(seconds))


def test_a_retry_after_is_a_number_of_seconds_or_a_date() -> None:
    now = datetime(2026, 5, 12, 10, 0, tzinfo=UTC).timestamp()
    assert retry_after_seconds("120") == 120
    assert retry_after_seconds(" 0 ") == 0
    assert retry_after_seconds("Tue, 12 May 2026 10:00:30 GMT", now=lambda: now) == 30
    assert retry_after_seconds("Tue, 12 May 2026 09:00:00 GMT", now=lambda: now) == 0
    for nothing in (None, "", "soon", "-1", "1.5", "²"):
        assert retry_after_seconds(nothing) is None


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(longest_seconds=8.0, clock=clock, draw=lambda: 1.0)


def permit(breaker: Breaker) -> Permit:
    found = breaker.enter()
    assert found is not None
    return found


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.failed(permit(breaker))


def test_a_breaker_opens_after_failures_in_a_row_only(breaker: Breaker) -> None:
    for _ in range(3):
        fail(breaker, breakers.FAILURES_IN_A_ROW - 1)
        breaker.succeeded(permit(breaker))
    assert breaker.state is State.CLOSED
    fail(breaker, breakers.FAILURES_IN_A_ROW)
    assert breaker.state is State.OPEN
    assert breaker.enter() is None


def test_one_request_finds_out_whether_a_tier_is_back(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, breakers.FAILURES_IN_A_ROW)
    clock.now += breakers.FIRST_OPEN_SECONDS
    assert breaker.state is State.HALF_OPEN
    probe = permit(breaker)
    assert probe.probe
    assert breaker.enter() is None
    breaker.succeeded(probe)
    assert breaker.state is State.CLOSED
    assert not permit(breaker).probe


def test_a_failed_probe_doubles_the_wait_up_to_the_longest(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, breakers.FAILURES_IN_A_ROW)
    waits = []
    for _ in range(6):
        waits.append(breaker.closed_to - clock.now)
        clock.now = breaker.closed_to
        breaker.failed(permit(breaker))
    assert waits == [1, 2, 4, 8, 8, 8]


def test_a_probe_that_is_given_up_leaves_room_for_the_next(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, breakers.FAILURES_IN_A_ROW)
    clock.now += breakers.FIRST_OPEN_SECONDS
    breaker.nothing(permit(breaker))
    breaker.succeeded(permit(breaker))
    assert breaker.state is State.CLOSED


def test_answers_to_what_was_asked_before_it_opened_close_nothing(breaker: Breaker) -> None:
    early = [permit(breaker) for _ in range(3)]
    fail(breaker, breakers.FAILURES_IN_A_ROW)
    breaker.succeeded(early[0])
    assert breaker.failed(early[1]) is False
    assert breaker.state is State.OPEN


def test_right_answers_do_not_excuse_wrong_bytes(breaker: Breaker, clock: Clock) -> None:
    opened = []
    for _ in range(breakers.DAMAGES):
        opened.append(breaker.damaged(permit(breaker)))
        if breaker.state is State.CLOSED:
            breaker.succeeded(permit(breaker))
    assert opened == [False] * (breakers.DAMAGES - 1) + [True]
    assert breaker.closed_to - clock.now == breakers.DAMAGE_OPEN_SECONDS


def test_old_damage_is_forgotten(breaker: Breaker, clock: Clock) -> None:
    for _ in range(breakers.DAMAGES * 3):
        assert not breaker.damaged(permit(breaker))
        clock.now += breakers.DAMAGE_WINDOW_SECONDS / 2 + 1


def test_a_tier_that_asks_for_rest_gets_it(breaker: Breaker, clock: Clock) -> None:
    breaker.rest(7.0)
    clock.now += 6.9
    assert breaker.enter() is None
    clock.now += 0.1
    assert permit(breaker).probe


@settings(max_examples=20)
@given(st.lists(st.booleans(), min_size=200, max_size=400))
def test_second_requests_are_a_small_share(wishes: list[bool]) -> None:
    budget = HedgeBudget()
    sent = 0
    for wish in wishes:
        budget.asked()
        sent += wish and budget.take()
    assert sent <= 1 + SHARE * len(wishes)


def test_patience_is_longer_than_nearly_all_waits_and_unknown_at_first() -> None:
    silences = Silences()
    for number in range(19):
        silences.heard_after(number / 100)
    assert silences.patience_seconds is None
    for number in range(19, 100):
        silences.heard_after(number / 100)
    patience = silences.patience_seconds
    assert patience is not None
    assert 0.85 <= patience <= 0.99
    for _ in range(300):
        silences.heard_after(0.0)
    assert silences.patience_seconds == 0.02
