"""A replay over time: extremes survive the intervals, and every scale-up is counted once."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from coldstart_pool.need.counts import peak_busy_gpus
from coldstart_pool.need.trace import NANOSECONDS, ReplicaChange, ReplicaClass, build_trace
from coldstart_pool.replay.fleet import Fleet, Market, Shelf
from coldstart_pool.replay.simulation import play
from coldstart_pool.replay.timeline import MOST_INTERVALS

GPU = ReplicaClass("H100-80GB")


def fleet(hosts: int, gpus_per_host: int = 1, spot_place: str = "") -> Fleet:
    return Fleet((Shelf("here", gpus_per_host, hosts, 2.0, spot_place),), ((0,),))


def event(second: float, replicas: int = 1) -> ReplicaChange:
    return ReplicaChange(Fraction(str(second)), GPU, abs(replicas), "", replicas > 0)


def test_a_dip_of_a_second_is_seen_in_a_week() -> None:
    week = 7 * 86_400
    trace = build_trace([event(1), event(1, -1), event(300_000, 5), event(300_001, -5), event(week)])
    seen = play(trace, fleet(4), Market(60, keep_seconds=0)).timeline
    assert len(seen.least_free_gpus) == len(seen.misses) == MOST_INTERVALS
    assert seen.most_busy_gpus is not None
    number = (300_000 - 1) * NANOSECONDS // seen.interval_ns
    assert (seen.least_free_gpus[number], seen.misses[number], seen.most_busy_gpus[number]) == (0, 1, 4)
    assert (seen.least_free_gpus[number - 1], seen.most_busy_gpus[number - 1]) == (4, 0)
    assert sum(seen.misses) == 1
    assert sum(seen.scale_ups) == trace.scale_ups


def test_without_stops_nothing_is_called_busy_and_free_gpus_are_those_left() -> None:
    trace = build_trace([event(0), event(10), event(100)])
    seen = play(trace, fleet(3), Market(1000)).timeline
    assert seen.most_busy_gpus is None
    assert (seen.least_free_gpus[0], seen.least_free_gpus[-1]) == (2, 0)
    assert len(seen.least_free_gpus) <= MOST_INTERVALS


@given(
    st.lists(
        st.builds(event, st.integers(0, 5000), st.sampled_from((-1, 1, 2))), min_size=1, max_size=40
    ).filter(lambda events: any(one.starts for one in events)),
    st.integers(0, 6),
    st.integers(1, 4),
    st.sampled_from((0.0, 60.0)),
)
@settings(max_examples=100, deadline=None)
def test_a_timeline_agrees_with_the_replay(
    events: list[ReplicaChange], hosts: int, gpus_per_host: int, preemptions_per_hour: float
) -> None:
    trace = build_trace(events)
    market = Market(30, preemptions_per_hour=preemptions_per_hour)
    played = play(trace, fleet(hosts, gpus_per_host, "here"), market)
    seen = played.timeline
    assert min(seen.least_free_gpus) >= 0
    assert sum(seen.scale_ups) == trace.scale_ups
    assert sum(seen.misses) == int((played.waits_ns != 0).sum())
    assert len(seen.least_free_gpus) == len(seen.scale_ups) == len(seen.misses) <= MOST_INTERVALS
    if played.empty_ns:
        assert 0 in seen.least_free_gpus
    if seen.most_busy_gpus is not None and min(seen.least_free_gpus) and not preemptions_per_hour:
        assert max(seen.most_busy_gpus) == peak_busy_gpus(trace)
