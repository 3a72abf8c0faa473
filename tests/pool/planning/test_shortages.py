"""What a shortage must not do to a plan: spoil the rest of it, empty it, or turn gaps into money."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from coldstart_pool.planning.plan import plan_inputs
from pool.planning.test_answers import FREE, H100, H200, an_offer, tables

F = Fraction


@pytest.mark.parametrize("missing", [10, 1000, 100_000, 10_000_000])
def test_what_one_class_lacks_makes_the_machines_of_another_no_dearer(missing: int) -> None:
    sizes = [(7, 20.1), (5, 14.7), (3, 9.3), (8, 23.9), (1, 3.4)]
    offers = [(an_offer(f"p{number}", *size), 9) for number, size in enumerate(sizes)]
    for need in (11, 13, 23):
        alone = plan_inputs(tables(offers, {H100: need}), FREE)
        beside = plan_inputs(tables(offers, {H100: need, H200: missing}), FREE)
        assert beside.cost_per_hour == alone.cost_per_hour
        assert beside.lower_bound_per_hour <= beside.cost_per_hour
        assert beside.solved.proven


@pytest.mark.parametrize("need", [60, 10**6, 10**9, 10**11])
def test_however_much_is_missing_what_there_is_is_planned(need: int) -> None:
    offers = [(an_offer("a", 8, 20), 5), (an_offer("b", 1, 3), 10)]
    plan = plan_inputs(tables(offers, {H100: need}), FREE)
    assert [entry.instances for entry in plan.offers] == [5, 10]
    assert plan.classes[0].missing_gpus == need - 50


def test_no_sentence_takes_the_price_of_a_gap_for_money() -> None:
    offers = [(an_offer("a", 8, 20, region="x"), 5), (an_offer("b", 1, 3, region="y"), 4)]
    for policy in (
        replace(FREE, survive=F(1)),
        replace(FREE, largest_share=F(2, 5)),
        replace(FREE, budget=F(20)),
        replace(FREE, floor=F(1)),
    ):
        plan = plan_inputs(tables(offers, {H100: 10}), policy)
        for price in plan.shadow_prices:
            assert abs(price.usd_per_hour) <= 100, price
            assert not price.closes_gap or "USD/h more" in price.sentence or "USD" not in price.sentence
    short = plan_inputs(tables(offers, {H100: 10}), replace(FREE, survive=F(1)))
    (more,) = [price for price in short.shadow_prices if price.kind == "supply"]
    assert more.sentence.startswith("one more instance would close a gap, where b y 1x on-demand: 4")
    assert (more.closes_gap, more.usd_per_hour) == (True, pytest.approx(3))  # it costs what it costs


def test_a_rule_that_leaves_gpus_missing_says_so() -> None:
    offers = [(an_offer("a", 8, 20), 5), (an_offer("b", 1, 3), 10)]
    plan = plan_inputs(tables(offers, {H100: 12}), replace(FREE, largest_share=F(2, 5)))
    assert "the largest share of a provider leaves GPUs missing" in [
        price.sentence for price in plan.shadow_prices
    ]


def test_one_more_of_both_markets_counts_for_either() -> None:
    on_demand, spot = an_offer("a", 1, 3), an_offer("a", 1, 1, market="spot")
    plan = plan_inputs(tables([(on_demand, 4), (spot, 4)], {H100: 6}), replace(FREE, floor=F(1)))
    (more,) = [price for price in plan.shadow_prices if price.kind == "supply"]
    # another spot machine would not lessen what is missing: none of it may be spot
    assert (more.closes_gap, more.usd_per_hour) == (True, pytest.approx(3))
