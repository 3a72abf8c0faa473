"""`coldstart pool need` and `coldstart pool simulate` as they are typed."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from conftest import Coldstart

pytest.importorskip("numpy")
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven days of replicas of four applications, one of them on whole hosts."""
    source = random.Random(1)
    lines = ["time,stop,application,gpu,gpus_per_replica,replicas"]
    seconds = 0.0
    while seconds < 7 * 86_400:
        seconds += source.expovariate(1 / 900)
        application = source.choice(("chat", "search", "vision", "train"))
        start = START + timedelta(seconds=int(seconds))
        stop = start + timedelta(seconds=int(source.expovariate(1 / 1800)) + 60)
        gpus, replicas = (8, 1) if application == "train" else (1, source.choice((1, 1, 1, 4)))
        gpu = "L40S" if application == "vision" else "H100"
        lines.append(f"{start.isoformat()},{stop.isoformat()},{application},{gpu},{gpus},{replicas}")
    path = tmp_path_factory.mktemp("demand") / "starts.csv"
    path.write_text("\n".join([*lines, ""]))
    return path


def plan_document(**changed: Any) -> dict[str, Any]:
    def offer(instance_type: str, gpu: str, gpus: int, market: str, instances: int) -> dict[str, Any]:
        return {
            "provider": "aurora", "region": "eu", "zone": "", "instance_type": instance_type, "gpu": gpu,
            "gpus_per_instance": gpus, "market": market, "instances": instances,
            "price_per_instance_hour_usd": 2.5 * gpus, "obtainable_instances": 9,
        }  # fmt: skip

    return {
        "schema": "coldstart.plan", "version": 1, "inputs": [],
        "policy": {"service_level": 0.9, "lead_time_seconds": 300.0},
        "offers": [
            offer("h8", "H100-80GB", 8, "on-demand", 3),
            offer("h1", "H100-80GB", 1, "spot", 6),
            offer("l1", "L40S-48GB", 1, "on-demand", 5),
        ],
        "classes": [{"gpu": "H100-80GB"}, {"gpu": "L40S-48GB"}],
        **changed,
    }  # fmt: skip


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_document()))
    return path


def document(coldstart: Coldstart, *arguments: str | Path) -> dict[str, Any]:
    result = coldstart(*arguments, "--json")
    assert result.status == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_plan_stands_beside_what_operators_do_without_one(
    coldstart: Coldstart, plan: Path, starts: Path
) -> None:
    result = coldstart("pool", "simulate", plan, "--trace", starts, "--walk-forward", "3")
    assert result.status == 0, result.stderr
    rows = [line.split("  ")[0] for line in result.stdout.splitlines()]
    for policy in ("plan", "none", "10% of peak", "one per application"):
        assert rows.count(policy) == 2
    assert {"H100-80GB", "H100-80GB x8", "L40S-48GB"} <= set(rows)
    assert "promise of 90.0% kept: " in result.stdout
    assert "sized anew each day from the 3 days before: " in result.stdout
    found = document(coldstart, "pool", "simulate", plan, "--trace", starts)
    own, none, *_ = found["policies"]
    assert (found["schema"], found["version"], found["kept"]) == ("coldstart.pool.simulation", 1, True)
    assert own["hit_rate"] > none["hit_rate"]
    assert own["pool_gpus"] == 35
    assert own["paid_gpu_hours"] == pytest.approx(
        own["idle_gpu_hours"] + own["booting_gpu_hours"] + own["busy_gpu_hours"]
    )
    assert own["cost_usd"] == pytest.approx(2.5 * own["paid_gpu_hours"])


def test_a_replay_is_the_same_for_the_same_seed_and_shuffled_rows(
    coldstart: Coldstart, plan: Path, starts: Path, tmp_path: Path
) -> None:
    header, *rows = starts.read_text().splitlines()
    random.Random(2).shuffle(rows)
    shuffled = tmp_path / "shuffled.csv"
    shuffled.write_text("\n".join([header, *rows, ""]))
    market = (
        "--lead-time-spread", "0.5", "--launch-failures", "0.1", "--health-rejects", "0.1",
        "--preemptions-per-hour", "0.2", "--no-baselines",
    )  # fmt: skip
    first = document(coldstart, "pool", "simulate", plan, "--trace", starts, *market)
    assert document(coldstart, "pool", "simulate", plan, "--trace", shuffled, *market) == first
    other = document(coldstart, "pool", "simulate", plan, "--trace", starts, *market, "--seed", "1")
    assert other["policies"] != first["policies"]
    (own,) = first["policies"]
    counts = [own[key] for key in ("launch_failures", "health_rejects", "preempted_machines", "restarts")]
    assert min(counts) > 0, counts


def test_a_worse_market_misses_more(coldstart: Coldstart, plan: Path, starts: Path) -> None:
    calm = document(coldstart, "pool", "simulate", plan, "--trace", starts, "--no-baselines")
    rough = document(
        coldstart, "pool", "simulate", plan, "--trace", starts, "--no-baselines",
        "--lead-time", "1200", "--launch-failures", "0.3",
    )  # fmt: skip
    assert rough["policies"][0]["hit_rate"] < calm["policies"][0]["hit_rate"]
    assert rough["policies"][0]["wait_seconds"]["max"] > calm["policies"][0]["wait_seconds"]["max"]


def test_a_plan_that_was_sized_from_the_trace_says_so(
    coldstart: Coldstart, starts: Path, tmp_path: Path
) -> None:
    from blake3 import blake3

    digest = f"blake3:{blake3(starts.read_bytes()).hexdigest()}"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_document(inputs=[{"path": "s.csv", "digest": digest}])))
    result = coldstart("pool", "simulate", path, "--trace", starts, "--no-baselines")
    assert result.status == 0
    assert "was sized from" in result.stderr


def test_starts_without_stops_are_replayed_without_what_nobody_knows(
    coldstart: Coldstart, plan: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{START.isoformat()},H100", f"{(START + timedelta(hours=1)).isoformat()},H100"]
    trace.write_text("\n".join(["time,gpu", *lines, ""]))
    found = document(coldstart, "pool", "simulate", plan, "--trace", trace)
    assert [one["policy"] for one in found["policies"]] == ["plan", "none", "one per application"]
    own = found["policies"][0]
    unknown = ("busy_gpu_hours", "allocation_utilisation", "peak_utilisation")
    assert [own[key] for key in unknown] == [None] * 3
    assert own["hit_rate_interval"] is None


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        ({"schema": "coldstart.spec"}, 65, "not a coldstart.plan document: "),
        ({"version": 99}, 65, "plan has version 99"),
        ({"offers": {}}, 65, "offers is not a list of tables"),
        ({"offers": [{"provider": "a"}]}, 65, "offers[0].region: text was expected: `nothing`"),
        ({"policy": {"service_level": 1.5}}, 65, "policy.service_level: a share above 0 and at most 1 was"),
        ({"policy": {"service_level": "x"}}, 65, "policy.service_level: a number was expected: `x`"),
        ({"policy": 3}, 65, "policy: a table was expected: 3"),
        ({"policy": {"service_level": 0.9}}, 2, "holds no lead time"),
        ({"offers": [], "classes": [{"gpu": "B200-180GB"}]}, 65, "the trace asks for H100-80GB; "),
    ],
)
def test_a_plan_that_cannot_be_replayed_is_refused_by_field(
    coldstart: Coldstart, starts: Path, tmp_path: Path, changed: dict[str, Any], status: int, message: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_document(**changed)))
    result = coldstart("pool", "simulate", path, "--trace", starts)
    assert (result.status, result.stdout) == (status, "")
    assert message in result.stderr


@pytest.mark.parametrize("bad", ["instances", "gpus_per_instance", "price_per_instance_hour_usd"])
def test_a_number_that_no_machine_has_is_refused_by_field(
    coldstart: Coldstart, starts: Path, tmp_path: Path, bad: str
) -> None:
    content = plan_document()
    content["offers"][1][bad] = -1
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    result = coldstart("pool", "simulate", path, "--trace", starts)
    assert result.status == 65
    assert f"offers[1].{bad}: " in result.stderr


def test_a_class_without_machines_waits_for_each(coldstart: Coldstart, starts: Path, tmp_path: Path) -> None:
    content = plan_document()
    content["offers"] = [entry for entry in content["offers"] if entry["gpu"] == "L40S-48GB"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    (own,) = document(
        coldstart, "pool", "simulate", path, "--trace", starts, "--no-baselines", "--keep", "0"
    )["policies"]
    rates = {entry["class"]: entry["hit_rate"] for entry in own["classes"]}
    assert rates["H100-80GB x8"] < 0.1 < rates["L40S-48GB"]
    assert own["cost_usd"] is None


def test_one_scale_up_is_a_replay_but_no_need(coldstart: Coldstart, plan: Path, tmp_path: Path) -> None:
    trace = tmp_path / "one.csv"
    trace.write_text("time,gpu\n2026-01-01T00:00:00Z,H100\n")
    (own,) = document(coldstart, "pool", "simulate", plan, "--trace", trace, "--no-baselines")["policies"]
    assert (own["scale_ups"], own["hits"], own["paid_gpu_hours"]) == (1, 1, 0)
    result = coldstart("pool", "need", "--demand", trace, "--lead-time", "60")
    assert result.status == 65
    assert "one instant only" in result.stderr


def test_seconds_without_a_date_have_no_hour_of_the_day(coldstart: Coldstart, tmp_path: Path) -> None:
    trace = tmp_path / "seconds.csv"
    trace.write_text("time,gpu\n0,H100\n5000,H100\n9000,H100\n")
    result = coldstart("pool", "need", "--demand", trace, "--lead-time", "60", "--by-hour")
    assert (result.status, result.stdout) == (2, "")
    assert "no hour of the day" in result.stderr


def test_targets_are_no_trace(coldstart: Coldstart, plan: Path, tmp_path: Path) -> None:
    trace = tmp_path / "targets.csv"
    trace.write_text("gpu,target_gpus\nH100,3\n")
    result = coldstart("pool", "simulate", plan, "--trace", trace)
    assert result.status == 65
    assert "there is no scale-up in it" in result.stderr


@pytest.mark.parametrize("floor", ["50", "-0.1", "nan"])
def test_a_floor_is_a_share(coldstart: Coldstart, plan: Path, starts: Path, floor: str) -> None:
    result = coldstart("pool", "simulate", plan, "--trace", starts, "--floor", floor)
    assert (result.status, result.stdout) == (2, "")
    assert f"--floor must be at least 0 and at most 1: {floor}" in result.stderr


def test_walking_forward_needs_days_to_judge(coldstart: Coldstart, plan: Path, starts: Path) -> None:
    result = coldstart("pool", "simulate", plan, "--trace", starts, "--walk-forward", "30")
    assert result.status == 65
    assert "none is left to judge after 30 days to size from" in result.stderr


def test_the_need_is_shown_by_class_and_shared_with_its_price(coldstart: Coldstart, starts: Path) -> None:
    arguments = (
        "pool",
        "need",
        "--demand",
        starts,
        "--lead-time",
        "600",
        "--lead-time",
        "60",
        "--idle-price",
        "2",
    )
    result = coldstart(*arguments, "--by-hour")
    assert result.status == 0, result.stderr
    for expected in (
        "H100-80GB + H100-80GB x8: ",
        "2 pools, as no GPU links their classes: ",
        "USD PER AVOIDED COLD START",
        "USD A YEAR PER SECOND SAVED",
        "HOUR (UTC)",
    ):
        assert expected in result.stdout
    found = document(coldstart, *arguments)
    single = {need["classes"][0]: need["gpus"] for need in found["needs"] if len(need["classes"]) == 1}
    assert found["separate_pools_gpus"] == sum(single.values()) > found["shared_pool_gpus"]
    assert [entry["lead_time_seconds"] for entry in found["lead_times"]] == [600, 60]
    assert found["lead_times"][1]["saved_per_second_and_year_usd"] > 0
    # the worth that the level implies chooses a pool at least as large
    worth = str(found["implied_cold_start_cost_usd"] * 1.001)
    by_money = document(coldstart, *arguments, "--cold-start-cost", worth)
    assert by_money["shared_pool_gpus"] >= found["shared_pool_gpus"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--lead-time", "0"), 2, "--lead-time must be a number of seconds above 0"),
        (("--lead-time", "60", "--service-level", "1.2"), 2, "--service-level must be above 0 and at most 1"),
        (("--lead-time", "60", "--cold-start-cost", "5"), 2, "says nothing without what an idle GPU costs"),
        (("--lead-time", "60", "--idle-price", "-1"), 2, "the price of an idle GPU-hour must be above 0"),
        (("--lead-time", "99999999"), 65, "less than the lead time of"),
        (("--lead-time", "60", "--critical", "B200"), 65, "no demand of class `B200`"),
    ],
)
def test_a_need_that_cannot_be_said_is_refused(
    coldstart: Coldstart, starts: Path, arguments: tuple[str, ...], status: int, message: str
) -> None:
    result = coldstart("pool", "need", "--demand", starts, *arguments)
    assert (result.status, result.stdout) == (status, "")
    assert message in result.stderr
