"""Demand: targets, and the quantile of scale-ups in a lead time."""

from __future__ import annotations

import random
from collections import deque
from fractions import Fraction
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, UsageError
from coldstart_pool.demand import ScaleUp, Target, load_demand, needed_gpus

LEVEL = Fraction(99, 100)


def load(tmp_path: Path, text: str, lead: int | None = None) -> tuple[Target, ...]:
    path = tmp_path / "demand.csv"
    path.write_text(text)
    seconds = None if lead is None else Fraction(lead)
    return load_demand(path, service_level=LEVEL, lead_time_seconds=seconds)[0]


def served_at_once(events: list[ScaleUp], buffer: int, lead: int) -> Fraction:
    """Event by event: `buffer` GPUs, each taken one replaced after `lead`; FIFO, one GPU a replica."""
    ready = deque(Fraction(-(10**9)) for _ in range(buffer))
    hits = total = 0
    for event in sorted(events):
        for _ in range(event.replicas):
            total += 1
            served = max(event.time, ready.popleft()) if buffer else None
            hits += served == event.time
            # its replacement was ordered when the replica asked, not when it was served
            ready.append(event.time + lead)
    return Fraction(hits, total)


@pytest.mark.parametrize("seed", range(8))
def test_the_buffer_is_the_smallest_that_keeps_the_promise_in_a_replay(seed: int) -> None:
    source = random.Random(seed)
    events = [
        ScaleUp(Fraction(source.randint(0, 5000)), source.choice((1, 1, 1, 2, 7)), 1) for _ in range(120)
    ]
    level = Fraction(source.choice((50, 80, 95, 99)), 100)
    need, replicas = needed_gpus(events, level, Fraction(300))
    assert replicas == sum(event.replicas for event in events)
    assert served_at_once(events, need, 300) >= level
    assert served_at_once(events, need - 1, 300) < level


def test_a_burst_in_one_instant_needs_all_its_gpus_at_full_service() -> None:
    assert needed_gpus([ScaleUp(Fraction(0), 10, 2)], Fraction(1), Fraction(1)) == (20, 10)


def test_arrivals_just_a_lead_time_apart_do_not_add_up() -> None:
    events = [ScaleUp(Fraction(10 * number), 1, 1) for number in range(100)]
    assert needed_gpus(events, Fraction(1), Fraction(10)) == (1, 100)
    assert needed_gpus(events, Fraction(1), Fraction(11)) == (2, 100)


def test_targets_are_read_by_class(tmp_path: Path) -> None:
    targets = load(tmp_path, "gpu,target_gpus\nL40S,2.5\nH100,30\n")
    assert targets == (Target("H100-80GB", Fraction(30)), Target("L40S-48GB", Fraction(5, 2)))


def test_events_need_a_lead_time(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, "time,gpu,replicas\n2024-01-01T00:00:00Z,H100,1\n")
    assert caught.value.hint == "pass `--lead-time SECONDS`"


def test_events_become_a_target_for_each_class(tmp_path: Path) -> None:
    text = (
        "time,gpu,replicas,gpus_per_replica\n"
        "2024-01-01T00:00:00Z,H100,2,8\n"
        "1704067260,H100,1,1\n"
        "1704067260000,L40S,3,1\n"
        "2024-01-01T02:00:00+01:00,H100,1,8\n"
    )
    assert load(tmp_path, text, lead=600) == (
        Target("H100-80GB", Fraction(17), 4),
        Target("L40S-48GB", Fraction(3), 3),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,target_gpus\nH100,-1\n", "demand.csv:2: target is negative"),
        ("gpu,target_gpus\nH100,NaN\n", "demand.csv:2: `NaN` is not a finite number"),
        ("gpu,target_gpus\nA100,1\n", "A100-40GB or A100-80GB"),
        ("gpu,target_gpus\nH100,1\nH100-80GB,2\n", "demand.csv:3: H100-80GB has a target already in line 2"),
        ("gpu,target_gpus\n", "no demand"),
        ("gpu\nH100\n", "no column for `target` or `time`"),
        ("time,gpu,target\n1,H100,1\n", "both targets"),
        ("time,gpu,replicas\nyesterday,H100,1\n", "`yesterday` is not a time"),
        ("time,gpu,replicas\n2024-01-01 00:00:00,H100,1\n2024-01-01T00:00Z,H100,1\n", "time without offset"),
        ("time,gpu,replicas\n1,H100,0\n", "a scale-up of nothing"),
        ("time,gpu,replicas\n1,H100,2000000\n", "more than 1000000 replicas"),
    ],
)
def test_bad_demand_is_never_left_out_but_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(tmp_path, text, lead=60)
