"""What replays say: sums that add up, rivals that are what they are called, promises held to the letter."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from coldstart_cli.errors import DataError
from coldstart_pool.need.counts import counts_in_lead_time
from coldstart_pool.need.needs import needs
from coldstart_pool.need.trace import ReplicaChange, ReplicaClass, Trace, build_trace
from coldstart_pool.replay.baselines import NONE, ONE_PER_APPLICATION, TENTH_OF_PEAK, baselines
from coldstart_pool.replay.fleet import Fleet, Market, Shelf
from coldstart_pool.replay.outcome import outcome
from coldstart_pool.replay.plan_fleet import fleet_of
from coldstart_pool.replay.planned import planned_from
from coldstart_pool.replay.simulate import Setting, verify
from coldstart_pool.replay.simulation import play
from coldstart_pool.replay.verify import level_for
from coldstart_pool.replay.walk_forward import walk_forward

A, B, GANG = ReplicaClass("A100-80GB"), ReplicaClass("L4-24GB"), ReplicaClass("A100-80GB", 8)
DAY = 86_400


def change(
    second: float, replicas: int = 1, application: str = "", replica_class: ReplicaClass = A
) -> ReplicaChange:
    return ReplicaChange(Fraction(str(second)), replica_class, abs(replicas), application, replicas > 0)


def bursts(sizes: list[int], gap_seconds: int = 3600) -> Trace:
    """One burst after the other, each of a size."""
    return build_trace(change(gap_seconds * number, size) for number, size in enumerate(sizes))


def plan(instances: int, level: float = 0.9, **fields: Any) -> dict[str, Any]:
    return {
        "policy": {"service_level": level, "lead_time_seconds": 60.0},
        "offers": [
            {
                "provider": "aurora", "region": "eu", "zone": "", "instance_type": "a1", "gpu": "A100-80GB",
                "gpus_per_instance": 1, "market": "on-demand", "instances": instances,
                "price_per_instance_hour_usd": 2.0,
            }
        ],
        "classes": [{"gpu": "A100-80GB"}],
        **fields,
    }  # fmt: skip


def test_waits_and_costs_are_those_of_the_replay() -> None:
    trace = build_trace([change(0, 3), change(3600, -3), change(7200)])
    fleet = Fleet((Shelf("one", 1, 2, 2.0),), ((0,),))
    found = outcome("plan", trace, fleet, play(trace, fleet, Market(60)), Fraction(60))
    assert (found.scale_ups, found.hits, found.pool_gpus, found.never_served) == (4, 3, 2, 0)
    assert (found.waits_seconds.p50, found.waits_seconds.p99, found.waits_seconds.max) == (0, 60, 60)
    # three replicas ran for an hour each, the third one a minute late
    assert found.busy_gpu_hours == pytest.approx(3 - 1 / 60)
    assert found.cost_usd == pytest.approx(2 * found.paid_gpu_hours)
    assert found.allocation_utilisation == pytest.approx((3 - 1 / 60) / found.paid_gpu_hours)
    assert [(entry.name, entry.scale_ups, entry.hits) for entry in found.classes] == [(A.name, 4, 3)]


def test_the_rivals_are_no_pool_a_tenth_of_the_peak_and_one_for_each_application() -> None:
    events = [
        change(0, 30, "chat"),
        change(10, 5, "search"),
        change(20, 2, "search", GANG),
        change(900, -30, "chat"),
    ]
    trace = build_trace(events)
    fleet = Fleet((Shelf("one", 1, 4, 2.0), Shelf("eight", 8, 1, 24.0)), ((0, 1), (1,)))
    found = {name: (their, theirs) for name, their, theirs in baselines(trace, fleet)}
    assert list(found) == [NONE, TENTH_OF_PEAK, ONE_PER_APPLICATION]
    hosts = {name: [(shelf.name, shelf.gpus_per_host, shelf.hosts) for shelf in theirs.shelves]
             for name, (_, theirs) in found.items()}  # fmt: skip
    assert hosts[NONE] == [("A100-80GB", 1, 0), ("A100-80GB x8", 8, 0)]
    assert hosts[TENTH_OF_PEAK] == [("A100-80GB", 1, 4), ("A100-80GB x8", 8, 1)]
    assert hosts[ONE_PER_APPLICATION] == [
        ("chat on A100-80GB", 1, 1), ("search on A100-80GB", 1, 1), ("search on A100-80GB x8", 8, 1),
    ]  # fmt: skip
    # 4 GPUs at 2 and 8 at 3 dollars
    assert found[NONE][1].shelves[0].usd_per_host_hour == pytest.approx((4 * 2 + 8 * 3) / 12)
    apart, theirs = found[ONE_PER_APPLICATION]
    assert int((play(apart, theirs, Market(60)).waits_ns == 0).sum()) == 3


def test_a_tenth_of_the_peak_is_left_out_where_nobody_knows_the_peak() -> None:
    trace = build_trace([change(0), change(9)])
    assert TENTH_OF_PEAK not in [
        name for name, _, _ in baselines(trace, Fleet((Shelf("a", 1, 1, 2.0),), ((0,),)))
    ]


def test_walking_forward_judges_each_day_with_the_days_before_it() -> None:
    # a burst an hour: of 1 on the first two days, of 2 on the third, of 2 on the fourth
    trace = bursts([1] * 48 + [2] * 48)
    walked = walk_forward(trace, Fraction(60), Fraction(1), 1)
    # days 2 to 4: hits 24 of 24, 24 of 48 (sized from ones), 48 of 48
    assert walked.judged_days == 3
    assert walked.hit_rate == pytest.approx(96 / 120)
    assert walked.mean_gpus == pytest.approx((1 + 1 + 2) / 3)
    assert (walked.kept, walked.level_that_keeps_it) == (False, None)


def test_walking_forward_finds_the_level_that_keeps_the_promise() -> None:
    # every day has bursts of 1 to 20: sized at the promise itself, the days keep it exactly
    trace = bursts([number % 24 + 1 for number in range(24 * 6)])
    walked = walk_forward(trace, Fraction(60), Fraction(9, 10), 2)
    assert walked.kept
    assert walked.level_that_keeps_it is not None
    assert walked.level_that_keeps_it <= Fraction(9, 10)


def test_a_trace_with_no_day_to_judge_is_refused() -> None:
    with pytest.raises(DataError, match="none is left to judge after 7 days") as caught:
        walk_forward(bursts([1] * 49), Fraction(60), Fraction(1), 7)
    assert caught.value.hint == "pass a longer trace, or `--walk-forward 2`"


def test_a_plan_that_keeps_its_promise_is_kept_and_one_machine_fewer_is_not() -> None:
    sized_from, unseen = bursts([1, 2, 3, 4, 5] * 20), bursts([1, 2, 3, 4, 4] * 20)
    setting = Setting(Market(60))
    assert verify(planned_from(plan(4, 0.99), "p.toml"), sized_from, unseen, setting).kept
    verdict = verify(planned_from(plan(3, 0.99), "p.toml"), sized_from, unseen, setting)
    assert not verdict.kept
    assert [(one.name, one.scale_ups) for one in verdict.broken] == [(A.name, 280)]
    # sized at this level on the same demand, the pool would have been 4
    level = verdict.level_that_keeps_it
    assert level is None
    assert verdict.remedy.startswith("another level does not help")
    level = level_for(sized_from, unseen, Fraction(60), Fraction(99, 100))
    assert level is not None
    assert needs(sized_from, Fraction(60), level)[0].gpus >= 4


def test_the_level_that_would_have_kept_it_covers_what_the_unseen_days_took() -> None:
    sized_from, unseen = bursts([1] * 95 + [5] * 5), bursts([1] * 60 + [4] * 40)
    level = level_for(sized_from, unseen, Fraction(60), Fraction(9, 10))
    assert level is not None
    size = needs(sized_from, Fraction(60), level)[0].gpus
    counts = counts_in_lead_time(unseen, Fraction(60))
    assert float((counts <= size).mean()) >= 0.9
    smaller = needs(sized_from, Fraction(60), level - Fraction(1, sized_from.scale_ups))[0].gpus
    assert float((counts <= smaller).mean()) < 0.9


def test_no_level_keeps_a_promise_against_bursts_that_the_demand_never_had() -> None:
    assert level_for(bursts([1] * 50), bursts([9] * 50), Fraction(60), Fraction(9, 10)) is None
    assert level_for(bursts([1] * 50), build_trace([change(0, 1, "", B), change(99, 1, "", B)]),
                     Fraction(60), Fraction(9, 10)) is None  # fmt: skip


def test_every_class_is_held_to_the_promise_though_all_together_keep_it() -> None:
    trace = build_trace([*(change(3600 * number) for number in range(99)), *(change(900, 1, "", GANG),) * 1])
    verdict = verify(planned_from(plan(1), "p.toml"), None, trace, Setting(Market(60)))
    assert verdict.outcome.hit_rate > 0.9
    assert [one.name for one in verdict.broken] == [GANG.name]
    assert verdict.level_that_keeps_it is None
    assert verdict.remedy == "size the pool from events, not from targets"


def test_a_class_takes_the_machines_that_the_plan_says_it_accepts() -> None:
    content = plan(
        1,
        classes=[
            {
                "class": "chat on L4-24GB",
                "gpu": "L4-24GB",
                "gpus_accepted": ["L4-24GB", "A100-80GB"],
                "regions": [],
            },
            {
                "class": "far on L4-24GB",
                "gpu": "L4-24GB",
                "gpus_accepted": ["A100-80GB"],
                "regions": ["us"],
            },
        ],
    )
    planned = planned_from(content, "p.toml")
    chat, far = (entry.replica_class for entry in planned.classes)
    assert chat == ReplicaClass("L4-24GB", application="chat")
    assert far == ReplicaClass("L4-24GB", application="far")
    trace = build_trace([change(0, 1, "chat", chat), change(50, 1, "far", far)])
    fleet = fleet_of(planned, trace)
    assert [[fleet.shelves[number].name for number in shelves] for shelves in fleet.allowed] == [
        ["aurora eu a1 on-demand"], ["far on L4-24GB"],
    ]  # fmt: skip
