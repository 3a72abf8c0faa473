"""Real traffic, half held back: the arriving scale-up's count keeps the promise, others miss it."""

from __future__ import annotations

import csv
import math
from datetime import datetime
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from coldstart_pool.need.counts import counts_in_lead_time, quantile
from coldstart_pool.need.trace import NANOSECONDS, ReplicaChange, ReplicaClass, Trace, build_trace
from conftest import shared_data

LEVEL = Fraction(99, 100)
SLOT = ReplicaClass("L4-24GB")
HALF_NS = 720 * 60 * NANOSECONDS
SCRAPE_NS = 5 * NANOSECONDS


@cache
def functions() -> Trace:
    """Azure Functions, a day: a replica for each busy second a second; without the ten giants."""
    folder = shared_data("pool")
    with (folder / "azure_functions_2019_sample300_durations.csv").open() as file:
        seconds = {row["HashFunction"]: float(row["Average"]) / 1000 for row in csv.DictReader(file)}
    changes = []
    with (folder / "azure_functions_2019_sample300_invocations.csv").open() as file:
        for row in csv.DictReader(file):
            calls = np.array([int(row[f"minute_{minute}"]) for minute in range(1, 1441)])
            busy = np.ceil(calls * seconds[row["HashFunction"]] / 60).astype(int)
            if busy.max() < 200:
                changes += _changes(busy, 60, row["HashFunction"])
    return build_trace(changes)


@cache
def language_model(name: str) -> Trace:
    """Azure LLM requests, an hour: one request a replica, kept for a minute after its last one."""
    with Path(shared_data("pool") / f"azure_llm_2023_{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    asked = np.array([datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows])
    asked -= asked.min()
    # 30 ms a token written and 0.2 ms a token read: the trace does not say how long answers took
    took = [0.03 * int(row["GeneratedTokens"]) + 0.0002 * int(row["ContextTokens"]) for row in rows]
    running = np.zeros(int((asked + took).max()) + 3, int)
    np.add.at(running, asked.astype(int), 1)
    np.add.at(running, (asked + took).astype(int) + 1, -1)
    busy = np.cumsum(running)
    kept = np.array([busy[max(0, second - 59) : second + 1].max() for second in range(len(busy))])
    return build_trace(_changes(kept, 1, name))


def _changes(replicas: np.ndarray, step_seconds: int, application: str) -> list[ReplicaChange]:  # type: ignore[type-arg]
    change = np.diff(replicas)
    return [
        ReplicaChange(
            Fraction(step_seconds * (int(step) + 1)),
            SLOT,
            int(abs(change[step])),
            application,
            bool(change[step] > 0),
        )
        for step in np.nonzero(change)[0]
    ]


def gauge(trace: Trace, lead_seconds: int) -> int:
    """The 99th percentile over time of scale-ups in the last lead time, as a dashboard shows it."""
    times = trace.times_ns[trace.starts]
    scrapes = np.arange(trace.first_ns, trace.end_ns, SCRAPE_NS)
    inside = np.searchsorted(times, scrapes, "right") - np.searchsorted(
        times, scrapes - lead_seconds * NANOSECONDS, "right"
    )
    return quantile(inside, LEVEL)


def poisson(trace: Trace, lead_seconds: int) -> int:
    """The 99 % quantile of a Poisson count with the trace's mean."""
    mean = trace.scale_ups * lead_seconds / trace.span_seconds
    total, count = 0.0, -1
    while total < LEVEL:
        count += 1
        total += math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    return count


def hits(trace: Trace, lead_seconds: int, gpus: int) -> float:
    return float((counts_in_lead_time(trace, Fraction(lead_seconds)) <= gpus).mean())


def need(trace: Trace, lead_seconds: int) -> int:
    return quantile(counts_in_lead_time(trace, Fraction(lead_seconds)), LEVEL)


@pytest.mark.parametrize("lead", [30, 120, 600])
def test_a_pool_sized_on_the_morning_keeps_its_promise_in_the_afternoon(lead: int) -> None:
    trace = functions()
    seen, unseen = trace.between(0, HALF_NS), trace.between(HALF_NS, 2 * HALF_NS)
    assert hits(unseen, lead, need(seen, lead)) >= LEVEL
    assert hits(unseen, lead, poisson(seen, lead)) < 0.9


def test_a_gauge_misses_the_bursts_where_the_lead_time_is_shorter_than_the_gaps_between_them() -> None:
    trace = functions()
    seen, unseen = trace.between(0, HALF_NS), trace.between(HALF_NS, 2 * HALF_NS)
    assert hits(unseen, 30, gauge(seen, 30)) < 0.975


@pytest.mark.parametrize("lead", [30, 120, 600])
def test_one_shared_pool_needs_a_fraction_of_one_for_each_application_and_hits_more(lead: int) -> None:
    trace = functions()
    seen, unseen = trace.between(0, HALF_NS), trace.between(HALF_NS, 2 * HALF_NS)
    separate = hit = scale_ups = 0
    for number in range(len(trace.applications)):
        own = seen.rows(seen.application_of == number)
        size = need(own, lead)
        separate += size
        counts = counts_in_lead_time(unseen.rows(unseen.application_of == number), Fraction(lead))
        hit += int((counts <= size).sum())
        scale_ups += len(counts)
    shared = need(seen, lead)
    assert shared < 0.5 * separate
    assert hits(unseen, lead, shared) > hit / scale_ups


@pytest.mark.parametrize(("sized_from", "judged_on"), [("code", "conv"), ("conv", "code")])
def test_on_language_models_the_arriving_scale_up_is_the_better_witness(
    sized_from: str, judged_on: str
) -> None:
    seen, unseen = language_model(sized_from), language_model(judged_on)
    own = hits(unseen, 30, need(seen, 30))
    assert own >= hits(unseen, 30, gauge(seen, 30))
    assert own > hits(unseen, 30, poisson(seen, 30)) + 0.1
