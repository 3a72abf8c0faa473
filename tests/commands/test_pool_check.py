"""`coldstart pool check` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import REPOSITORY, Coldstart, shared_data

EXAMPLES = REPOSITORY / "examples" / "pool"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_clean_tables_are_answer_nought_with_what_was_decided(coldstart: Coldstart) -> None:
    result = coldstart(
        "pool", "check", "--prices", EXAMPLES / "prices.csv", "--supply", EXAMPLES / "supply.csv",
        "--demand", EXAMPLES / "targets.csv",
    )  # fmt: skip
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == f"prices: {EXAMPLES}/prices.csv: 8 of 8 rows used"
    assert "  delimiter: comma" in result.stdout


def test_the_example_of_every_table_is_clean(coldstart: Coldstart) -> None:
    names = ("prices", "classes", "current", "quota", "commitments", "domains", "snapshots", "machines")
    options = [part for name in names for part in (f"--{name}", EXAMPLES / f"{name}.csv")]
    result = coldstart(
        "pool", "check", *options, "--supply", EXAMPLES / "supply.csv", "--supply", EXAMPLES / "attempts.csv",
        "--demand", EXAMPLES / "starts.csv", "--json",
    )  # fmt: skip
    assert result.status == 0, result.stdout
    document = json.loads(result.stdout)
    assert document["contradictions"] == []
    assert document["found"] == {
        "offers": 15, "observations": 12, "attempts": 6, "targets": 0, "replica_starts": 16, "classes": 2,
        "holdings": 2, "quotas": 3, "commitments": 1, "domains": 3, "snapshots": 2, "contracted_prices": 0,
    }  # fmt: skip


def test_a_questioned_row_is_answer_three_and_named_by_line(coldstart: Coldstart, tmp_path: Path) -> None:
    prices = write(tmp_path / "p.csv", "provider,gpu,gpu_count,price\na,H100,8,24\nb,H100,8,0.08\n")
    result = coldstart("pool", "check", "--prices", prices)
    assert result.status == 3
    assert result.stdout.startswith("used only 1 of 2 rows (50%) of ")
    assert "questioned: implausible on-demand price (0.01 USD per GPU and hour): line 3" in result.stdout
    assert "coldstart: error: 1 row would be refused or questioned" in result.stderr


def test_the_report_can_be_read_by_machines(coldstart: Coldstart, tmp_path: Path) -> None:
    prices = write(tmp_path / "p.csv", "provider,gpu,gpu_count,price\na,H100,8,24\nb,A100,8,9\n")
    result = coldstart("pool", "check", "--prices", prices, "--supply", tmp_path / "none.csv", "--json")
    assert result.status == 66
    document = json.loads(result.stdout)
    assert (document["schema"], document["version"], document["clean"]) == ("coldstart.pool.check", 1, False)
    good, bad = document["tables"]
    assert (good["rows"], good["used_rows"], good["refused_rows"]) == (2, 1, 1)
    assert [(one["line"], one["severity"]) for one in good["findings"]] == [(3, "refused")]
    assert {"topic": "encoding", "decision": "UTF-8"} in good["decisions"]
    assert (bad["table"], bad["exit_status"]) == ("supply", 66)
    assert document["found"]["offers"] == 1


def test_one_table_that_cannot_be_read_does_not_hide_the_others(coldstart: Coldstart, tmp_path: Path) -> None:
    broken = write(tmp_path / "broken.csv", "colour\nred\n")
    result = coldstart("pool", "check", "--supply", broken, "--prices", EXAMPLES / "prices.csv")
    assert result.status == 65
    assert "prices.csv: 8 of 8 rows used" in result.stdout
    assert f"coldstart: error: {broken}: no column for `provider`" in result.stderr


def test_rules_are_taken_from_the_command_line(coldstart: Coldstart, tmp_path: Path) -> None:
    prices = write(tmp_path / "p.csv", 'Card,gpu_count,Betrag\nH100,8,"21,60"\n')
    result = coldstart(
        "pool", "check", "--prices", prices, "--map", "prices.gpu=Card", "--map", "prices.price=Betrag",
        "--set", "prices.provider=here", "--set", "prices.currency=EUR", "--rate", "EUR=1.08",
    )  # fmt: skip
    assert result.status == 0, result.stdout + result.stderr
    assert "currency: EUR at 1.08 USD" in result.stdout
    assert "decimal mark: comma" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "no table to check"),
        (("--map", "prices.gp=x"), "--map names no field of prices: `gp`"),
        (("--tz", "Mars/Olympus"), "--tz names no time zone of this host"),
        (("--rate", "EUR"), "--rate takes CURRENCY=DOLLARS"),
    ],
)
def test_options_that_cannot_be_are_usage_errors(
    coldstart: Coldstart, options: tuple[str, ...], message: str
) -> None:
    files = ("--prices", EXAMPLES / "prices.csv") if options else ()
    result = coldstart("pool", "check", *files, *options)
    assert result.status == 2
    assert message in result.stderr


def test_every_defect_of_the_dirty_tables_is_found(coldstart: Coldstart) -> None:
    mixed = shared_data("pool/dirty/mixed_defects.csv")
    result = coldstart("pool", "check", "--prices", mixed, "--json")
    assert result.status == 3
    (report,) = json.loads(result.stdout)["tables"]
    lines = {finding["line"] for finding in report["findings"]}
    # row 1 is per day and agrees with row 2, its repetitions are noted; row 7 is a good one
    assert set(range(3, 15)) - lines == {8}
