"""What operators say of their own fleet, and what the tables say against each other."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_pool.inputs import fleet_tables
from coldstart_pool.inputs.contradictions import quota_weight
from coldstart_pool.inputs.facts import SnapshotVariant
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Severity, TableReport
from coldstart_pool.inputs.loading import load_tables, read_tables
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.places import Selector, matching
from coldstart_pool.inputs.pool_inputs import PoolInputs, TableFiles
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.snapshots import read_snapshots, restorable

RULES = ReadingRules(now=datetime(2026, 6, 1, tzinfo=UTC))
PRICES = (
    "provider,region,instance_type,gpu,gpu_count,vcpus,on_demand,spot\n"
    "a,eu-1,big,H100,8,96,24,10\na,us-1,big,H100,8,96,25,11\nb,eu-2,one,L4,1,,0.8,\n"
)


def tables(tmp_path: Path, **texts: str) -> TableFiles:
    files = []
    for name, text in texts.items():
        path = tmp_path / f"{name}.csv"
        path.write_text(text)
        files.append((TableKind(name), path))
    return TableFiles(tuple(files), RULES)


def load(tmp_path: Path, **texts: str) -> PoolInputs:
    read = read_tables(tables(tmp_path, **texts))
    assert read.unreadable == ()
    return read.inputs


def found(report: TableReport) -> list[tuple[int, Severity, str]]:
    return [(finding.line, finding.severity, finding.reason) for finding in report.findings]


def against(inputs: PoolInputs) -> list[tuple[int, Severity, str]]:
    return [(finding.line, finding.severity, finding.reason) for finding in inputs.contradictions]


def test_the_small_tables_are_read_together(tmp_path: Path) -> None:
    inputs = load(
        tmp_path,
        prices=PRICES,
        current="provider,region,instance_type,market,instances,busy\nA,EU-1,BIG,on-demand,2,1\n",
        quota=(
            "group,provider,region,market,unit,limit,in use\n"
            "h,a,eu-1,spot,GPUs,64,8\nh,a,us-1,spot,GPUs,64,8\n"
        ),
        commitments="provider,region,instance_type,instances,until\na,eu-1,big,1,2026-12-31\n",
        domains="domain,provider,region\npower,a,eu-1\npower,b,eu-2\n",
        classes="application,gpu,accepts,regions,service_rate\nchat,H100,H200; L40S,eu-1|us-1,2.5\n",
    )
    assert against(inputs) == []
    (holding,) = inputs.holdings
    assert (holding.selector.instance_type, holding.instances, holding.busy) == ("big", 2, 1)
    (quota,) = inputs.quotas
    assert (quota.name, quota.unit, quota.limit, quota.in_use, len(quota.selectors)) == (
        "h",
        "gpus",
        64,
        8,
        2,
    )
    assert [entry.instances for entry in inputs.commitments] == [1]
    (domain,) = inputs.domains
    assert len(domain.selectors) == 2
    (entry,) = inputs.classes
    assert entry.gpus == ("H100-80GB", "H200-141GB", "L40S-48GB")
    assert (entry.regions, entry.service_rate) == (("eu-1", "us-1"), Fraction(5, 2))


def test_a_selector_fits_offers_by_the_fields_it_states(tmp_path: Path) -> None:
    offers = load(tmp_path, prices=PRICES).offers
    wanted = [
        Selector("a"),
        Selector(gpu="L4-24GB"),
        Selector("a", "eu-1", market="spot"),
        Selector("c"),
        Selector("a"),
    ]
    sizes = [len(numbers) for numbers in matching(offers, wanted)]
    assert sizes == [4, 1, 1, 0, 4]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (
            "current",
            "provider,instance_type,instances\na,big,2\na,big,3\n",
            [
                (2, Severity.INVALID, "contradicts another line"),
                (3, Severity.INVALID, "contradicts another line"),
            ],
        ),
        (
            "current",
            "provider,instance_type,instances\na,big,2\na,big,2\n",
            [(3, Severity.NOTED, "repeats an earlier row")],
        ),
        (
            "current",
            "provider,instance_type,instances\na,big,-2\n",
            [(2, Severity.INVALID, "unreadable number")],
        ),
        (
            "current",
            "provider,gpu,instances\na,H100,2\n",
            [(2, Severity.REFUSED, "machines are counted: name `instance_type` or `gpu_count`")],
        ),
        (
            "commitments",
            "provider,instance_type,instances,until\na,big,2,2026-01-01\n",
            [(2, Severity.REFUSED, "the commitment has ended")],
        ),
        (
            "commitments",
            "provider,instance_type,instances\na,big,0\n",
            [(2, Severity.INVALID, "a commitment to nothing")],
        ),
        ("quota", "provider,limit\na,nan\n", [(2, Severity.INVALID, "unreadable number")]),
        ("quota", "provider,limit\na,\n", [(2, Severity.INVALID, "no limit")]),
        (
            "quota",
            "provider,limit,unit\na,5,TPUs\n",
            [(2, Severity.REFUSED, "a quota counts gpus, instances or vcpus")],
        ),
        (
            "quota",
            "provider,limit,in_use\na,5,6\n",
            [(2, Severity.QUESTIONED, "more is in use than the quota allows")],
        ),
        (
            "quota",
            "group,provider,limit\ng,a,5\ng,b,6\n",
            [(3, Severity.INVALID, "quota group `g` has another limit in line 2")],
        ),
        (
            "domains",
            "domain,provider,region\nall,,\n",
            [(2, Severity.INVALID, "a domain that is everything: its loss leaves nothing to plan")],
        ),
        (
            "classes",
            "application,gpu,accepts\nx,H100,H100-80GB\n",
            [(2, Severity.INVALID, "a GPU is named twice")],
        ),
        (
            "classes",
            "application,gpu,service_rate\nx,H100,0\n",
            [(2, Severity.INVALID, "a replica that serves nothing")],
        ),
        (
            "classes",
            "application,gpu,gpus_per_replica\nx,H100,0\n",
            [(2, Severity.INVALID, "a replica without GPUs")],
        ),
        (
            "machines",
            "provider,driver,cpu_level\na,,\n",
            [(2, Severity.REFUSED, "neither a driver nor a CPU level of a machine")],
        ),
    ],
)
def test_a_row_that_cannot_be_is_found_by_line(
    tmp_path: Path, kind: str, text: str, expected: list[tuple[int, Severity, str]]
) -> None:
    (report,) = load(tmp_path, **{kind: text}).reports
    assert found(report) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            {"domains": "domain,provider\nx,a\nx,b\n"},
            [
                (line, Severity.INVALID, "domain `x` is everything: its loss leaves nothing to plan")
                for line in (2, 3)
            ],
        ),
        ({"domains": "domain,region\nx,moon\n"}, [(2, Severity.QUESTIONED, "domain `x` fits no offer")]),
        ({"quota": "group,provider,limit\nq,c,5\n"}, [(2, Severity.QUESTIONED, "quota `q` fits no offer")]),
        (
            {"quota": "group,provider,unit,limit\nq,b,vCPUs,5\n"},
            [
                (
                    2,
                    Severity.REFUSED,
                    "quota `q` counts vCPUs, and the price table does not say how many there are",
                )
            ],
        ),
        (
            {"commitments": "provider,instance_type,instances\na,huge,1\n"},
            [(2, Severity.REFUSED, "no price row for a commitment")],
        ),
        (
            {
                "commitments": "provider,region,instance_type,instances\na,eu-1,big,3\n",
                "quota": "group,provider,unit,limit\nq,a,vcpus,192\n",
            },
            [(2, Severity.INVALID, "a commitment to 3 instances is more than quota `q` allows")],
        ),
        (
            {"demand": "gpu,target_gpus\nH200,5\n"},
            [(0, Severity.QUESTIONED, "no usable price row offers H200-141GB")],
        ),
        (
            {
                "demand": "gpu,target_gpus\nH200,5\n",
                "classes": "application,gpu,accepts\nx,H200,H100\n",
            },
            [],
        ),
        (
            {"supply": "provider,instance_type,obtainable\na,bg,5\n"},
            [(2, Severity.NOTED, "no price row for observed machines")],
        ),
        (
            {"snapshots": "snapshot,gpu\nchat,H100\n", "classes": "application,gpu\nchta,H100\n"},
            [(0, Severity.QUESTIONED, "no snapshot `chta`: no machine is warm for chta")],
        ),
    ],
)
def test_what_tables_say_against_each_other_is_found(
    tmp_path: Path, texts: dict[str, str], expected: list[tuple[int, Severity, str]]
) -> None:
    assert against(load(tmp_path, prices=PRICES, **texts)) == expected


def test_a_contradiction_stops_a_plan_as_an_invalid_row_does(tmp_path: Path) -> None:
    given = tables(tmp_path, prices=PRICES, domains="domain,provider\nx,a\nx,b\n")
    with pytest.raises(DataError, match=r"domains\.csv:2: domain `x` is everything"):
        load_tables(given)
    assert load_tables(TableFiles(given.files, RULES, skip_invalid=True)).offers


def test_a_quota_weighs_an_instance_in_its_own_unit(tmp_path: Path) -> None:
    inputs = load(tmp_path, prices=PRICES, quota="provider,unit,limit\na,vcpus,1\na,gpus,1\na,instances,1\n")
    weights = {quota.unit: quota_weight(quota, inputs.offers[0]) for quota in inputs.quotas}
    assert weights == {"vcpus": 96, "gpus": 8, "instances": 1}


def test_the_same_offer_in_two_price_files_must_have_one_price(tmp_path: Path) -> None:
    first, second = tmp_path / "1.csv", tmp_path / "2.csv"
    first.write_text(PRICES)
    second.write_text(PRICES.replace(",24,", ",30,"))
    inputs = read_tables(TableFiles(((TableKind.PRICES, first), (TableKind.PRICES, second)), RULES)).inputs
    assert [finding.severity for finding in inputs.contradictions] == [Severity.QUESTIONED]
    assert "on-demand" in inputs.contradictions[0].detail
    assert len(inputs.offers) == 4


# --- snapshots ---


def offer(driver: str = "", level: str = "", gpu: str = "H100-80GB") -> Offer:
    return Offer("a", "r", "", "big", gpu, 8, "on-demand", Fraction(24), None, driver, level)


def test_a_machine_is_warm_only_where_gpu_driver_and_cpu_fit() -> None:
    variants = (SnapshotVariant("chat", "H100-80GB", "570.1", "x86-64-v3"),)
    assert restorable(variants, "chat", offer("570.1", "x86-64-v4")) is True
    assert restorable(variants, "chat", offer("570.1", "x86-64-v2")) is False
    assert restorable(variants, "chat", offer("580.2", "x86-64-v4")) is False
    assert restorable(variants, "chat", offer("570.1", "x86-64-v4", "H200-141GB")) is False
    assert restorable(variants, "draw", offer("570.1", "x86-64-v4")) is False
    assert restorable(variants, "chat", offer("", "x86-64-v4")) is None
    assert restorable((SnapshotVariant("chat", "", "", ""),), "chat", offer()) is True
    assert restorable((SnapshotVariant("chat", "", "", "aarch64"),), "chat", offer("", "x86-64-v4")) is False


def test_facts_of_machines_join_the_offers(tmp_path: Path) -> None:
    machines = "provider,instance_type,driver,cpu_level\na,,570.1,x86-64-v3\na,big,570.9,\n"
    inputs = load(tmp_path, prices=PRICES, machines=machines)
    assert {(one.provider, one.driver, one.cpu_level) for one in inputs.offers} == {
        ("a", "570.9", "x86-64-v3"),
        ("b", "", ""),
    }


def manifest(**changed: object) -> dict[str, object]:
    devices = [{"uuid": f"GPU-{n}", "name": "NVIDIA H100 80GB HBM3"} for n in range(2)]
    return {
        "schema": "coldstart.snap.show",
        "version": 1,
        "name": "chat",
        "cpu": {"level": "x86-64-v4"},
        "gpu": {"driver_version": "570.1", "devices": devices},
        **changed,
    }


def test_the_json_of_snap_show_is_an_inventory(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([manifest(), manifest(name="cpu", gpu=None)]))
    variants, report = read_snapshots(path, RULES)
    assert variants == (
        SnapshotVariant("chat", "H100-80GB", "570.1", "x86-64-v4"),
        SnapshotVariant("cpu", "", "", "x86-64-v4"),
    )
    assert report.clean


def test_the_json_of_snap_list_says_too_little_of_gpus_and_that_is_said(tmp_path: Path) -> None:
    entries = [
        {"name": "cpu", "gpu": False, "cpu_level": "x86-64-v3", "problem": None},
        {"name": "chat", "gpu": True, "cpu_level": "x86-64-v3", "problem": None},
        {"name": "old", "problem": "damaged"},
    ]
    path = tmp_path / "list.json"
    path.write_text(json.dumps({"schema": "coldstart.snap.list", "version": 1, "snapshots": entries}))
    variants, report = read_snapshots(path, RULES)
    assert [variant.snapshot for variant in variants] == ["cpu"]
    assert [(finding.severity, finding.detail) for finding in report.findings] == [
        (Severity.REFUSED, "snapshot 2 `chat`"),
        (Severity.REFUSED, "snapshot 3 `old`"),
    ]
    assert "snap show NAME --json" in report.findings[0].reason


@pytest.mark.parametrize("text", ["{", "[1]", '{"schema": "other"}', "[" * 100_000])
def test_json_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(DataError):
        read_snapshots(path, RULES)


def test_every_small_table_says_which_columns_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("colour\nred\n")
    for read in (
        fleet_tables.read_holdings,
        fleet_tables.read_commitments,
        fleet_tables.read_quotas,
        fleet_tables.read_domains,
        fleet_tables.read_classes,
        fleet_tables.read_machines,
    ):
        with pytest.raises(DataError, match="no column for `"):
            read(path, RULES)
