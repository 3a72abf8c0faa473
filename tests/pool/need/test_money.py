"""Money and the need: what the next hit costs, what a hit is worth, what a second of lead time saves."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstart_cli.errors import DataError, UsageError
from coldstart_pool.need.by_hour import needs_by_hour
from coldstart_pool.need.hit_curve import HitCurve, hit_curve, milestones
from coldstart_pool.need.lead_times import Aim, compare_lead_times
from coldstart_pool.need.trace import ReplicaChange, ReplicaClass, build_trace

A = ReplicaClass("A100-80GB")
counts_lists = st.lists(st.integers(1, 30), min_size=1, max_size=60)


def curve_of(counts: list[int], hours: float = 10) -> HitCurve:
    return hit_curve(np.array(counts, dtype=np.int64), hours * 3600)


def cost(curve: HitCurve, gpus: int, value: float, idle: float) -> float:
    return idle * gpus + curve.replicas / curve.span_hours * value * (1 - curve.hit_rate(gpus))


@given(counts_lists, st.floats(0, 500), st.floats(0.01, 10))
@settings(max_examples=150, deadline=None)
def test_the_size_that_money_says_costs_no_more_than_any_other(
    counts: list[int], value: float, idle: float
) -> None:
    curve = curve_of(counts)
    chosen = cost(curve, curve.gpus_for_value(value, idle), value, idle)
    assert all(chosen <= cost(curve, gpus, value, idle) + 1e-9 for gpus in range(32))


@given(counts_lists, st.integers(1, 100))
@settings(max_examples=100, deadline=None)
def test_the_worth_that_a_service_level_implies_leads_back_to_it(counts: list[int], percent: int) -> None:
    curve = curve_of(counts)
    gpus = curve.gpus_for_level(Fraction(percent, 100))
    value = curve.implied_value_usd(gpus, 2.0)
    assert curve.gpus_for_value(value * 1.001, 2.0) >= gpus
    assert curve.gpus_for_value(value * 0.999, 2.0) < gpus


@given(counts_lists)
@settings(max_examples=100, deadline=None)
def test_each_further_hit_costs_more_than_the_one_before(counts: list[int]) -> None:
    steps = curve_of(counts).steps(2.0)
    prices = [step.usd_per_avoided_cold_start for step in steps]
    assert prices == sorted(prices)
    assert steps[0].from_gpus == 0
    assert (steps[-1].to_gpus, steps[-1].to_hit_rate) == (max(counts), 1.0)


def test_the_price_of_the_next_hit_is_its_idle_hours_over_its_hits() -> None:
    # 90 of 100 are served by 1 GPU, the others come as bursts of 11: 10 more GPUs, idle for 10 h at 2 USD
    curve = curve_of([1] * 90 + [11] * 10)
    assert [(step.to_gpus, step.usd_per_avoided_cold_start) for step in curve.steps(2.0)] == [
        (1, pytest.approx(20 / 90)),
        (11, pytest.approx(20.0)),
    ]
    assert curve.gpus_for_value(19.9, 2.0) == 1
    assert curve.gpus_for_value(20.1, 2.0) == 11


def test_the_curve_for_people_goes_from_level_to_level() -> None:
    shown = milestones(curve_of(list(range(1, 101))), 2.0)
    assert [step.to_gpus for step in shown] == [50, 80, 90, 95, 98, 99, 100]
    assert shown[-1].from_hit_rate == 0.99


@pytest.mark.parametrize(("value", "idle"), [(float("nan"), 1), (-1, 1), (1, 0), (1, -2), (1, float("inf"))])
def test_amounts_that_no_money_has_are_refused(value: float, idle: float) -> None:
    with pytest.raises(UsageError):
        curve_of([1, 2]).gpus_for_value(value, idle)


def test_shorter_lead_times_free_gpus_and_say_what_a_second_is_worth() -> None:
    trace = build_trace(ReplicaChange(Fraction(10 * number), A) for number in range(1000))
    longest, shorter = compare_lead_times(trace, [Fraction(50), Fraction(100)], Aim(Fraction(1)), 2.0)
    assert (longest.lead_time_seconds, longest.gpus, longest.saved_usd_per_second_year) == (100, 10, None)
    assert (shorter.lead_time_seconds, shorter.gpus) == (50, 5)
    assert shorter.saved_usd_per_second_year == pytest.approx(5 * 2.0 * 8760 / 50)


def test_by_money_the_cold_starts_that_stay_are_part_of_the_cost() -> None:
    trace = build_trace(ReplicaChange(Fraction(10 * number), A) for number in range(1000))
    (cheap,) = compare_lead_times(trace, [Fraction(100)], Aim(Fraction(1), value_usd=0.0), 2.0)
    assert (cheap.gpus, cheap.hit_rate, cheap.usd_per_year) == (0, 0.0, 0.0)
    (dear,) = compare_lead_times(trace, [Fraction(100)], Aim(Fraction(1), value_usd=1.0), 2.0)
    assert dear.hit_rate > 0.99
    assert dear.usd_per_year == pytest.approx(
        8760 * (2.0 * dear.gpus + (1 - dear.hit_rate) * 1000 / (9990 / 3600))
    )


def test_a_lead_time_longer_than_the_trace_is_refused() -> None:
    trace = build_trace(ReplicaChange(Fraction(number), A) for number in range(10))
    with pytest.raises(DataError, match="less than the lead time of 60 s"):
        compare_lead_times(trace, [Fraction(5), Fraction(60)], Aim(Fraction(1)), 2.0)


def test_hours_of_the_day_have_needs_of_their_own() -> None:
    events = [
        ReplicaChange(Fraction(86_400 * day + 3_600 * 9 + 60 * minute), A, 5)
        for day in range(3)
        for minute in range(60)
    ]
    events += [ReplicaChange(Fraction(86_400 * day + 3_600 * 22), A) for day in range(3)]
    found = needs_by_hour(build_trace(events), Fraction(60), Fraction(1))
    assert [(hour, gpus) for hour, gpus in enumerate(found) if gpus] == [(9, 5), (22, 1)]
