"""Attempts to obtain machines: times, lead times, reasons, and what stands in for an observation."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from coldstart_pool.inputs.findings import Severity, TableReport
from coldstart_pool.inputs.observations import ObservedSupply, supply_blocks
from coldstart_pool.inputs.rules import ReadingRules, reading_rules
from coldstart_pool.inputs.supply_tables import read_supply
from conftest import shared_data

HEADER = "time,provider,region,zone,gpu,gpu_count,market,asked,got,seconds,reason\n"


def load(tmp_path: Path, text: str, rules: ReadingRules | None = None) -> tuple[ObservedSupply, TableReport]:
    path = tmp_path / "supply.csv"
    path.write_text(text)
    return read_supply(path, rules or ReadingRules())


def test_an_attempt_keeps_its_time_lead_time_and_reason(tmp_path: Path) -> None:
    supply, report = load(
        tmp_path,
        HEADER
        + "2026-01-01T00:10:00Z,a,eu-1,z1,H100,8,spot,4,0,35,InsufficientInstanceCapacity\n"
        + "2026-01-01T00:00:00Z,a,eu-1,z1,H100,8,spot,4,4,140,\n",
    )
    second, first = supply.attempts[1], supply.attempts[0]
    assert (first.requested, first.obtained, first.lead_seconds) == (4, 4, 140)
    assert (second.obtained, second.lead_seconds, second.reason) == (0, None, "InsufficientInstanceCapacity")
    assert second.time_seconds - first.time_seconds == 600
    assert supply.lead_seconds == (Fraction(140),)
    assert "not in order of time" in dict(report.decisions)["order"]


def test_blocks_of_time_keep_what_happened_at_once_together(tmp_path: Path) -> None:
    rows = [
        f"2026-01-01T0{hour}:{minute:02}:00Z,a,eu-1,{zone},H100,8,spot,1,{got},,\n"
        for hour, minute, zone, got in ((0, 1, "z1", 1), (0, 59, "z2", 0), (2, 0, "z1", 0), (2, 5, "z1", 1))
    ]
    supply, _ = load(tmp_path, HEADER + "".join(rows))
    blocks = supply_blocks(supply.attempts, 3600)
    assert [[(place.zone, asked, got) for place, asked, got in block.outcomes] for block in blocks] == [
        [("z1", 1, 1), ("z2", 1, 0)],
        [("z1", 2, 1)],
    ]
    assert blocks[1].start_seconds - blocks[0].start_seconds == 7200


def test_a_failure_at_an_unclear_time_still_counts_against_the_offer(tmp_path: Path) -> None:
    supply, report = load(tmp_path, HEADER + "2026-03-29 02:30:00,a,eu-1,,H100,8,spot,4,0,,\n")
    assert supply.attempts == ()
    assert [entry.count for entry in supply.observations] == [0]
    assert [finding.severity for finding in report.findings] == [Severity.QUESTIONED]
    assert report.used_rows == 1


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ("H100,8,spot,4,5,,", "obtained 5 of 4 requested"),
        ("H100,8,spot,0,0,,", "an attempt to obtain nothing"),
        ("H100,0,spot,1,1,,", "no GPUs in the instance"),
        ("A100,8,spot,1,1,,", "ambiguous GPU name: `A100` may be A100-40GB or A100-80GB"),
        ("H100,8,auction,1,1,,", "unknown market"),
        ("H100,8,spot,4,4,-3,", "unreadable number"),
        (",,spot,4,4,3,", "neither an instance type nor a GPU"),
    ],
)
def test_an_attempt_that_cannot_be_is_left_out_by_line(tmp_path: Path, cells: str, reason: str) -> None:
    supply, report = load(tmp_path, HEADER + f"2026-01-01T00:00:00Z,a,eu-1,,{cells}\n")
    assert supply.observations == ()
    assert [(finding.line, finding.reason) for finding in report.findings] == [(2, reason)]


def test_a_placement_score_is_said_to_be_no_observation(tmp_path: Path) -> None:
    text = (
        "Time,InstanceType,Region,AZ,SPS,T3,T2,IF,OndemandPrice,SpotPrice,Savings\n"
        "2026-01-01T00:00:00Z,p5.48xlarge,us-east-1,use1-az1,3,50,50,3,55,20,64\n"
        "2026-01-01T00:00:00Z,p5.48xlarge,us-east-1,use1-az2,1,-1,-1,1,55,20,64\n"
    )
    rules = reading_rules(constants=["supply.provider=aws"])
    supply, report = load(tmp_path, text, rules)
    assert supply.observations == ()
    assert [(finding.line, finding.severity, finding.reason) for finding in report.findings] == [
        (2, Severity.QUESTIONED, "advertised capacity, which nobody obtained"),
        (3, Severity.REFUSED, "a placement score is advice and no observation: nothing was asked for"),
    ]
    accepted, _ = load(
        tmp_path, text, reading_rules(constants=["supply.provider=aws"], accept_suspicious=True)
    )
    assert [entry.count for entry in accepted.observations] == [50]


def test_recorded_attempts_of_mixed_zones_and_units_are_put_in_order() -> None:
    path = shared_data("pool/dirty/supply_timezones.csv")
    supply, report = read_supply(path, reading_rules(time_zone="Europe/Berlin"))
    assert [attempt.line for attempt in supply.attempts] == [7, 2, 4, 6]
    assert [finding.line for finding in report.findings] == [3, 5]
    assert dict(report.decisions)["times"] == (
        "milliseconds since 1970; times with their offset; times without offset read as Europe/Berlin"
    )
