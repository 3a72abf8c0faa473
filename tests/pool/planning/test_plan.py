"""Plans from loaded tables: every constraint checked again from outside, shortages with their reasons."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest

from coldstart_pool.inputs.demand_values import Demand, DemandClass, DemandTrace, ReplicaEvent, Target
from coldstart_pool.inputs.facts import Commitment, Holding, QuotaGroup, SnapshotVariant
from coldstart_pool.inputs.observations import Attempt, Observation, ObservedSupply
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.places import Selector
from coldstart_pool.inputs.pool_inputs import PoolInputs
from coldstart_pool.planning.plan import Plan, plan_inputs
from coldstart_pool.planning.policy import Policy

pytest.importorskip("ortools")
CLASSES = ("H100-80GB", "H200-141GB", "L40S-48GB")
FREE = Policy(peak_utilisation=Fraction(1), floor=Fraction(0))


def an_offer(
    provider: str,
    gpus: int,
    price: float,
    gpu: str = CLASSES[0],
    *,
    market: str = "on-demand",
    region: str = "r",
) -> Offer:
    return Offer(provider, region, "", f"{gpus}x", gpu, gpus, market, Fraction(str(price)))


def selector(offer: Offer) -> Selector:
    return Selector(*offer.machine, offer.market)


def tables(offers: list[tuple[Offer, int]], targets: dict[str, int]) -> PoolInputs:
    observed = tuple(Observation(selector(offer), count, False, (2,)) for offer, count in offers)
    return PoolInputs(
        offers=tuple(sorted((offer for offer, _ in offers), key=lambda offer: offer.key)),
        supply=ObservedSupply(observed),
        demand=Demand(tuple(Target(gpu, Fraction(n)) for gpu, n in targets.items())),
    )


def counts(plan: Plan) -> dict[tuple[str, str, int], int]:
    return {
        (entry.offer.provider, entry.offer.market, entry.offer.gpus_per_instance): entry.instances
        for entry in plan.offers
    }


def market_data(seed: int) -> tuple[list[tuple[Offer, int]], dict[str, int]]:
    source = random.Random(seed)
    offers = []
    for gpu, provider, gpus in itertools.product(CLASSES, "abcd", (1, 4, 8)):
        on_demand = round(gpus * source.uniform(1, 4), 2)
        spot = round(on_demand * source.uniform(0.2, 0.9), 2)
        offers.append((an_offer(provider, gpus, on_demand, gpu), source.randint(0, 4)))
        offers.append((an_offer(provider, gpus, spot, gpu, market="spot"), source.randint(0, 3)))
    return offers, {gpu: source.randint(1, 60) for gpu in CLASSES}


@pytest.mark.parametrize("share", ["1", "0.5", "0.3"])
@pytest.mark.parametrize("seed", range(4))
def test_a_plan_keeps_every_promise_when_checked_from_outside(seed: int, share: str) -> None:
    offers, targets = market_data(seed)
    policy = Policy(largest_share=Fraction(share), floor=Fraction(1, 2))
    plan = plan_inputs(tables(offers, targets), policy)
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
        (gpu,) = entry.needed.classes
        held = sum(count for offer, count in gpus if offer.gpu == gpu)
        steady = sum(count for offer, count in gpus if offer.gpu == gpu and offer.market != "spot")
        need = ceil(Fraction(targets[gpu]) / Fraction("0.9"))
        assert (entry.planned_gpus, entry.required_gpus) == (held, need)
        missing = max(need - held, ceil(Fraction(targets[gpu], 2)) - steady, 0)
        assert entry.missing_gpus == missing
        assert bool(entry.limits) == bool(missing)
    cost = sum((entry.offer.price * entry.instances for entry in plan.offers), Fraction(0))
    assert plan.cost_per_hour == cost
    assert plan.lower_bound_per_hour <= cost


def test_utilisation_adds_a_reserve_above_a_target() -> None:
    (entry,) = plan_inputs(tables([(an_offer("a", 1, 2), 99)], {CLASSES[0]: 30}), Policy()).classes
    assert (entry.required_gpus, entry.planned_gpus) == (34, 34)


def test_a_shortage_says_what_is_missing_and_which_supply_binds() -> None:
    plan = plan_inputs(tables([(an_offer("a", 8, 20), 2), (an_offer("b", 1, 3), 0)], {CLASSES[0]: 20}), FREE)
    (entry,) = plan.classes
    assert not plan.feasible
    assert (entry.planned_gpus, entry.missing_gpus) == (16, 4)
    assert entry.limits == (
        "supply: a r 8x on-demand: 2 instances were obtainable, all of them planned",
        "supply: of 1 of 2 H100-80GB offers nothing was obtainable",
    )


def test_a_class_that_nobody_sells_is_named_with_what_comes_near() -> None:
    plan = plan_inputs(tables([(an_offer("a", 8, 20, "H200-141GB"), 2)], {"H100-80GB": 1}), FREE)
    assert plan.classes[0].limits == (
        "price: no usable price row offers H100-80GB; did you mean `H200-141GB`?",
    )


def test_a_share_that_one_provider_alone_cannot_keep_buys_nothing_and_says_so() -> None:
    policy = replace(FREE, largest_share=Fraction(1, 2))
    plan = plan_inputs(tables([(an_offer("a", 1, 2), 99)], {CLASSES[0]: 10}), policy)
    assert plan.offers == ()
    assert "one machine more of a would pass its largest share" in plan.classes[0].limits[0]


def test_machines_nobody_needs_are_not_bought_to_dilute_a_share() -> None:
    offers = [(an_offer("a", 1, 2), 99), (an_offer("b", 1, 0.1, CLASSES[2]), 99)]
    policy = replace(FREE, largest_share=Fraction(1, 2))
    plan = plan_inputs(tables(offers, {CLASSES[0]: 10, CLASSES[2]: 2}), policy)
    assert {entry.needed.label: entry.planned_gpus for entry in plan.classes} == {
        CLASSES[0]: 2,
        CLASSES[2]: 2,
    }


def test_a_floor_keeps_spot_to_what_is_above_it() -> None:
    offers = [(an_offer("a", 1, 3), 99), (an_offer("b", 1, 1, market="spot"), 99)]
    for floor, steady in (("1", 10), ("0.5", 5), ("0", 0)):
        policy = replace(FREE, floor=Fraction(floor), missing_price=Fraction(1, 100))
        plan = plan_inputs(tables(offers, {CLASSES[0]: 10}), policy)
        assert counts(plan).get(("a", "on-demand", 1), 0) == steady


def test_spot_that_was_dry_at_the_same_moments_is_not_trusted_together() -> None:
    """Two zones, each up half the time: apart, one of them is always there; together, both are gone."""
    offers = [
        (an_offer("a", 1, 4, region="od"), 99),
        (an_offer("a", 1, 1, market="spot", region="east"), 99),
        (an_offer("a", 1, 1, market="spot", region="west"), 99),
    ]
    east, west = (selector(offer) for offer, _ in offers[1:])

    def plan(*, together: bool) -> Plan:
        attempts = []
        for hour in range(40):
            up = (hour // 4) % 2
            got = {east: 10 * up, west: 10 * (up if together else 1 - up)}
            attempts += [
                Attempt(Fraction(3600 * hour), place, 10, got[place], None, "", 2) for place in (east, west)
            ]
        loaded = tables(offers, {CLASSES[0]: 10})
        loaded = replace(loaded, supply=replace(loaded.supply, attempts=tuple(attempts)))
        return plan_inputs(loaded, replace(FREE, missing_price=Fraction(50)))

    apart, joint = counts_by_region(plan(together=False)), counts_by_region(plan(together=True))
    assert apart == {"east": 10, "west": 10}
    assert joint["od"] == 10


def test_spot_that_is_there_half_the_time_has_the_size_it_had_when_it_was_there() -> None:
    od, spot = an_offer("a", 1, 4, region="od"), an_offer("a", 1, 1, market="spot", region="east")
    attempts = tuple(
        Attempt(Fraction(3600 * hour), selector(spot), 8, 8 * (hour % 2), None, "", hour + 2)
        for hour in range(40)
    )
    observed = (
        Observation(selector(od), 99, False, (2,)),
        Observation(selector(spot), 0, False, tuple(range(2, 42))),  # the tenth worst attempt brought nothing
    )
    loaded = replace(
        tables([(od, 99), (spot, 0)], {CLASSES[0]: 10}), supply=ObservedSupply(observed, attempts)
    )
    cheap = plan_inputs(loaded, replace(FREE, missing_price=Fraction(1)))
    assert counts_by_region(cheap) == {"od": 2, "east": 8}
    dear = plan_inputs(loaded, replace(FREE, missing_price=Fraction(30)))
    assert counts_by_region(dear) == {"od": 10}


def counts_by_region(plan: Plan) -> dict[str, int]:
    return {entry.offer.region: entry.instances for entry in plan.offers}


def test_losing_any_one_region_leaves_what_was_promised() -> None:
    offers = [(an_offer("a", 1, price, region=f"r{n}"), 99) for n, price in enumerate((1, 2, 3))]
    policy = replace(FREE, survive=Fraction(7, 10))
    plan = plan_inputs(tables(offers, {CLASSES[0]: 10}), policy)
    held = counts_by_region(plan)
    assert min(sum(held.values()) - count for count in held.values()) >= 7
    assert plan.classes[0].survival[0][1] == 7


def test_a_substitute_serves_only_so_many_classes_at_once() -> None:
    """Two targets that both accept the same machines need the sum of both of them."""
    offers = [(an_offer("a", 1, 2, "H200-141GB"), 9)]
    loaded = replace(
        tables(offers, {}),
        demand=Demand(
            (Target(CLASSES[0], Fraction(5), None, "chat"), Target(CLASSES[1], Fraction(4), None, "code"))
        ),
        classes=(DemandClass("chat", (CLASSES[0], CLASSES[1])), DemandClass("code", (CLASSES[1],))),
    )
    plan = plan_inputs(loaded, FREE)
    assert (plan.feasible, counts(plan)) == (True, {("a", "on-demand", 1): 9})


def test_a_gang_is_not_served_by_single_machines() -> None:
    offers = [(an_offer("a", 1, 1), 99), (an_offer("b", 8, 20), 9)]
    loaded = replace(
        tables(offers, {}),
        demand=Demand((Target(CLASSES[0], Fraction(16), None, "big"),)),
        classes=(DemandClass("big", (CLASSES[0],), gpus_per_replica=8),),
    )
    assert counts(plan_inputs(loaded, FREE)) == {("b", "on-demand", 8): 2}


def test_a_machine_counts_only_where_the_snapshot_can_be_restored() -> None:
    good = replace(an_offer("b", 1, 9), driver="570.1")
    offers = [(an_offer("a", 1, 1), 99), (replace(an_offer("c", 1, 1), driver="550.1"), 99), (good, 99)]
    loaded = replace(
        tables(offers, {}),
        demand=Demand((Target(CLASSES[0], Fraction(3), None, "chat"),)),
        snapshots=(SnapshotVariant("chat", CLASSES[0], "570.1", ""),),
    )
    assert counts(plan_inputs(loaded, FREE)) == {("b", "on-demand", 1): 3}
    plan = plan_inputs(replace(loaded, snapshots=(SnapshotVariant("chat", CLASSES[0], "1.0", ""),)), FREE)
    assert any("not known to restore `chat`" in text for text in plan.classes[0].limits)


def test_a_slow_gpu_counts_for_what_it_does() -> None:
    from coldstart_pool.planning.policy import Speed

    policy = replace(FREE, speeds=(Speed("a", CLASSES[0], Fraction(1, 2)),))
    offers = [(an_offer("a", 1, 1.5), 99), (an_offer("b", 1, 2), 99)]
    assert counts(plan_inputs(tables(offers, {CLASSES[0]: 10}), policy)) == {("b", "on-demand", 1): 10}


def test_a_pool_shrinks_slowly_and_commitments_stay() -> None:
    offers = [(an_offer("a", 1, 3), 99), (an_offer("b", 1, 2), 99)]
    loaded = replace(tables(offers, {CLASSES[0]: 10}), holdings=(Holding(selector(offers[0][0]), 100, 0, 2),))
    assert counts(plan_inputs(loaded, FREE)) == {("a", "on-demand", 1): 90}
    committed = replace(
        tables(offers, {CLASSES[0]: 10}), commitments=(Commitment(selector(offers[0][0]), 4, "", (2,)),)
    )
    plan = plan_inputs(committed, FREE)
    assert counts(plan) == {("a", "on-demand", 1): 4, ("b", "on-demand", 1): 6}
    assert (plan.cost_per_hour, plan.committed_per_hour) == (24, 12)


def test_quota_and_budget_bind_and_are_named() -> None:
    offers = [(an_offer("a", 8, 20), 9)]
    quota = QuotaGroup(
        "a spot and on-demand", "gpus", Fraction(20), Fraction(3), (Selector(provider="a"),), (2,)
    )
    plan = plan_inputs(replace(tables(offers, {CLASSES[0]: 32}), quotas=(quota,)), FREE)
    assert (counts(plan), plan.classes[0].missing_gpus) == ({("a", "on-demand", 8): 2}, 16)
    assert plan.classes[0].limits == ("quota: a spot and on-demand: 16 of 17 are planned",)
    plan = plan_inputs(tables(offers, {CLASSES[0]: 32}), replace(FREE, budget=Fraction(50)))
    assert plan.classes[0].limits == ("budget: 40.00 of 50.00 USD/h are planned",)


def test_a_trace_is_sized_by_class_and_by_union() -> None:
    events = tuple(
        ReplicaEvent(Fraction(1000 * n + 5 * k), app, gpu, 1, 1)
        for n in range(20)
        for k, (app, gpu) in enumerate((("x", CLASSES[0]), ("y", CLASSES[2])))
    )
    trace = DemandTrace(events, Fraction(0), Fraction(20000), True, False)
    offers = [(an_offer("a", 1, 2, CLASSES[0]), 99), (an_offer("a", 1, 1, CLASSES[2]), 99)]
    both = (DemandClass("y", (CLASSES[2], CLASSES[0])),)
    loaded = replace(tables(offers, {}), demand=Demand((), trace), classes=both)
    policy = replace(FREE, lead_time_seconds=Fraction(60), service_level=Fraction(1))
    plan = plan_inputs(loaded, policy)
    assert {entry.needed.label: int(entry.required_gpus) for entry in plan.groups} == {
        CLASSES[0]: 1, f"y on {CLASSES[2]}": 1, f"{CLASSES[0]} + y on {CLASSES[2]}": 2,
    }  # fmt: skip
    assert plan.feasible
