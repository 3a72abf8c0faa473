"""What a plan says: confirmed prices, changes with reasons, remedies that were tried, exports."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from fractions import Fraction

import pytest

from coldstart_cli.errors import DataError, UsageError
from coldstart_pool.inputs.demand_values import Demand, DemandClass, DemandTrace, ReplicaEvent, Target
from coldstart_pool.inputs.facts import Holding, QuotaGroup
from coldstart_pool.inputs.observations import Observation, ObservedSupply
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.places import Selector
from coldstart_pool.inputs.pool_inputs import PoolInputs
from coldstart_pool.planning.answers.exports import csv_table, ec2_warm_pools, export_form, kubernetes
from coldstart_pool.planning.plan import Plan, plan_inputs
from coldstart_pool.planning.policy import Policy

pytest.importorskip("ortools")
F = Fraction
H100, H200, L40S = "H100-80GB", "H200-141GB", "L40S-48GB"
FREE = Policy(peak_utilisation=F(1), floor=F(0))


def an_offer(provider: str, gpus: int, price: float, gpu: str = H100, **more: str) -> Offer:
    place = {"region": "r", "zone": "", "market": "on-demand", "instance_type": f"{gpus}x", **more}
    return Offer(
        provider,
        place["region"],
        place["zone"],
        place["instance_type"],
        gpu,
        gpus,
        place["market"],
        F(str(price)),
    )


def selector(offer: Offer) -> Selector:
    return Selector(*offer.machine, offer.market)


def tables(offers: list[tuple[Offer, int]], targets: dict[str, int], **more: object) -> PoolInputs:
    observed = tuple(Observation(selector(offer), count, False, (2,)) for offer, count in offers)
    inputs = PoolInputs(
        offers=tuple(sorted((offer for offer, _ in offers), key=lambda offer: offer.key)),
        supply=ObservedSupply(observed),
        demand=Demand(tuple(Target(gpu, F(n)) for gpu, n in targets.items())),
    )
    return replace(inputs, **more)  # type: ignore[arg-type]


def remedies(plan: Plan) -> dict[str, str]:
    return {remedy.kind: remedy.sentence for remedy in plan.remedies if not remedy.missing_gpus}


def test_a_shadow_price_is_the_difference_of_two_plans_and_says_how_far_it_holds() -> None:
    offers = [(an_offer("a", 1, 2), 10), (an_offer("b", 1, 3), 99)]
    (price, limit) = plan_inputs(tables(offers, {H100: 12}), FREE).shadow_prices[:2]
    assert price.sentence == f"one more protected GPU of {H100} costs 3.00 USD/h; so do up to 64"
    assert price.usd_per_hour == pytest.approx(3)
    assert limit.sentence.startswith("one more instance would save 1.00 USD/h, where a r 1x on-demand: 10")
    assert limit.holds_units == 2  # after two more of the cheap ones no dear one is left


def test_an_unused_offer_says_below_which_price_it_enters() -> None:
    offers = [(an_offer("a", 1, 2), 99), (an_offer("b", 1, 3), 99)]
    plan = plan_inputs(tables(offers, {H100: 12}), FREE)
    assert "b r 1x on-demand would enter the plan below 2.00 USD/h, now 3.00" in [
        price.sentence for price in plan.shadow_prices
    ]
    cheaper = [(an_offer("a", 1, 2), 99), (an_offer("b", 1, 1.99), 99)]
    (entry,) = plan_inputs(tables(cheaper, {H100: 12}), FREE).offers
    assert entry.offer.provider == "b"


def test_surviving_and_the_share_each_say_what_they_cost() -> None:
    offers = [(an_offer("a", 1, 2, region="x"), 99), (an_offer("b", 1, 4, region="y"), 99)]
    for policy, text in (
        (replace(FREE, survive=F(1, 2)), "surviving the loss of any one domain costs 10.00 USD/h"),
        (replace(FREE, largest_share=F(1, 2)), "the largest share of a provider costs 10.00 USD/h"),
    ):
        plan = plan_inputs(tables(offers, {H100: 10}), policy)
        assert text in [price.sentence for price in plan.shadow_prices]
        assert plan.cost_per_hour == 30


def test_a_rule_costs_what_whole_machines_cost_with_it_and_without() -> None:
    offers = [(an_offer("a", 8, 20, region="x"), 5), (an_offer("b", 1, 3, region="y"), 10)]
    without = plan_inputs(tables(offers, {H100: 12}), FREE).cost_per_hour
    for policy, text in (
        (replace(FREE, survive=F(1, 2)), "surviving the loss of any one domain"),
        (replace(FREE, largest_share=F(1, 2)), "the largest share of a provider"),
    ):
        plan = plan_inputs(tables(offers, {H100: 12}), policy)
        more = plan.cost_per_hour - without
        assert f"{text} costs {float(more):.2f} USD/h" in [price.sentence for price in plan.shadow_prices]


def test_an_offer_of_the_plan_is_never_said_to_enter_it_at_a_lower_price() -> None:
    # the relaxation takes parts of the large machine, whole machines need some of the small ones
    offers = [(an_offer("a", 8, 20), 5), (an_offer("b", 1, 3), 10)]
    plan = plan_inputs(tables(offers, {H100: 12}), FREE)
    assert [(entry.offer.provider, entry.instances) for entry in plan.offers] == [("a", 1), ("b", 4)]
    assert not [price for price in plan.shadow_prices if price.kind == "price"]


def test_both_sides_of_the_spot_floor_are_shown() -> None:
    offers = [(an_offer("a", 1, 4), 99), (an_offer("a", 1, 1, market="spot", region="s"), 99)]
    plan = plan_inputs(tables(offers, {H100: 10}), replace(FREE, floor=F(1)))
    (text,) = [
        price.sentence for price in plan.shadow_prices if price.sentence.startswith("without the floor")
    ]
    # all spot: 30 USD less, and in one of twenty moments its region is gone, 10 GPUs at 20 USD
    assert text.startswith(
        "without the floor 30.00 USD/h would be saved, and spot that runs dry would cost 5.00 "
    )


def test_every_change_of_the_pool_has_its_reason() -> None:
    old, new = an_offer("a", 1, 9), an_offer("b", 8, 16)
    loaded = tables([(old, 99), (new, 99)], {H100: 16}, holdings=(Holding(selector(old), 16, 0, 2),))
    plan = plan_inputs(loaded, replace(FREE, shrink=F(1)))
    assert [(change.offer.provider, change.instances) for change in plan.changes] == [("a", -16), ("b", 2)]
    assert [change.reason for change in plan.changes] == [
        "every need is met without it: saves 9.00 USD/h each",
        f"without one of them: {H100} 8 GPUs short",
    ]


def test_a_remedy_asks_for_no_more_quota_than_it_takes() -> None:
    quota = QuotaGroup("a gpus", "gpus", F(17), F(1), (Selector(provider="a"),), (2,))
    plan = plan_inputs(tables([(an_offer("a", 8, 20), 9)], {H100: 32}, quotas=(quota,)), FREE)
    assert remedies(plan) == {"quota": "raise quota a gpus by 16 gpus"}
    raised = replace(quota, limit=F(33))
    assert plan_inputs(tables([(an_offer("a", 8, 20), 9)], {H100: 32}, quotas=(raised,)), FREE).feasible


def test_of_several_remedies_the_cheapest_of_each_kind_is_named_and_works() -> None:
    offers = [(an_offer("a", 8, 20), 1), (an_offer("b", 1, 9), 2), (an_offer("c", 8, 30, H200), 9)]
    unseen = an_offer("d", 8, 24)
    loaded = tables(offers, {H100: 20})
    loaded = replace(loaded, offers=tuple(sorted((*loaded.offers, unseen), key=lambda offer: offer.key)))
    plan = plan_inputs(loaded, FREE)
    assert (plan.feasible, plan.classes[0].missing_gpus) == (False, 10)
    assert remedies(plan) == {
        "supply": "obtain 2 more of a r 8x on-demand",
        "another offer": "obtain 2 of d r 8x on-demand: nobody has asked for it yet",
        "substitute": f"accept {H200} for {H100}",
    }


def test_a_smaller_gpu_is_no_substitute() -> None:
    plan = plan_inputs(tables([(an_offer("a", 8, 30, L40S), 9)], {H100: 8}), FREE)
    assert plan.remedies == ()


def test_what_the_operator_decided_is_loosened_only_as_far_as_needed() -> None:
    offers = [(an_offer("a", 1, 2, region="x"), 12), (an_offer("b", 1, 4, region="y"), 3)]
    plan = plan_inputs(tables(offers, {H100: 10}), replace(FREE, survive=F(1, 2)))
    assert remedies(plan)["survival"] == "let the loss of a domain leave 30 % of each need (`--survive 0.3`)"
    plan = plan_inputs(tables(offers, {H100: 10}), replace(FREE, largest_share=F(1, 2)))
    assert remedies(plan)["share"] == "allow one provider 70 % of the GPUs (`--largest-share 0.7`)"
    plan = plan_inputs(tables(offers, {H100: 10}), replace(FREE, budget=F(19)))
    assert remedies(plan)["budget"] == "raise `--budget` to 20.00 USD/h"
    spot = [(an_offer("a", 1, 2, market="spot"), 12), (an_offer("b", 1, 4, region="y"), 3)]
    plan = plan_inputs(tables(spot, {H100: 10}), replace(FREE, floor=F(1)))
    assert "let spot hold more: 0 % of each need" in remedies(plan)["floor"]


def test_a_class_tied_to_a_place_may_be_allowed_another() -> None:
    loaded = tables(
        [(an_offer("a", 1, 2, region="x"), 1), (an_offer("b", 1, 4, region="y"), 9)],
        {},
        demand=Demand((Target(H100, F(5), None, "chat"),)),
        classes=(DemandClass("chat", (H100,), regions=("x",)),),
    )
    assert remedies(plan_inputs(loaded, FREE))["region"] == f"allow region y for chat on {H100}"


def test_a_trace_can_be_helped_by_a_lower_level_or_a_faster_refill() -> None:
    starts = [F(1000 * n) for n in range(99)] + [F(50_100 + n) for n in range(5)]
    events = tuple(ReplicaEvent(time, "", H100, 1, 1) for time in sorted(starts))
    trace = DemandTrace(events, F(0), F(99_000), True, False)
    loaded = replace(tables([(an_offer("a", 1, 2), 2)], {}), demand=Demand((), trace))
    plan = plan_inputs(loaded, replace(FREE, lead_time_seconds=F(600), service_level=F(1)))
    assert plan.classes[0].missing_gpus == 4
    # two GPUs are enough for all but four of the 104
    assert remedies(plan)["service level"] == "promise 96.1% of scale-ups instead (`--service-level 0.961`)"
    kept = plan_inputs(loaded, replace(FREE, lead_time_seconds=F(600), service_level=F(961, 1000)))
    assert kept.feasible


def test_what_is_not_given_back_stands_in_no_way() -> None:
    offers = [(an_offer("a", 8, 20), 5), (an_offer("b", 1, 3), 10)]
    held = Holding(selector(offers[0][0]), 4, 0, 2)
    policy = replace(FREE, shrink=F(0), grow_gpus=0)
    plan = plan_inputs(tables(offers, {H100: 50}, holdings=(held,)), policy)
    assert plan.classes[0].limits == ("growth: 0 of 0 GPUs are started in this interval",)


def test_where_no_single_change_does_the_nearest_is_named_with_what_it_leaves() -> None:
    offers = [(an_offer("a", 1, 2), 2), (an_offer("a", 1, 2, L40S), 2)]
    quota = QuotaGroup("a gpus", "gpus", F(3), F(0), (Selector(provider="a"),), (2,))
    plan = plan_inputs(tables(offers, {H100: 4, L40S: 2}, quotas=(quota,)), FREE)
    (nearest,) = plan.remedies
    assert nearest.missing_gpus > 0
    assert not plan.feasible


def exported() -> Plan:
    offers = [
        (an_offer("aws", 8, 40, region="us-east-1", zone="us-east-1a", instance_type="p5.48xlarge"), 4),
        (an_offer("aws", 8, 12, region="us-east-1", instance_type="p5.48xlarge", market="spot"), 1),
    ]
    held = Holding(selector(offers[0][0]), 3, 5, 2)
    policy = replace(FREE, floor=F(1, 2), missing_price=F(1))
    return plan_inputs(tables(offers, {H100: 24}, holdings=(held,)), policy)


def test_kubernetes_gets_a_floor_that_yields_and_shrinks_slowly() -> None:
    plan = exported()
    document = json.loads(kubernetes(plan))
    priority, *rest = document["items"]
    assert (priority["kind"], priority["value"]) == ("PriorityClass", -10)
    floors = [item for item in rest if item["kind"] == "Deployment"]
    scalers = {item["metadata"]["name"]: item for item in rest if item["kind"] == "HorizontalPodAutoscaler"}
    assert len(floors) == len(plan.offers)
    for entry, floor in zip(plan.offers, floors, strict=True):
        pod = floor["spec"]["template"]["spec"]
        assert pod["priorityClassName"] == priority["metadata"]["name"]
        assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert pod["nodeSelector"]["node.kubernetes.io/instance-type"] == "p5.48xlarge"
        name = floor["metadata"]["name"]
        assert len(name) <= 63
        scaler = scalers[name]["spec"]
        assert scaler["minReplicas"] == entry.instances
        assert scaler["maxReplicas"] >= max(entry.instances, entry.held)
        assert scaler["behavior"]["scaleDown"]["policies"][0]["value"] == 1


@pytest.mark.parametrize("words", [{"instance_type": "8x H100 / big"}, {"region": "são paulo, br"}])
def test_kubernetes_gets_no_selector_that_no_node_can_have(words: dict[str, str]) -> None:
    plan = plan_inputs(tables([(an_offer("a", 8, 20, **words), 4)], {H100: 8}), FREE)
    with pytest.raises(DataError, match="labels of nodes"):
        kubernetes(plan)


def test_a_machine_that_the_tables_do_not_name_is_exported_under_no_made_up_name() -> None:
    plan = plan_inputs(tables([(an_offer("aws", 8, 20, instance_type=f"8x{H100}"), 4)], {H100: 8}), FREE)
    document = json.loads(ec2_warm_pools(plan))
    assert [one["reason"] for one in document["left_out"]] == ["the price table names no instance type"]
    with pytest.raises(DataError, match="labels of nodes"):
        kubernetes(plan)


def test_machines_paid_for_in_two_ways_are_two_groups_of_ec2() -> None:
    offers = [(an_offer("aws", 8, 20, instance_type="p5"), 1)]
    offers += [(an_offer("aws", 8, 10, instance_type="p5", market="reserved", region="r"), 1)]
    plan = plan_inputs(tables(offers, {H100: 8}), FREE)
    both = replace(plan, offers=tuple(replace(plan.offers[0], offer=offer) for offer, _ in offers))
    names = [
        one["PutWarmPool"]["AutoScalingGroupName"] for one in json.loads(ec2_warm_pools(both))["warm_pools"]
    ]
    assert names == ["coldstart-p5-r", "coldstart-p5-r-reserved"]


def test_ec2_gets_its_own_machines_and_is_told_what_was_left_out() -> None:
    document = json.loads(ec2_warm_pools(exported()))
    (pool,) = document["warm_pools"]
    assert pool["PutWarmPool"]["MinSize"] + 5 == pool["PutWarmPool"]["MaxGroupPreparedCapacity"]
    assert [entry["reason"] for entry in document["left_out"]] == ["a warm pool holds no spot machines"]


def test_the_csv_holds_one_row_an_offer() -> None:
    plan = exported()
    rows = list(csv.DictReader(io.StringIO(csv_table(plan))))
    assert [int(row["instances"]) for row in rows] == [entry.instances for entry in plan.offers]


@pytest.mark.parametrize("text", ["helm=x.json", "kubernetes", "kubernetes="])
def test_an_unknown_form_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="kubernetes, ec2-warm-pool, csv"):
        export_form(text)
