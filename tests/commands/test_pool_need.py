"""`coldstart pool need` as it is typed: pools are shared only by classes that machines can be shared by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import REPOSITORY, Coldstart

EXAMPLES = REPOSITORY / "examples" / "pool"
DAYS = [f"2026-05-0{day}T08:00:00Z,{'H100' if day % 2 else 'L40S'},4\n" for day in range(1, 5)]


def demand(tmp_path: Path, rows: str = "".join(DAYS), head: str = "time,gpu,replicas\n") -> Path:
    path = tmp_path / "demand.csv"
    path.write_text(head + rows)
    return path


def needed(coldstart: Coldstart, *options: object) -> dict[str, object]:
    result = coldstart("pool", "need", "--lead-time", "600", "--json", *options)
    assert result.status == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_classes_that_no_gpu_links_share_no_pool(coldstart: Coldstart, tmp_path: Path) -> None:
    document = needed(coldstart, "--demand", demand(tmp_path), "--idle-price", "2")
    assert (document["shared_pool_gpus"], document["separate_pools_gpus"]) == (8, 8)
    pools = document["pools"]
    assert isinstance(pools, list)
    assert [(pool["classes"], pool["gpus"]) for pool in pools] == [(["H100-80GB"], 4), (["L40S-48GB"], 4)]
    times = document["lead_times"]
    assert isinstance(times, list)
    assert (times[0]["gpus"], times[0]["cost_per_year_usd"]) == (8, 8 * 2 * 8760)


def test_a_gpu_that_both_accept_links_them(coldstart: Coldstart, tmp_path: Path) -> None:
    rows = "".join(f"{row.split(',')[0]},{'a' if 'H100' in row else 'b'},4\n" for row in DAYS)
    classes = tmp_path / "classes.csv"
    classes.write_text("application,gpu,accepts\na,H100,\nb,L40S,H100\n")
    trace = demand(tmp_path, rows, "time,application,replicas\n")
    document = needed(coldstart, "--demand", trace, "--classes", classes)
    assert (document["shared_pool_gpus"], document["separate_pools_gpus"]) == (4, 8)


@pytest.mark.parametrize("level", ["0.99", "0.5"])
def test_need_and_plan_agree(coldstart: Coldstart, level: str) -> None:
    demand = ("--demand", EXAMPLES / "starts.csv", "--classes", EXAMPLES / "classes.csv")
    need = needed(coldstart, *demand, "--service-level", level)
    plan = coldstart(
        "pool", "plan", *demand, "--prices", EXAMPLES / "prices.csv", "--supply", EXAMPLES / "supply.csv",
        "--lead-time", "600", "--service-level", level, "--json",
    )  # fmt: skip
    assert plan.status == 0, plan.stderr
    planned = json.loads(plan.stdout)
    entries = need["needs"]
    assert isinstance(entries, list)
    asked = {tuple(entry["classes"]): entry["gpus"] for entry in entries}
    assert asked == {(entry["class"],): entry["target_gpus"] for entry in planned["classes"]}
    assert need["shared_pool_gpus"] == sum(entry["planned_gpus"] for entry in planned["classes"])


def test_that_no_pool_pays_is_answer_three_with_the_document(coldstart: Coldstart, tmp_path: Path) -> None:
    result = coldstart(
        "pool", "need", "--demand", demand(tmp_path), "--lead-time", "600", "--cold-start-cost", "0.01",
        "--idle-price", "2", "--json",
    )  # fmt: skip
    assert result.status == 3
    assert json.loads(result.stdout)["shared_pool_gpus"] == 0
    assert "no pool pays at 0.01 USD for a cold start and 2 USD for an idle GPU-hour" in result.stderr


def test_a_level_and_a_worth_of_cold_starts_contradict_each_other(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    result = coldstart(
        "pool", "need", "--demand", demand(tmp_path), "--lead-time", "600", "--cold-start-cost", "30",
        "--service-level", "0.5", "--idle-price", "2",
    )  # fmt: skip
    assert result.status == 2
    assert "--service-level and --cold-start-cost both size the pool" in result.stderr


def test_a_trace_of_one_instant_is_refused_by_money_too(coldstart: Coldstart, tmp_path: Path) -> None:
    result = coldstart(
        "pool", "need", "--demand", demand(tmp_path, DAYS[0]), "--lead-time", "60", "--cold-start-cost", "5",
        "--idle-price", "2",
    )  # fmt: skip
    assert result.status == 65
    assert "the trace holds one instant only" in result.stderr


@pytest.mark.parametrize("rate", ["1e-9", "1e-300"])
def test_a_rate_that_makes_replicas_beyond_number_is_refused(
    coldstart: Coldstart, tmp_path: Path, rate: str
) -> None:
    rows = "2026-05-04 08:00:00,1200\n2026-05-04 08:01:00,2400\n"
    trace = demand(tmp_path, rows, 'Time,"chat req/s"\n')
    options = (
        "--demand", trace, "--tz", "UTC", "--set", "demand.value=requests", "--set", "demand.gpu=H100",
        "--service-rate", rate,
    )  # fmt: skip
    for command in (("check",), ("need", "--lead-time", "60")):
        result = coldstart("pool", *command, *options)
        assert result.status == 65
        assert "more than 5000000 replicas in one table" in result.stderr
