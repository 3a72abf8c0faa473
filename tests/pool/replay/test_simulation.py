"""The replay: equal to the formula where the formula is exact, and true to what machines and markets do."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstart_cli.errors import UsageError
from coldstart_pool.need.counts import counts_in_lead_time
from coldstart_pool.need.trace import NANOSECONDS, ReplicaChange, ReplicaClass, Trace, build_trace
from coldstart_pool.replay.fleet import Fleet, Market, Shelf
from coldstart_pool.replay.simulation import NEVER, Played, play

A, GANG = ReplicaClass("A100-80GB"), ReplicaClass("A100-80GB", 8)
HOUR_NS = 3600 * NANOSECONDS


def singles(hosts: int, gpus_per_host: int = 1, spot_place: str = "") -> Fleet:
    return Fleet((Shelf("here", gpus_per_host, hosts, 2.0, spot_place),), ((0,),))


def event(
    second: float, replicas: int = 1, application: str = "", replica_class: ReplicaClass = A
) -> ReplicaChange:
    """A start, or with negative `replicas` a stop."""
    return ReplicaChange(Fraction(str(second)), replica_class, abs(replicas), application, replicas > 0)


def waits(played: Played) -> list[float]:
    return [wait if wait == NEVER else wait / NANOSECONDS for wait in played.waits_ns.tolist()]


def gpu_hours(played: Played, kind: str) -> float:
    return sum(getattr(totals, kind) for totals in played.totals.values()) / HOUR_NS


scale_ups = st.lists(st.builds(event, st.integers(0, 60), st.integers(1, 4)), min_size=1, max_size=25)
moves = st.lists(
    st.builds(event, st.integers(0, 60), st.sampled_from((-2, -1, 1, 2, 3)), st.sampled_from(("", "b"))),
    min_size=1,
    max_size=40,
).filter(lambda events: any(one.starts for one in events))


@given(scale_ups, st.integers(1, 30), st.integers(0, 12))
@settings(max_examples=150, deadline=None)
def test_hits_and_waits_are_those_of_the_formula(events: list[ReplicaChange], lead: int, hosts: int) -> None:
    trace = build_trace(events)
    found = play(trace, singles(hosts), Market(lead)).waits_ns
    assert ((found == 0) == (counts_in_lead_time(trace, Fraction(lead)) <= hosts)).all()
    times = trace.times_ns.tolist()
    expected = [
        max(0, (times[number - hosts] if number >= hosts else -(10**18)) + lead * NANOSECONDS - time)
        for number, time in enumerate(times)
    ]
    assert found.tolist() == expected


@given(moves, st.integers(1, 20), st.integers(0, 8), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_with_returns_the_formula_is_the_safe_side(
    events: list[ReplicaChange], lead: int, hosts: int, keep: int
) -> None:
    trace = build_trace(events)
    found = play(trace, singles(hosts), Market(lead, keep_seconds=keep)).waits_ns
    promised = counts_in_lead_time(trace, Fraction(lead), returns=True) <= hosts
    assert (found[promised] == 0).all()


@given(moves, st.integers(1, 20), st.integers(0, 6), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_every_replica_that_is_not_stopped_gets_its_gpus_within_a_lead_time(
    events: list[ReplicaChange], lead: int, hosts: int, gpus_per_host: int
) -> None:
    trace = build_trace(events)
    played = play(trace, singles(hosts, gpus_per_host), Market(lead))
    assert (played.waits_ns <= lead * NANOSECONDS).all()
    never = int((played.waits_ns == NEVER).sum())
    assert never <= len(trace.times_ns) - trace.scale_ups
    assert min(gpu_hours(played, kind) for kind in ("idle", "busy", "booting")) >= 0
    assert (
        play(trace, singles(hosts, gpus_per_host), Market(lead)).waits_ns.tolist() == played.waits_ns.tolist()
    )


def test_gpu_hours_are_idle_busy_or_booting() -> None:
    # one of two machines is taken for an hour; its replacement boots for half of it; then three are idle
    trace = build_trace([event(0), event(3600, -1), event(7200), event(7200, -1)])
    played = play(trace, singles(2), Market(1800, keep_seconds=1e6))
    assert gpu_hours(played, "busy") == 1
    assert gpu_hours(played, "booting") == 0.5
    assert gpu_hours(played, "idle") == 1 * 0.5 + 2 * 0.5 + 3 * 1
    assert played.totals[0].paid / HOUR_NS == 1 + 0.5 + 4.5
    assert played.totals[0].launches == 1


def test_machines_above_the_plan_are_released_after_they_were_spare_long_enough() -> None:
    events = [event(0, 3), event(100, -3), event(5000)]
    quick = play(build_trace(events), singles(3), Market(10, keep_seconds=60))
    slow = play(build_trace(events), singles(3), Market(10, keep_seconds=1e5))
    assert (quick.totals[0].releases, slow.totals[0].releases) == (3, 0)
    assert (quick.totals[0].launches, slow.totals[0].launches) == (4, 3)


def test_a_spare_machine_that_is_needed_again_is_not_released() -> None:
    events = [event(0, 3), *(event(second, -1) for second in (100, 100, 100)), event(150, 3)]
    played = play(build_trace([*events, event(5000, -3)]), singles(3), Market(10, keep_seconds=60))
    assert (played.totals[0].releases, played.totals[0].launches) == (0, 3)


def test_a_gang_needs_one_host_with_all_its_gpus() -> None:
    trace = build_trace(
        [event(0, replica_class=GANG), event(1, replica_class=A), event(100, replica_class=A)]
    )
    both = Fleet((Shelf("small", 1, 9, 2.0), Shelf("large", 8, 1, 16.0)), ((0, 1), (0, 1)))
    assert trace.classes == (A, GANG)
    assert waits(play(trace, both, Market(60))) == [0, 0, 0]
    small = Fleet((Shelf("small", 1, 9, 2.0),), ((0,), (0,)))
    assert waits(play(trace, small, Market(60))) == [NEVER, 0, 0]


def test_small_replicas_go_where_little_is_left_so_that_a_gang_finds_a_whole_host() -> None:
    trace = build_trace([event(0, 7), event(1, replica_class=GANG)])
    assert waits(play(trace, Fleet((Shelf("large", 8, 2, 16.0),), ((0,), (0,))), Market(60))) == [0] * 8


def test_single_gpus_are_taken_first_though_whole_hosts_come_first_in_the_plan() -> None:
    trace = build_trace([event(0, 3), event(1, replica_class=GANG), event(2, replica_class=GANG)])
    shelves = (Shelf("large", 8, 2, 16.0), Shelf("small", 1, 3, 2.0))
    assert waits(play(trace, Fleet(shelves, ((0, 1), (0,))), Market(60))) == [0] * 5


def test_a_gang_that_waits_gets_a_large_host_though_enough_small_ones_are_idle() -> None:
    both = Fleet((Shelf("small", 1, 20, 2.0), Shelf("large", 8, 0, 16.0)), ((0, 1), (0, 1)))
    trace = build_trace([event(0), event(1, replica_class=GANG), event(2, replica_class=GANG)])
    assert waits(play(trace, both, Market(60))) == [0, 60, 60]


def test_classes_that_share_machines_take_from_one_pool_and_others_do_not() -> None:
    other = ReplicaClass("L4-24GB")
    trace = build_trace([event(0, 2), event(0, replica_class=other)])
    shelves = (Shelf("one", 1, 2, 2.0), Shelf("two", 1, 1, 2.0))
    assert waits(play(trace, Fleet(shelves, ((0,), (0,))), Market(60))) == [0, 0, 60]
    assert waits(play(trace, Fleet(shelves, ((0,), (1,))), Market(60))) == [0, 0, 0]


def test_a_replica_that_stops_before_it_started_gives_up_its_place() -> None:
    trace = build_trace([event(0), event(10, application="b"), event(20, -1, application="b"), event(30)])
    assert waits(play(trace, singles(0), Market(60))) == [60, NEVER, 40]


def test_replicas_from_before_the_trace_bring_their_gpus_back() -> None:
    trace = build_trace([event(0, -2), event(1, 3)])
    assert waits(play(trace, singles(1), Market(60))) == [0, 0, 0]


def test_launch_failures_and_health_rejects_are_tried_again_and_only_rejects_are_paid() -> None:
    trace = build_trace([event(100 * number) for number in range(400)])
    fine = play(trace, singles(1), Market(50))
    failing = play(trace, singles(1), Market(50, launch_failure_share=0.5, seed=1))
    rejecting = play(trace, singles(1), Market(50, health_reject_share=0.5, seed=1))
    assert (fine.waits_ns == 0).all()
    assert failing.totals[0].launch_failures == pytest.approx(failing.totals[0].launches / 2, rel=0.2)
    assert rejecting.totals[0].rejects == pytest.approx(rejecting.totals[0].launches / 2, rel=0.2)
    assert (failing.waits_ns > 0).any()
    assert (rejecting.waits_ns > 0).any()
    assert gpu_hours(failing, "booting") == pytest.approx(gpu_hours(fine, "booting"), rel=0.05)
    assert gpu_hours(rejecting, "booting") > 1.5 * gpu_hours(fine, "booting")


def test_spot_machines_of_a_place_go_together_and_their_replicas_ask_again() -> None:
    trace = build_trace([event(0, 5), event(86_400, -5)])
    market = Market(60, preemptions_per_hour=0.2, seed=3)
    played = play(trace, singles(5, spot_place="eu-1"), market)
    assert played.restarts > 0
    assert played.restarts % 5 == 0
    assert played.totals[0].preempted > played.restarts
    assert play(trace, singles(5), market).restarts == 0


def test_the_same_seed_gives_the_same_replay_and_another_seed_another() -> None:
    trace = build_trace([event(37 * number % 5000, 1) for number in range(500)])

    def drawn(seed: int) -> list[int]:
        market = Market(60, lead_time_spread=0.5, launch_failure_share=0.1, seed=seed)
        found: list[int] = play(trace, singles(6), market).waits_ns.tolist()
        return found

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_drawn_lead_times_have_the_mean_that_was_asked_for() -> None:
    trace = build_trace([event(10_000 * number) for number in range(2000)])
    found = play(trace, singles(0), Market(60, lead_time_spread=0.5)).waits_ns / NANOSECONDS
    assert np.mean(found) == pytest.approx(60, rel=0.05)
    assert np.std(found) == pytest.approx(30, rel=0.1)


def test_time_below_the_floor_and_empty_is_added_up() -> None:
    trace = build_trace([event(0, 9), event(5, 1), event(100)])
    played = play(trace, singles(10), Market(10), floor_share=0.2)
    assert played.below_floor_ns == 10 * NANOSECONDS
    assert played.empty_ns == 5 * NANOSECONDS


def test_the_peak_share_needs_stops() -> None:
    assert play(build_trace([event(0), event(9)]), singles(2), Market(5)).peak_busy_share is None
    trace = build_trace([event(0), event(9, -1)])
    assert play(trace, singles(2), Market(5)).peak_busy_share == 0.5


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"lead_time_seconds": 0}, "--lead-time"),
        ({"lead_time_seconds": float("nan")}, "--lead-time"),
        ({"lead_time_spread": -1}, "--lead-time-spread"),
        ({"launch_failure_share": 1.0}, "--launch-failures"),
        ({"health_reject_share": float("inf")}, "--health-rejects"),
        ({"preemptions_per_hour": -0.1}, "--preemptions-per-hour"),
        ({"keep_seconds": -1}, "--keep"),
    ],
)
def test_a_market_that_cannot_be_is_refused_by_option(values: dict[str, float], option: str) -> None:
    with pytest.raises(UsageError, match=f"^{option} must be at least"):
        Market(**{"lead_time_seconds": 60.0, **values})  # type: ignore[arg-type]


def test_an_empty_window_has_nothing_to_play() -> None:
    trace: Trace = build_trace([event(0), event(10)]).between(0, 1)
    assert waits(play(trace, singles(1), Market(5))) == [0]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("keep_seconds", [0, 0.001])
def test_spare_gpus_of_a_machine_in_use_are_not_looked_at_for_ever(keep_seconds: float) -> None:
    # a single takes one of eight, another host of eight comes, and seven are spare on a machine in use
    fleet = Fleet((Shelf("large", 8, 1, 16.0), Shelf("small", 1, 0, 2.0)), ((0, 1),))
    trace = build_trace([event(0), event(86_400), event(86_500, -1), event(90_000, -1), event(100_000)])
    played = play(trace, fleet, Market(60, keep_seconds=keep_seconds))
    assert waits(played) == [0, 0, 0]
    # what is spare as a whole machine goes all the same
    assert played.totals[0].releases == 1
