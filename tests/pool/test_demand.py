"""Demand: targets, and the quantile of scale-ups in a lead time."""

from __future__ import annotations

import random
from collections import deque
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.demand_tables import read_demand, refuse_bad_demand
from coldstart_pool.inputs.demand_values import Demand, Target
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.need.counts import counts_in_lead_time, quantile
from coldstart_pool.need.trace import ReplicaChange, ReplicaClass, build_trace

LEVEL = Fraction(99, 100)


class ScaleUp(NamedTuple):
    """`replicas` of `gpus` GPUs each, wanted at one instant (seconds)."""

    time: Fraction
    replicas: int
    gpus: int


def needed_gpus(events: list[ScaleUp], level: Fraction, lead_seconds: Fraction) -> tuple[int, int]:
    """The buffer, and how many replicas asked."""
    changes = (
        ReplicaChange(event.time, ReplicaClass("H100-80GB", event.gpus), event.replicas) for event in events
    )
    counts = counts_in_lead_time(build_trace(changes), lead_seconds)
    return quantile(counts, level), len(counts)


def load(tmp_path: Path, text: str) -> Demand:
    path = tmp_path / "demand.csv"
    path.write_text(text)
    demand, report = read_demand(path, ReadingRules())
    refuse_bad_demand(report, demand)
    return demand


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
    targets = load(tmp_path, "gpu,target_gpus\nL40S,2.5\nH100,30\n").targets
    assert targets == (Target("H100-80GB", Fraction(30)), Target("L40S-48GB", Fraction(5, 2)))


def test_events_become_scale_ups_of_each_class(tmp_path: Path) -> None:
    text = (
        "time,gpu,replicas,gpus_per_replica\n"
        "2024-01-01T00:00:00Z,H100,2,8\n"
        "1704067260,H100,1,1\n"
        "1704067260000,L40S,3,1\n"
        "2024-01-01T02:00:00+01:00,H100,1,8\n"
    )
    trace = load(tmp_path, text).trace
    assert trace is not None
    by_gpu: dict[str, list[ScaleUp]] = {}
    for event in trace.starts:
        scale_up = ScaleUp(event.time_seconds, event.replicas, event.gpus_per_replica)
        by_gpu.setdefault(event.gpu, []).append(scale_up)
    needs = {gpu: needed_gpus(found, LEVEL, Fraction(600)) for gpu, found in by_gpu.items()}
    assert needs == {"H100-80GB": (17, 4), "L40S-48GB": (3, 3)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,target_gpus\nH100,-1\n", "demand.csv:2: unreadable number: `-1` is negative"),
        ("gpu,target_gpus\nH100,NaN\n", "demand.csv:2: unreadable number: `NaN` is not a finite number"),
        ("gpu,target_gpus\nA100,1\n", "A100-40GB or A100-80GB"),
        ("gpu,target_gpus\nH100,1\nH100-80GB,2\n", "demand.csv:3: H100-80GB has a target already in line 2"),
        ("gpu,target_gpus\n", "no demand"),
        ("gpu\nH100\n", "no column for `target` or `time`"),
        ("time,gpu,target\n1,H100,1\n", "both targets"),
        ("time,gpu,replicas\nyesterday,H100,1\n", "`yesterday` is not a time"),
        ("time,gpu,replicas\n2024-01-01 00:00:00,H100,1\n2024-01-01T00:00Z,H100,1\n", "time without offset"),
        ("time,gpu,replicas\n1,H100,0\n", "a scale-up of nothing"),
        ("time,gpu,replicas\n1,H100,6000000\n", "more than 5000000 replicas"),
    ],
)
def test_bad_demand_is_never_left_out_but_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(tmp_path, text)
