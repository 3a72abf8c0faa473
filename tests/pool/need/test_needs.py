"""The need of a trace: equal to an event simulation on small ones, and clear about what it cannot say."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstart_cli.errors import DataError
from coldstart_pool.need.counts import counts_in_lead_time, peak_busy_gpus, quantile
from coldstart_pool.need.needs import needs
from coldstart_pool.need.trace import NANOSECONDS, ReplicaChange, ReplicaClass, Trace, build_trace

A, B, GANG = ReplicaClass("A100-80GB"), ReplicaClass("L4-24GB"), ReplicaClass("A100-80GB", 8)
DAY = 86_400

event_lists = st.lists(
    st.builds(
        ReplicaChange,
        st.integers(0, 60).map(lambda half: Fraction(half, 2)),
        st.sampled_from((A, B, GANG)),
        st.integers(1, 4),
        st.sampled_from(("", "chat")),
        st.just(True),
    ),
    min_size=1,
    max_size=25,
)


def starts(*seconds: float, replica_class: ReplicaClass = A) -> Trace:
    return build_trace(ReplicaChange(Fraction(str(second)), replica_class) for second in seconds)


def hits_of(trace: Trace, stock: int, lead_seconds: Fraction) -> list[bool]:
    """Event by event: what was asked for is refilled a lead time later; first come, first served."""
    refills: deque[tuple[int, int]] = deque()
    idle = stock
    waiting: deque[int] = deque()
    hits = []
    for time, gpus in zip(trace.times_ns.tolist(), trace.gpus.tolist(), strict=True):
        while refills and refills[0][0] <= time:
            idle += refills.popleft()[1]
            while waiting and waiting[0] <= idle:
                idle -= waiting.popleft()
        hit = not waiting and idle >= gpus
        hits.append(hit)
        if hit:
            idle -= gpus
        else:
            waiting.append(gpus)
        refills.append((time + int(lead_seconds * NANOSECONDS), gpus))
    return hits


@given(event_lists, st.integers(1, 30).map(lambda half: Fraction(half, 2)), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_a_scale_up_is_a_hit_exactly_when_the_count_in_its_lead_time_fits_the_pool(
    events: list[ReplicaChange], lead: Fraction, stock: int
) -> None:
    trace = build_trace(events)
    counts = counts_in_lead_time(trace, lead)
    assert (counts <= stock).tolist() == hits_of(trace, stock, lead)


@given(
    event_lists, st.integers(1, 10).map(Fraction), st.sampled_from([Fraction(n, 20) for n in range(1, 21)])
)
@settings(max_examples=100, deadline=None)
def test_the_need_is_the_smallest_pool_that_keeps_the_promise(
    events: list[ReplicaChange], lead: Fraction, level: Fraction
) -> None:
    trace = build_trace([*events, ReplicaChange(Fraction(100), A)])
    for need in needs(trace, lead, level):
        part = trace.of(trace.numbers_of(need.classes))
        assert need.replicas == len(part.times_ns)
        served = hits_of(part, need.gpus, lead)
        assert Fraction(sum(served), len(served)) >= level
        fewer = hits_of(part, need.gpus - 1, lead)
        assert Fraction(sum(fewer), len(fewer)) < level


@given(event_lists, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_the_order_of_the_events_does_not_matter(events: list[ReplicaChange], source: object) -> None:
    shuffled = list(events)
    source.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = build_trace(events), build_trace(shuffled)
    assert one.classes == other.classes
    for field in ("times_ns", "class_of", "application_of", "starts"):
        assert getattr(one, field).tolist() == getattr(other, field).tolist()


moves = st.lists(
    st.builds(
        ReplicaChange,
        st.integers(0, 40).map(Fraction),
        st.just(A),
        st.integers(1, 3),
        st.just(""),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
).filter(lambda events: any(event.starts for event in events))


@given(moves, st.integers(1, 20).map(Fraction))
@settings(max_examples=150, deadline=None)
def test_with_returns_the_count_is_the_largest_excess_over_any_part_that_ends_with_the_arrival(
    events: list[ReplicaChange], lead: Fraction
) -> None:
    trace = build_trace(events)
    change = [1 if start else -1 for start in trace.starts.tolist()]
    times = trace.times_ns.tolist()
    expected = [
        max(
            sum(change[first : number + 1])
            for first in range(number + 1)
            if times[first] > times[number] - lead * NANOSECONDS
        )
        for number in range(len(times))
        if change[number] == 1
    ]
    assert counts_in_lead_time(trace, lead, returns=True).tolist() == expected
    assert max(expected) <= counts_in_lead_time(trace, lead).max()


def test_a_refill_that_arrives_with_the_scale_up_serves_it() -> None:
    assert counts_in_lead_time(starts(0, 10), Fraction(10)).tolist() == [1, 1]
    assert counts_in_lead_time(starts(0, 10), Fraction("10.000000001")).tolist() == [1, 2]


def test_a_union_needs_less_than_its_classes_and_families_are_named_once() -> None:
    events = [ReplicaChange(Fraction(100 * number), cls) for number in range(50) for cls in (A, GANG)]
    events += [ReplicaChange(Fraction(100 * number + 50), B) for number in range(50)]
    found = {need.classes: need.gpus for need in needs(build_trace(events), Fraction(10), Fraction(1))}
    a, b, gang = A.name, B.name, GANG.name
    assert found == {(a,): 1, (gang,): 8, (b,): 1, (a, gang): 9}


def test_groups_of_the_operator_and_regions_are_unions_too() -> None:
    here = ReplicaClass("L4-24GB", region="eu")
    there = ReplicaClass("L40S-48GB", region="eu", also_accepts=("L4-24GB",))
    trace = build_trace(
        ReplicaChange(Fraction(number), cls) for number in range(9) for cls in (A, B, here, there)
    )
    found = [
        need.classes for need in needs(trace, Fraction(1), Fraction(1), groups={"chat": [A.name, B.name]})
    ]
    assert found == [
        (A.name,), (B.name,), (here.name,), (there.name,),
        (B.name, here.name, there.name), (here.name, there.name), (A.name, B.name),
    ]  # fmt: skip


def test_an_unknown_class_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(DataError, match="no demand of class `H200`") as caught:
        needs(starts(0, 100), Fraction(1), Fraction(1), critical=["H200"])
    assert caught.value.hint == "the classes are: A100-80GB"


def test_a_critical_class_gets_its_largest_batch() -> None:
    trace = starts(*range(100), 100, 100, 100, 100, 100)
    assert needs(trace, Fraction(1, 2), Fraction(1, 2))[0].gpus == 1
    assert needs(trace, Fraction(1, 2), Fraction(1, 2), critical=[A.name])[0].gpus == 5


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        ((5,), "one instant only"),
        ((5, 5, 5), "one instant only"),
        ((0, 30), "spans 30 s, less than the lead time of 60 s"),
    ],
)
def test_a_trace_too_short_to_tell_is_refused(seconds: Sequence[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        needs(starts(*seconds), Fraction(60), Fraction(99, 100))


def test_a_trace_without_scale_ups_is_refused() -> None:
    with pytest.raises(DataError, match="no scale-up"):
        build_trace([])
    with pytest.raises(DataError, match="no scale-up"):
        build_trace([ReplicaChange(Fraction(1), A, starts=False)])


def test_the_peak_counts_replicas_that_ran_before_the_trace() -> None:
    events = [ReplicaChange(Fraction(0), A, 3, starts=False), ReplicaChange(Fraction(1), A, 2)]
    assert peak_busy_gpus(build_trace(events)) == 3
    assert peak_busy_gpus(starts(0, 1)) is None


def test_the_interval_contains_the_need_and_widens_with_days_that_differ() -> None:
    calm = [ReplicaChange(Fraction(DAY * day + 600 * slot), A) for day in range(20) for slot in range(100)]
    wild = [*calm, *(ReplicaChange(Fraction(DAY * day + 70_000), A, 30) for day in (3, 11))]
    assert needs(build_trace(calm), Fraction(60), Fraction(99, 100))[0].interval == (1, 1)
    need = needs(build_trace(wild), Fraction(60), Fraction(99, 100))[0]
    assert need.interval is not None
    low, high = need.interval
    assert low < need.gpus <= high


def test_a_short_trace_has_no_interval() -> None:
    assert needs(starts(*range(100)), Fraction(10), Fraction(99, 100))[0].interval is None


def test_the_quantile_is_exact_at_the_edge() -> None:
    import numpy as np

    counts = np.arange(1, 101)
    assert [quantile(counts, Fraction(level, 100)) for level in (1, 99, 100)] == [1, 99, 100]
    assert quantile(counts, Fraction(9901, 10000)) == 100
