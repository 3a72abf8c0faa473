"""Observed supply."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.findings import Severity, TableReport
from coldstart_pool.inputs.observations import Observation
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.supply import availability
from coldstart_pool.inputs.supply_tables import read_supply
from conftest import shared_data


def offer(market: str = "on-demand", region: str = "eu-1", kind: str = "big", gpus: int = 8) -> Offer:
    return Offer("a", region, "", kind, "H100-80GB", gpus, market, Fraction(gpus * 2))


def load_supply(path: Path) -> tuple[tuple[Observation, ...], TableReport]:
    supply, report = read_supply(path, ReadingRules())
    return supply.observations, report


def observed(tmp_path: Path, text: str) -> tuple[Observation, ...]:
    path = tmp_path / "supply.csv"
    path.write_text(text)
    return load_supply(path)[0]


def test_an_offer_without_observation_is_not_available(tmp_path: Path) -> None:
    observations = observed(tmp_path, "provider,region,instance_type,obtainable\na,eu-1,big,3\n")
    available = availability([offer(), offer(region="us-1")], observations)
    assert [entry.region for entry in available.offers] == ["eu-1"]
    assert [entry.region for entry in available.unobserved] == ["us-1"]


def test_an_observation_of_one_market_says_nothing_about_the_other(tmp_path: Path) -> None:
    observations = observed(tmp_path, "provider,region,instance_type,market,obtainable\nA,EU-1,BIG,Spot,3\n")
    available = availability([offer("on-demand"), offer("spot")], observations)
    assert [entry.market for entry in available.offers] == ["spot"]


def test_spot_and_on_demand_of_one_machine_share_the_larger_limit(tmp_path: Path) -> None:
    observations = observed(
        tmp_path,
        "provider,region,instance_type,market,obtainable\na,eu-1,big,spot,2\na,eu-1,big,on-demand,5\n",
    )
    available = availability([offer("on-demand"), offer("spot")], observations)
    assert available.obtainable == (5, 2)
    assert [(limit.members, limit.count) for limit in available.limits if len(limit.members) == 2] == [
        ((0, 1), 5)
    ]


def test_a_row_that_names_only_a_gpu_limits_gpus_over_all_its_machines(tmp_path: Path) -> None:
    observations = observed(tmp_path, "provider,region,gpu,obtainable\na,eu-1,H100,10\n")
    available = availability([offer(), offer(kind="one", gpus=1)], observations)
    shared = next(limit for limit in available.limits if len(limit.members) == 2)
    assert (shared.weights, shared.count) == ((8, 1), 10)
    assert available.obtainable == (1, 10)


def test_attempts_give_the_count_that_nine_of_ten_reached(tmp_path: Path) -> None:
    head = "provider,region,instance_type,requested,obtained\n"
    steady = observed(tmp_path, head + "a,eu-1,big,4,4\n" * 18 + "a,eu-1,big,4,0\n")
    flaky = observed(tmp_path, head + "a,eu-1,big,4,4\n" * 15 + "a,eu-1,big,4,0\n" * 4)
    assert [entry.count for entry in steady] == [4]
    assert [entry.count for entry in flaky] == [0]


def test_several_counts_of_one_offer_give_the_smallest(tmp_path: Path) -> None:
    rows = "a,eu-1,big,5\na,eu-1,big,2\n"
    assert [entry.count for entry in observed(tmp_path, "provider,region,name,obtainable\n" + rows)] == [2]


@pytest.mark.parametrize("count", ["-1", "NaN", "inf", "2.5", "many"])
def test_a_count_that_cannot_be_right_is_invalid(tmp_path: Path, count: str) -> None:
    path = tmp_path / "supply.csv"
    path.write_text(f"provider,region,instance_type,obtainable\na,eu-1,big,{count}\n")
    observations, report = load_supply(path)
    assert observations == ()
    assert [(finding.line, finding.severity) for finding in report.findings] == [(2, Severity.INVALID)]


def test_a_table_without_counts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column for `obtainable` or `obtained`"):
        observed(tmp_path, "provider,region,instance_type\na,eu-1,big\n")


def test_recorded_attempts_are_joined_and_the_impossible_one_is_refused() -> None:
    observations, report = load_supply(shared_data("pool/dirty/supply_timezones.csv"))
    assert [(entry.selector[4], entry.selector[6], entry.count) for entry in observations] == [
        ("H100-80GB", "spot", 0)
    ]
    naive = "time without offset: pass `--tz ZONE` (its count is used)"
    assert [(finding.line, finding.reason) for finding in report.findings] == [
        (2, naive),
        (3, naive),
        (5, "obtained 5 of 4 requested"),
        (7, naive),
    ]
