"""The warm floor and the scale-down window of measured traffic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coldstart_pool.advise.floor import warm_floor, warm_floors
from coldstart_pool.inputs.demand_values import DemandTrace, ReplicaEvent


def ups(*seconds: float, application: str = "chat") -> list[ReplicaEvent]:
    return [ReplicaEvent(Fraction(moment), application, "H100-80GB", 8, 1) for moment in seconds]


def downs(*seconds: float) -> list[ReplicaEvent]:
    return [replace(event, replicas=-1) for event in ups(*seconds)]


def test_a_shorter_cold_start_needs_a_smaller_floor() -> None:
    bursts = ups(*(day * 1000 + second for day in range(50) for second in (0, 10, 20, 30)))
    slow = warm_floor(bursts, cold_start_seconds=600)
    quick = warm_floor(bursts, cold_start_seconds=15)
    assert slow is not None
    assert quick is not None
    assert (slow.replicas, quick.replicas) == (4, 2)


def test_replicas_are_counted_and_not_their_gpus() -> None:
    floor = warm_floor(ups(0, 100), cold_start_seconds=10)
    assert floor is not None
    assert floor.replicas == 1


def test_an_idle_replica_is_kept_at_least_as_long_as_a_cold_start_takes() -> None:
    floor = warm_floor(ups(0, 1, 2, 3), cold_start_seconds=120)
    assert floor is not None
    assert (floor.keep.seconds, floor.keep.hit_share) == (120, 1.0)
    assert not floor.has_stops


def test_a_replica_idles_from_its_stop_to_the_next_start_and_not_from_its_own_start() -> None:
    starts = [1000 * number for number in range(10)]
    floor = warm_floor([*ups(*starts), *downs(*(start + 900 for start in starts))], cold_start_seconds=60)
    assert floor is not None
    assert floor.has_stops
    # 100 s after each stop one starts: nine of ten find a kept one, and the last idles to no purpose
    assert (floor.keep.seconds, floor.keep.hit_share, floor.keep.idle_seconds_per_hit) == (100, 0.9, 100)
    assert floor.longer is None


def test_a_window_is_as_long_as_what_it_saves_is_worth() -> None:
    """Of ten replicas that stop, half are wanted after 100 s, half after five hours."""
    moments, events = 0, []
    for number in range(10):
        events += ups(moments) + downs(moments + 10)
        moments += 10 + (100 if number % 2 else 18_000)
    thrifty = warm_floor(events, cold_start_seconds=60)
    generous = warm_floor(events, cold_start_seconds=60, worth_seconds=20_000)
    assert thrifty is not None
    assert generous is not None
    assert thrifty.keep.seconds == 100
    assert thrifty.longer is not None
    assert thrifty.longer.seconds == 18_000
    assert thrifty.longer.idle_seconds_per_hit == pytest.approx(17_900, rel=0.01)
    assert (generous.keep.seconds, generous.longer) == (18_000, None)
    assert generous.keep.hit_share == 0.9


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 500),
    st.integers(1, 5000),
)
def test_no_other_window_would_have_cost_less(
    moments: list[tuple[int, bool]], cold_start: int, worth: int
) -> None:
    events = [event for moment, stop in moments for event in (downs(moment) if stop else ups(moment))]
    floor = warm_floor(events, cold_start_seconds=cold_start, worth_seconds=worth)
    if floor is None or not floor.has_stops:
        return

    def cost(window: float) -> float:
        """By hand: every replica that stopped idles until it is used, let go, or the trace ends."""
        idle: list[int] = []
        total = 0.0
        ordered = sorted(events, key=lambda event: event.order)
        for event in ordered:
            moment = int(event.time_seconds)
            if event.replicas < 0:
                idle.append(moment)
            elif idle and moment - idle[-1] <= window:
                total += moment - idle.pop()
            else:
                total += worth + (min(window, moment - idle.pop()) if idle else 0)
        return total + sum(min(window, int(ordered[-1].time_seconds) - since) for since in idle)

    assert floor.keep.seconds >= cold_start
    chosen = cost(floor.keep.seconds)
    assert all(chosen <= cost(window) + 1e-6 for window in range(cold_start, 5001, 97))


def test_a_warm_replica_of_one_application_is_none_of_another() -> None:
    events = [*ups(0, 1, 2), *ups(0, 1, application="draw")]
    floors = warm_floors(
        DemandTrace(tuple(events), Fraction(0), Fraction(2), True, False), cold_start_seconds=9
    )
    assert {name: floor.replicas for name, floor in floors.items()} == {"chat": 3, "draw": 2}


def test_a_level_that_so_few_starts_cannot_tell_is_said_to_be_unsupported() -> None:
    for count, supported in ((99, False), (100, True)):
        floor = warm_floor(ups(*range(count)), cold_start_seconds=1, service_level=0.99)
        assert floor is not None
        assert floor.is_supported is supported


def test_no_events_give_no_floor() -> None:
    assert warm_floor([], cold_start_seconds=10) is None


@example(moments=[0, 0, 0, 0, 1, 1, 1, 2, 2, 2], lead=1)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=40), st.integers(1, 2000))
def test_a_pool_of_the_floor_keeps_its_promise_on_its_own_trace(moments: list[int], lead: int) -> None:
    floor = warm_floor(ups(*moments), cold_start_seconds=lead, service_level=0.9)
    assert floor is not None
    free = [0] * floor.replicas  # when each warm place is filled again
    hits = 0
    for moment in sorted(moments):
        free.sort()
        hits += free[0] <= moment
        # the next one is started when a replica is asked for, not when the one that waits gets its place
        free[0] = moment + lead
    assert hits >= 0.9 * len(moments) - 1e-9 or floor.replicas == len(moments)
