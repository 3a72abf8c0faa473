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
    assert result.stdout.splitlines()[0].split()[:5] == ["CLASS", "TARGET", "NEED", "PLANNED", "MISSING"]
    assert "cost 119.04 USD/h, at least 110.54 USD/h for these GPUs, proven to be the least" in result.stdout
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


def test_shuffled_tables_give_the_same_plan_file_to_the_byte(coldstart: Coldstart, tmp_path: Path) -> None:
    options = ("--floor", "0.5", "--survive", "0.3", "--churn", "0.1", "--budget", "500", "--json")

    def plan(changed: dict[str, Path]) -> str:
        result = coldstart(*tables(**changed), *options)
        assert result.status in {0, 3}, result.stderr
        document = json.loads(result.stdout)
        return json.dumps({key: value for key, value in document.items() if key not in {"created", "inputs"}})

    first = plan({})
    for seed in range(2):
        changed = {}
        for name, file in (("prices", "prices.csv"), ("supply", "supply.csv"), ("demand", "targets.csv")):
            header, *rows = (EXAMPLES / file).read_text().splitlines()
            random.Random(seed).shuffle(rows)
            changed[name] = write(tmp_path / file, "\n".join([header, *rows, ""]))
        assert plan(changed) == first


def test_the_current_pool_is_changed_with_a_reason_and_the_plan_handed_on(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    current = write(
        tmp_path / "current.csv",
        "provider,region,instance_type,gpu,market,instances\naurora,eu-north,h100x8,H100,on-demand,2\n"
        "cirrus,us-west,gpu_1x_l40s,L40S,on-demand,8\n",
    )
    exports = {form: tmp_path / form for form in ("kubernetes", "ec2-warm-pool", "csv")}
    options = [part for form, path in exports.items() for part in ("--export", f"{form}={path}")]
    result = coldstart(*tables(current=current), *options)
    assert result.status == 0, result.stderr
    assert (
        "give back 6 of cirrus us-west gpu_1x_l40s on-demand: every need is met without it" in result.stdout
    )
    assert "why: one more" in result.stdout
    assert json.loads(exports["kubernetes"].read_text())["kind"] == "List"
    assert "left_out" in json.loads(exports["ec2-warm-pool"].read_text())
    # the exported table is a current pool: planned again and again, it comes to rest
    for _ in range(5):
        again = coldstart(*tables(current=exports["csv"]), "--export", f"csv={exports['csv']}")
        assert again.status == 0, again.stderr
        if "nothing changes against the current pool" in again.stdout:
            break
    else:
        pytest.fail(f"the pool never comes to rest: {again.stdout}")
    rehearsed = coldstart(*tables(), "--export", f"csv={tmp_path / 'none'}", "--dry-run")
    assert (rehearsed.status, (tmp_path / "none").exists()) == (0, False)


def test_a_commitment_above_a_quota_is_refused_with_both(coldstart: Coldstart, tmp_path: Path) -> None:
    committed = write(
        tmp_path / "committed.csv",
        "provider,region,instance_type,market,instances\naurora,eu-north,h100x8,on-demand,3\n",
    )
    quota = write(tmp_path / "quota.csv", "group,provider,gpu,unit,limit\naurora h100,aurora,H100,gpus,16\n")
    result = coldstart(*tables(commitments=committed, quota=quota))
    assert result.status == 65
    assert "aurora h100" in result.stderr


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
    assert (
        "remedy (supply): obtain 4 more of aurora eu-north h200x8 on-demand: meets every need"
        in result.stdout
    )
    assert "hint: obtain 4 more of aurora eu-north h200x8 on-demand" in result.stderr
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
    assert "cost 119.04 USD/h" in result.stdout


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
        ("--survive", "-0.5"),
        ("--floor", "nan"),
        ("--missing-price", "inf"),
        ("--budget", "0"),
        ("--churn", "2"),
        ("--shrink", "1e-9"),
        ("--grow", "-1"),
        ("--domain", "planet"),
        ("--speed", "H100=2"),
        ("--export", "helm=x"),
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


@pytest.mark.parametrize(
    ("speed", "hint"),
    [
        ("auroa:H100=0.5", "did you mean `aurora:H100-80GB`"),
        ("zz:=0.5", "for example `--speed aurora:H100-80GB=0.5`"),
    ],
)
def test_a_speed_of_what_nobody_sells_is_refused(coldstart: Coldstart, speed: str, hint: str) -> None:
    result = coldstart(*tables(), "--speed", speed)
    assert (result.status, result.stdout) == (2, "")
    assert "--speed names no machine of the price tables" in result.stderr
    assert hint in result.stderr


def test_options_that_say_nothing_of_targets_are_told(coldstart: Coldstart) -> None:
    result = coldstart(*tables(), "--service-level", "0.9", "--lead-time", "60")
    assert result.status == 0
    assert "a table of targets: --service-level and --lead-time does not size the plan" in result.stderr
    assert "does not size" not in coldstart(*tables()).stderr


def test_a_count_of_gpus_has_all_its_digits(coldstart: Coldstart, tmp_path: Path) -> None:
    demand = write(tmp_path / "targets.csv", "gpu,target_gpus\nH200,12345678\n")
    result = coldstart(*tables(demand=demand), "--peak-utilisation", "1")
    assert result.status == 3
    assert "12345678  12345678       16  12345662" in result.stdout
    assert "shortage: missing 12345662 H200-141GB" in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "range_of_it"),
    [("--lead-time", "1e18", "at most 1000000000"), ("--survive", "-1", "must be 0, or at least 0.001")],
)
def test_an_option_out_of_range_says_what_its_range_is(
    coldstart: Coldstart, option: str, value: str, range_of_it: str
) -> None:
    result = coldstart(*tables(), option, value)
    assert (result.status, range_of_it in result.stderr) == (2, True), result.stderr
