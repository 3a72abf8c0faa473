"""`coldstart pool plan` as it is typed."""

from __future__ import annotations

import json
import os
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest

from conftest import REPOSITORY, Coldstart, shared_data

pytest.importorskip("ortools")
EXAMPLES = REPOSITORY / "examples" / "pool"


def tables(**changed: Path) -> list[str | Path]:
    files = {
        "prices": EXAMPLES / "prices.csv",
        "supply": EXAMPLES / "supply.csv",
        "demand": EXAMPLES / "targets.csv",
        **changed,
    }
    return ["pool", "plan", *(part for name, path in files.items() for part in (f"--{name}", path))]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def answer(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in {"created", "inputs"}}


def test_the_examples_are_planned(coldstart: Coldstart) -> None:
    result = coldstart(*tables())
    assert result.status == 0, result.stderr
    assert result.stdout.splitlines()[0].split() == ["GPU", "TARGET", "NEED", "PLANNED", "MISSING"]
    assert "cost 105.32 USD/h, at least 101.82 USD/h for these GPUs, gap 3.4%" in result.stdout
    assert "5 of 15 offers have no supply observation" in result.stderr


def test_json_is_one_document_and_the_plan_file_holds_the_same(coldstart: Coldstart, tmp_path: Path) -> None:
    for name, load in (("plan.toml", tomllib.loads), ("plan.json", json.loads)):
        result = coldstart(*tables(), "--json", "--output", tmp_path / name)
        assert result.status == 0, result.stderr
        document = json.loads(result.stdout)
        assert (document["schema"], document["version"]) == ("coldstart.plan", 1)
        assert answer(load((tmp_path / name).read_text())) == answer(document)
        assert {entry["refused_rows"] for entry in document["inputs"]} == {0}


def test_a_dry_run_writes_nothing(coldstart: Coldstart, tmp_path: Path) -> None:
    result = coldstart(*tables(), "--output", tmp_path / "plan.toml", "--dry-run")
    assert (result.status, list(tmp_path.glob("plan*"))) == (0, [])


def test_shuffled_tables_give_the_same_plan(coldstart: Coldstart, tmp_path: Path) -> None:
    first = coldstart(*tables(), "--largest-share", "0.4", "--json")
    for seed in range(3):
        changed = {}
        for name, file in (("prices", "prices.csv"), ("supply", "supply.csv"), ("demand", "targets.csv")):
            header, *rows = (EXAMPLES / file).read_text().splitlines()
            random.Random(seed).shuffle(rows)
            changed[name] = write(tmp_path / file, "\n".join([header, *rows, ""]))
        again = coldstart(*tables(**changed), "--largest-share", "0.4", "--json")
        assert answer(json.loads(again.stdout)) == answer(json.loads(first.stdout))


def test_a_shortage_is_answer_three_with_the_plan_the_missing_and_the_reason(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    demand = write(tmp_path / "targets.csv", "gpu,target_gpus\nH200,40\n")
    result = coldstart(*tables(demand=demand), "--output", tmp_path / "plan.json")
    assert result.status == 3
    assert (
        "H200-141GB: supply: aurora eu-north h200x8 on-demand: 2 instances were obtainable" in result.stdout
    )
    assert "coldstart: error: shortage: missing 29 H200-141GB" in result.stderr
    assert json.loads((tmp_path / "plan.json").read_text())["feasible"] is False


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("a,eu,x,H100,8,-23.60,", "prices.csv:2: price is negative"),
        ("a,eu,x,H100,8,NaN,", "prices.csv:2: price is not a finite number"),
        ("a,eu,x,H100,0,23.60,", "prices.csv:2: no GPUs in the instance"),
    ],
)
def test_an_impossible_row_stops_the_plan_until_told_to_go_on(
    coldstart: Coldstart, tmp_path: Path, bad: str, message: str
) -> None:
    header, *rows = (EXAMPLES / "prices.csv").read_text().splitlines()
    prices = write(tmp_path / "prices.csv", "\n".join([header, bad, *rows, ""]))
    result = coldstart(*tables(prices=prices), "--output", tmp_path / "plan.toml")
    assert (result.status, result.stdout) == (65, "")
    assert message in result.stderr
    assert "--skip-invalid" in result.stderr
    assert not (tmp_path / "plan.toml").exists()
    result = coldstart(*tables(prices=prices), "--skip-invalid")
    assert result.status == 0
    assert result.stdout.startswith("used only 8 of 9 rows (89%) of ")
    assert "cost 105.32 USD/h" in result.stdout


def test_a_missing_column_and_a_missing_file_have_codes_of_their_own(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    headless = write(tmp_path / "p.csv", "provider,gpu,gpu_count\na,H100,8\n")
    result = coldstart(*tables(prices=headless))
    assert result.status == 65
    assert "no column for `price`" in result.stderr
    assert coldstart(*tables(prices=tmp_path / "nothing.csv")).status == 66


@pytest.mark.parametrize(
    "option",
    [
        ("--service-level", "0"),
        ("--service-level", "nan"),
        ("--peak-utilisation", "1.1"),
        ("--peak-utilisation", "1e-300"),
        ("--largest-share", "-1"),
        ("--lead-time", "0"),
        ("--output", "plan.yaml"),
    ],
)
def test_a_policy_out_of_range_is_refused(coldstart: Coldstart, option: tuple[str, str]) -> None:
    result = coldstart(*tables(), *option)
    assert result.status == 2
    assert option[0] in result.stderr


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_plan_goes_into_a_folder_that_exists(
    coldstart: Coldstart, tmp_path: Path, more: tuple[str, ...]
) -> None:
    result = coldstart(*tables(), "--output", tmp_path / "absent" / "plan.toml", *more)
    assert result.status == 73
    assert f"folder does not exist: {tmp_path}/absent" in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_a_plan_replaces_nothing_but_a_regular_file(coldstart: Coldstart, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "plan.toml"
    if kind == "link":
        place.symlink_to("/dev/null")
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
    result = coldstart(*tables(), "--output", place)
    assert result.status == 73
    assert result.stdout == ""
    assert not place.is_file()


def test_without_or_tools_the_command_says_what_to_install(coldstart: Coldstart, tmp_path: Path) -> None:
    write(tmp_path / "ortools.py", "raise ImportError")
    result = coldstart(*tables(), environment={"PYTHONPATH": str(tmp_path)})
    assert result.status == 69
    assert "pip install 'coldstart[pool]'" in result.stderr


def test_real_prices_are_planned_without_any_free_or_doubtful_offer(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    supply = write(
        tmp_path / "supply.csv",
        "provider,gpu,obtainable\n"
        + "".join(
            f"{p},{g},16\n" for p in ("verda", "nebius", "vast", "lambdalabs") for g in ("H100", "H200")
        ),
    )
    demand = write(tmp_path / "targets.csv", "gpu,target_gpus\nH100,30\nH200,20\n")
    prices = shared_data("pool/gpu_price_facts.csv")
    result = coldstart(*tables(prices=prices, supply=supply, demand=demand), "--largest-share", "0.5")
    assert result.status == 0, result.stderr
    assert result.stdout.startswith("used only 63 of 83 rows (76%) of ")
    assert "lines 58-68" in result.stderr  # a whole provider whose spot price is 0.00
    cost = float(result.stdout.split("cost ")[1].split()[0])
    assert 56 * 1 < cost < 56 * 4
