"""`--report` of `pool plan`, `pool need` and `pool simulate`: pages that hold what the command says."""

from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from conftest import Coldstart, Result
from pages import ReadPage, read_page

pytest.importorskip("ortools")
pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;$\\frac{$"
TURNED = "evil\u202egpj.csv"


def starts(path: Path, seed: int, *, application: str = "chat") -> Path:
    """Four days of replicas of three applications."""
    source, seconds = random.Random(seed), 0.0
    lines = ["time,stop,application,gpu,gpus_per_replica,replicas"]
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    while seconds < 4 * 86_400:
        seconds += source.expovariate(1 / 1500)
        start = begin + timedelta(seconds=int(seconds))
        stop = start + timedelta(seconds=int(source.expovariate(1 / 1800)) + 60)
        gpu = source.choice(("H100", "L40S"))
        replicas = source.choice((1, 1, 4))
        lines.append(f"{start.isoformat()},{stop.isoformat()},{application},{gpu},1,{replicas}")
    path.write_text("\n".join([*lines, ""]))
    return path


def tables(folder: Path, *, region: str = "eu", obtainable: int = 30) -> list[str | Path]:
    prices, supply, current = folder / "prices.csv", folder / "supply.csv", folder / "current.csv"
    quoted = '"' + region.replace('"', '""') + '"'
    prices.write_text(
        "provider,region,instance_type,gpu,gpu_count,on_demand\n"
        f"aurora,{quoted},h1,H100,1,2.5\nborealis,us,h8,H100,8,18.0\naurora,{quoted},l1,L40S,1,1.1\n",
        "utf-8",
    )
    supply.write_text(
        "provider,region,instance_type,market,obtainable\n"
        f"aurora,{quoted},h1,on-demand,{obtainable}\nborealis,us,h8,on-demand,2\n"
        f"aurora,{quoted},l1,on-demand,{obtainable}\n",
        "utf-8",
    )
    current.write_text("provider,region,instance_type,market,instances\nborealis,us,h8,on-demand,1\n")
    demand = starts(folder / "demand.csv", 1)
    return [
        "--prices", prices, "--supply", supply, "--demand", demand, "--current", current,
        "--lead-time", "300", "--service-level", "0.9", "--shrink", "1",
    ]  # fmt: skip


def page_of(result: Result, path: Path, status: int = 0) -> ReadPage:
    assert result.status == status, result.stderr
    assert f"report written to {path}" in result.stderr
    return read_page(path)


def test_the_page_of_a_plan_holds_the_plan_its_reasons_and_its_replay(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    unseen, path = starts(tmp_path / "unseen.csv", 2), tmp_path / "plan.html"
    command = ["pool", "plan", *tables(tmp_path), "--verify", unseen, "--verify-margin", "0.1"]
    page = page_of(coldstart(*command, "--report", path), path)
    found = json.loads(coldstart(*command, "--json").stdout)
    assert f"for {found['cost_per_hour_usd']:.2f} USD an hour meet every need." in page.words
    for offer in found["offers"]:
        assert offer["instance_type"] in page.shown
        assert f"{offer['price_per_instance_hour_usd']:.4f}" in page.shown
    for group in (*found["classes"], *found["unions"]):
        assert " + ".join(group["classes"]) in page.shown
    for price in found["shadow_prices"]:
        assert price["sentence"] in page.shown
    for change in found["changes"]:
        assert change["reason"] in page.shown
        assert f"{change['instances']:+d}" in page.shown
    assert "promised were 90.0% less a margin of 10 %." in page.words
    for title in (
        "Needs", "Machines", "Against the current pool", "Why it costs what it costs", "Waits", "Over time",
        "The price of the next hit: H100-80GB", "The price of the next hit: L40S-48GB",
    ):  # fmt: skip
        assert title in page.shown, title


def test_the_page_of_a_shortage_says_what_is_missing_and_what_would_help(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    path = tmp_path / "plan.html"
    page = page_of(
        coldstart("pool", "plan", *tables(tmp_path, obtainable=1), "--report", path), path, status=3
    )
    assert "they do not meet every need." in page.words
    assert "What would help" in page.shown
    assert "missing" in page.shown  # the legend of the bars names it


def test_a_plan_that_misses_its_promise_leaves_a_page_that_says_so_and_no_plan(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    unseen = tmp_path / "unseen.csv"
    burst = "".join(f"{day * 86_400},{day * 86_400 + 600},chat,H100,1,40\n" for day in range(5))
    unseen.write_text("time,stop,application,gpu,gpus_per_replica,replicas\n" + burst)
    path, plan = tmp_path / "plan.html", tmp_path / "plan.toml"
    arguments = ("--verify", unseen, "--output", plan, "--report", path)
    page = page_of(coldstart("pool", "plan", *tables(tmp_path), *arguments), path, status=3)
    assert "H100-80GB: promise not kept: " in page.words
    assert not plan.exists()


def test_the_page_of_needs_holds_the_price_of_hits_lead_times_and_hours(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    path, demand = tmp_path / "need.html", starts(tmp_path / "demand.csv", 1)
    command = (
        "pool", "need", "--demand", demand, "--lead-time", "600", "--lead-time", "60", "--idle-price", "2.29",
        "--by-hour",
    )  # fmt: skip
    page = page_of(coldstart(*command, "--report", path), path)
    found = json.loads(coldstart(*command, "--json").stdout)
    for need in found["needs"]:
        assert " + ".join(need["classes"]) in page.shown
        assert str(need["gpus"]) in page.shown
    for lead in found["lead_times"]:
        assert f"{lead['cost_per_year_usd']:,.0f}" in page.shown
    assert "US dollars for one" in page.words
    assert "hour of the day, UTC" in page.shown
    assert any(", ".join(map(str, found["gpus_by_hour_utc"])) in value for _, _, value in page.attributes)


def test_the_page_of_a_replay_holds_rivals_time_and_unseen_days(coldstart: Coldstart, tmp_path: Path) -> None:
    plan, path = tmp_path / "plan.toml", tmp_path / "replay.html"
    assert coldstart("pool", "plan", *tables(tmp_path), "--output", plan).status == 0
    unseen = starts(tmp_path / "unseen.csv", 2)
    command = ("pool", "simulate", plan, "--trace", unseen, "--walk-forward", "2")
    result = coldstart(*command, "--report", path)
    page = page_of(result, path)
    found = json.loads(coldstart(*command, "--json").stdout)
    for policy in found["policies"]:
        assert policy["policy"] in page.shown
        assert f"{policy['hits']:,}" in page.shown
        assert f"{policy['wait_seconds']['max']:.0f} s" in page.shown
    assert f"on {found['walk_forward']['judged_days']} unseen days" in page.words
    assert "days since 2026-01-01" in page.words
    assert "misses" in page.shown
    own = found["policies"][0]
    # and the terminal shows the same course of time
    assert "OVER TIME" in result.stdout
    assert f"{own['scale_ups'] - own['hits']} in all" in result.stdout


def test_the_same_values_make_the_same_page_to_the_byte(coldstart: Coldstart, tmp_path: Path) -> None:
    command = ["pool", "plan", *tables(tmp_path), "--verify", starts(tmp_path / "unseen.csv", 2), "--quiet"]
    pages = [tmp_path / name for name in ("one.html", "two.html")]
    for number, path in enumerate(pages):
        seed = {"PYTHONHASHSEED": str(number + 1)}
        result = coldstart(*command, "--report", path, "--verify-margin", "0.2", environment=seed)
        assert result.status == 0, result.stderr
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_names_of_users_are_text_and_nothing_else(coldstart: Coldstart, tmp_path: Path) -> None:
    path, plan = tmp_path / "plan.html", tmp_path / "plan.json"
    result = coldstart("pool", "plan", *tables(tmp_path, region=HOSTILE), "--output", plan, "--report", path)
    page = page_of(result, path)
    assert any(HOSTILE.casefold() in text.casefold() for text in page.shown), "shown as it is written"
    # a plan file may come from anywhere, and so may the name of a trace
    document = json.loads(plan.read_text())
    for offer in document["offers"]:
        offer["instance_type"] = offer["provider"] = HOSTILE
    plan.write_text(json.dumps(document))
    trace = starts(tmp_path / os.fsdecode(b"<b>$x$&\xff" + TURNED.encode()), 2)
    page = page_of(coldstart("pool", "simulate", plan, "--trace", trace, "--report", path), path)
    assert any("<b>$x$&\\xffevil\\u202egpj.csv" in text for text in page.shown)
    assert "\u202e" not in page.text


def test_a_page_replaces_nothing_but_a_page(coldstart: Coldstart, tmp_path: Path) -> None:
    demand = starts(tmp_path / "demand.csv", 1)
    command = ("pool", "need", "--demand", demand, "--lead-time", "60", "--report")
    result = coldstart(*command, demand)
    assert result.status == 2
    assert "hint: pass `--report demand.html`" in result.stderr
    result = coldstart(*command, tmp_path / "nowhere" / "need.html")
    assert result.status == 73
    (tmp_path / "link.html").symlink_to(demand)
    assert coldstart(*command, tmp_path / "link.html").status == 73
    assert demand.read_text().startswith("time,stop,")


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_without_the_extra_the_command_says_what_to_install_before_it_works(
    coldstart: Coldstart, tmp_path: Path, missing: str
) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / f"{missing}.py").write_text(f"raise ImportError(name={missing!r})")
    path = tmp_path / "plan.html"
    result = coldstart(
        "pool", "plan", *tables(tmp_path), "--report", path,
        environment={"PYTHONPATH": str(tmp_path / "without")},
    )  # fmt: skip
    assert result.status == 69
    assert result.stderr.endswith(f"{missing} is not installed\nhint: pip install 'coldstart[report]'\n")
    assert not path.exists()


def test_a_dry_run_writes_no_page(coldstart: Coldstart, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    assert coldstart("pool", "plan", *tables(tmp_path), "--report", path, "--dry-run").status == 0
    assert not path.exists()
    assert coldstart("pool", "plan", *tables(tmp_path)).status == 0


def test_a_terminal_without_block_elements_gets_plain_characters(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    demand = starts(tmp_path / "demand.csv", 1)
    command = ("pool", "need", "--demand", demand, "--lead-time", "600", "--idle-price", "2")
    assert "█" in coldstart(*command, environment={"PYTHONIOENCODING": "utf-8"}).stdout
    plain = coldstart(*command, environment={"PYTHONIOENCODING": "ascii"})
    assert plain.stdout.isascii()
    assert "####" in plain.stdout
