"""Plans: every constraint checked again from outside, the same answer for shuffled rows."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from math import ceil

import pytest

from coldstart_pool.demand import Target
from coldstart_pool.offers import Offer
from coldstart_pool.plan import Plan, Policy, plan_offers
from coldstart_pool.supply import Observation, availability

pytest.importorskip("ortools")
CLASSES = ("H100-80GB", "H200-141GB", "L40S-48GB")


def an_offer(
    provider: str, gpus: int, price: float, gpu: str = CLASSES[0], *, market: str = "on-demand"
) -> Offer:
    return Offer(provider, "r", "", f"{gpus}x", gpu, gpus, market, Fraction(str(price)))


def observation(offer: Offer, count: int) -> Observation:
    return Observation((*offer.machine, offer.market), count, False, (2,))


def solve(
    offers: list[tuple[Offer, int]], targets: dict[str, int], *, utilisation: str = "1", share: str = "1"
) -> Plan:
    policy = Policy(peak_utilisation=Fraction(utilisation), largest_share=Fraction(share))
    everything = [offer for offer, _ in offers]
    available = availability(everything, [observation(offer, count) for offer, count in offers])
    return plan_offers(
        everything, available, [Target(gpu, Fraction(n)) for gpu, n in targets.items()], policy
    )


def market_data(seed: int) -> tuple[list[tuple[Offer, int]], dict[str, int]]:
    source = random.Random(seed)
    offers = []
    for gpu, provider, gpus in itertools.product(CLASSES, "abcd", (1, 4, 8)):
        on_demand = round(gpus * source.uniform(1, 4), 2)
        spot = round(on_demand * source.uniform(0.2, 0.9), 2)
        offers.append((an_offer(provider, gpus, on_demand, gpu), source.randint(0, 4)))
        offers.append((an_offer(provider, gpus, spot, gpu, market="spot"), source.randint(0, 3)))
    return sorted(offers, key=lambda pair: pair[0].key), {gpu: source.randint(1, 60) for gpu in CLASSES}


@pytest.mark.parametrize("share", ["1", "0.5", "0.3"])
@pytest.mark.parametrize("seed", range(6))
def test_a_plan_keeps_every_promise_when_checked_from_outside(seed: int, share: str) -> None:
    offers, targets = market_data(seed)
    plan = solve(offers, targets, utilisation="0.9", share=share)
    obtainable = {offer.key: count for offer, count in offers}
    planned = {entry.offer.key: entry.instances for entry in plan.offers}
    assert all(0 < count <= obtainable[key] for key, count in planned.items())
    for offer, _ in offers:
        both = [(*offer.machine, market) for market in ("on-demand", "spot")]
        assert sum(planned.get(key, 0) for key in both) <= max(obtainable[key] for key in both)
    gpus = [(entry.offer, entry.instances * entry.offer.gpus_per_instance) for entry in plan.offers]
    total = sum(count for _, count in gpus)
    for provider in "abcd":
        held = sum(count for offer, count in gpus if offer.provider == provider)
        assert held <= Fraction(share) * total
    for entry in plan.classes:
        held = sum(count for offer, count in gpus if offer.gpu == entry.need.gpu)
        need = ceil(Fraction(targets[entry.need.gpu]) / Fraction("0.9"))
        assert (entry.planned_gpus, entry.need.required_gpus) == (held, need)
        assert entry.missing_gpus == max(0, need - held)
        assert bool(entry.limits) == bool(entry.missing_gpus)
    cost = sum((entry.offer.price * entry.instances for entry in plan.offers), Fraction(0))
    assert plan.cost_per_hour == cost
    assert plan.lower_bound_per_hour <= float(cost)
    assert plan.gap < 0.1


@pytest.mark.parametrize("seed", range(4))
def test_no_cheaper_plan_of_whole_machines_exists(seed: int) -> None:
    source = random.Random(seed)
    offers = [
        (an_offer(f"p{number}", gpus, round(gpus * source.uniform(1, 4), 2)), source.randint(0, 3))
        for number, gpus in enumerate((1, 2, 4, 8, 8))
    ]
    most = sum(offer.gpus_per_instance * count for offer, count in offers)
    target = max(1, most // 2)
    best = min(
        sum(offer.price * n for (offer, _), n in zip(offers, counts, strict=True))
        for counts in itertools.product(*(range(count + 1) for _, count in offers))
        if sum(o.gpus_per_instance * n for (o, _), n in zip(offers, counts, strict=True)) >= target
    )
    assert solve(offers, {CLASSES[0]: target}).cost_per_hour == best


def test_shuffled_rows_give_the_same_plan_even_between_equal_prices() -> None:
    offers = [(an_offer(provider, gpus, 2.0 * gpus), 2) for provider in "abcdef" for gpus in (1, 8)]
    first = solve(offers, {CLASSES[0]: 21})
    for seed in range(5):
        shuffled = random.Random(seed).sample(offers, len(offers))
        # the loader hands offers over in their fixed order
        again = solve(sorted(shuffled, key=lambda pair: pair[0].key), {CLASSES[0]: 21})
        assert (again.offers, again.cost_per_hour) == (first.offers, first.cost_per_hour)
    assert {entry.offer.provider for entry in first.offers} <= {"a", "b", "c"}


def test_utilisation_adds_a_reserve_above_the_target() -> None:
    (entry,) = solve([(an_offer("a", 1, 2), 99)], {CLASSES[0]: 30}, utilisation="0.9").classes
    assert (entry.need.required_gpus, entry.planned_gpus) == (34, 34)


def test_a_shortage_says_what_is_missing_and_which_supply_binds() -> None:
    plan = solve([(an_offer("a", 8, 20), 2), (an_offer("b", 1, 3), 0)], {CLASSES[0]: 20})
    (entry,) = plan.classes
    assert not plan.feasible
    assert (entry.planned_gpus, entry.missing_gpus) == (16, 4)
    assert entry.limits == (
        "supply: a r 8x on-demand: 2 instances were obtainable, all of them planned",
        "supply: of 1 of 2 H100-80GB offers nothing was obtainable",
    )


def test_a_class_that_nobody_sells_is_named_with_what_comes_near() -> None:
    plan = solve([(an_offer("a", 8, 20, "H200-141GB"), 2)], {"H100-80GB": 1})
    assert plan.classes[0].limits == (
        "price: no usable price row offers H100-80GB; did you mean `H200-141GB`?",
    )


def test_a_share_that_one_provider_alone_cannot_keep_buys_nothing_and_says_so() -> None:
    plan = solve([(an_offer("a", 1, 2), 99)], {CLASSES[0]: 10}, share="0.5")
    assert plan.offers == ()
    assert "every provider at or below 50%" in plan.classes[0].limits[0]


def test_machines_nobody_needs_are_not_bought_to_dilute_a_share() -> None:
    cheap = (an_offer("b", 1, 0.1, CLASSES[2]), 99)
    plan = solve([(an_offer("a", 1, 2), 99), cheap], {CLASSES[0]: 10, CLASSES[2]: 2}, share="0.5")
    planned = {entry.need.gpu: entry.planned_gpus for entry in plan.classes}
    assert planned == {CLASSES[0]: 2, CLASSES[2]: 2}
    assert any("share: a holds 2 of 4 GPUs" in text for text in plan.classes[0].limits)


def test_two_thousand_offers_and_forty_classes_are_solved_within_two_percent() -> None:
    source = random.Random(1)
    classes = [f"GPU{number}" for number in range(40)]
    offers = []
    for gpu, provider, gpus in itertools.product(classes, range(13), (1, 8)):
        price = round(gpus * source.uniform(1, 4), 4)
        offers.append((an_offer(f"p{provider}", gpus, price, gpu), source.randint(0, 12)))
        offers.append((an_offer(f"p{provider}", gpus, price / 2, gpu, market="spot"), source.randint(0, 9)))
    offers.sort(key=lambda pair: pair[0].key)
    plan = solve(offers, {gpu: source.randint(1, 300) for gpu in classes}, share="0.25")
    assert len(offers) == 2080
    assert plan.feasible
    assert plan.gap <= 0.02
