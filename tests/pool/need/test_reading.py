"""From demand tables to traces: classes, stops, replicas from before."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.demand_tables import read_demand
from coldstart_pool.inputs.demand_values import Demand, DemandClass
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.need.counts import peak_busy_gpus
from coldstart_pool.need.reading import by_classes, by_wants, trace_of
from coldstart_pool.need.trace import ReplicaClass


def demand(tmp_path: Path, text: str) -> Demand:
    path = tmp_path / "demand.csv"
    path.write_text(text)
    return read_demand(path, ReadingRules())[0]


def test_replicas_of_equal_wants_are_one_class_and_gangs_another(tmp_path: Path) -> None:
    found = trace_of(
        demand(
            tmp_path,
            "time,application,gpu,gpus_per_replica\n10,chat,H100,1\n20,search,H100,1\n30,train,H100,8\n",
        ),
        by_wants([DemandClass("search", ("H100-80GB", "H200-141GB"), regions=("eu",))]),
    )
    assert found.names == ("H100-80GB", "search on H100-80GB", "H100-80GB x8")
    assert found.applications == ("chat", "search", "train")
    assert [round(float(time) / 1e9) for time in found.times_ns] == [10, 20, 30]
    assert not found.has_stops


def test_a_plan_decides_which_classes_its_replay_has(tmp_path: Path) -> None:
    given = demand(tmp_path, "time,application,gpu\n10,chat,H100\n20,search,H100\n")
    own = ReplicaClass("H100-80GB", 1, "eu", "search")
    assert trace_of(given, by_classes([own, ReplicaClass("H100-80GB")])).names == ("H100-80GB", own.name)
    assert trace_of(given, by_classes([])).names == ("H100-80GB",)


def test_replicas_that_ran_before_the_first_sample_are_busy_but_no_scale_up(tmp_path: Path) -> None:
    found = trace_of(
        demand(tmp_path, "time,application,gpu,running\n0,chat,H100,5\n60,chat,H100,7\n120,chat,H100,7\n"),
        by_wants([]),
    )
    assert found.scale_ups == 2
    assert peak_busy_gpus(found) == 7
    assert found.span_seconds == 120
    assert found.between(70 * 10**9, 121 * 10**9).running_at_start == {0: 7}


def test_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no scale-up in it"):
        trace_of(demand(tmp_path, "gpu,target_gpus\nH100,3\n"), by_wants([]))


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    found = trace_of(demand(tmp_path, "time,gpu\n1700000000.123456789,H100\n1700000001,H100\n"), by_wants([]))
    assert found.times_ns[0] == 1_700_000_000_123_456_789
    assert Fraction(str(found.span_seconds)) < 1
