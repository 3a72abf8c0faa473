"""`coldstart pool advise` as an operator types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import REPOSITORY, Coldstart

STARTS = REPOSITORY / "examples" / "pool" / "starts.csv"
CLASSES = REPOSITORY / "examples" / "pool" / "classes.csv"


def test_the_floor_of_the_shipped_trace_needs_no_gpu_names(coldstart: Coldstart) -> None:
    done = coldstart("pool", "advise", "--trace", STARTS, "--cold-start", "60")
    assert (done.status, done.stderr) == (0, "")
    assert "chat: keep 4 warm" in done.stdout
    assert "draw: keep 6 warm" in done.stdout
    with_classes = coldstart("pool", "advise", "--trace", STARTS, "--cold-start", "60", "--classes", CLASSES)
    assert (with_classes.status, with_classes.stdout) == (0, done.stdout)


def test_the_window_of_idle_replicas_follows_what_a_cold_start_costs(coldstart: Coldstart) -> None:
    arguments = ["pool", "advise", "--trace", str(STARTS), "--cold-start", "60"]
    cheap = coldstart(*arguments)
    assert "draw: scale down after 60 s idle" in cheap.stdout
    assert "draw: 16200 s would let 33% of starts find one" in cheap.stdout
    dear = coldstart(*arguments, "--cold-start-cost", "50", "--idle-price", "2")
    assert "draw: scale down after 16200 s idle" in dear.stdout
    assert coldstart(*arguments, "--idle-price", "2").status == 2


def test_a_trace_of_request_rates_is_read_with_a_service_rate(coldstart: Coldstart, tmp_path: Path) -> None:
    trace = tmp_path / "rates.csv"
    trace.write_text("time,application,rate\n0,chat,5\n60,chat,30\n120,chat,10\n180,chat,30\n")
    arguments = ["pool", "advise", "--trace", trace, "--cold-start", "30"]
    assert "--service-rate" in coldstart(*arguments).stderr
    done = coldstart(*arguments, "--service-rate", "10", "--json")
    assert done.status == 0
    floor = json.loads(done.stdout)["floors"]["chat"]
    assert (floor["replicas"], floor["has_stops"]) == (2, True)


def test_a_table_without_a_single_value_is_no_good_news(coldstart: Coldstart, tmp_path: Path) -> None:
    table = tmp_path / "tab.csv"
    table.write_text("time,running,waiting,rps,ttft\n2026-05-04T08:02:00Z,,,,\n2026-05-04T08:03:00Z,,,,\n")
    done = coldstart("pool", "advise", "--table", table)
    assert (done.status, done.stdout) == (65, "")
    assert "no value of `running`" in done.stderr


def test_columns_that_are_not_read_are_said_beside_the_answer(coldstart: Coldstart, tmp_path: Path) -> None:
    table = tmp_path / "tab.csv"
    table.write_text("time,running,waiting,rps,ttft (ms),color\n0,4,0,3,300,red\n60,4,0,3,300,red\n")
    done = coldstart("pool", "advise", "--table", table)
    assert done.status == 0
    assert "columns not read: color" in done.stderr
    assert "mean 0.30 s" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["ftp://x/y"], "only http and https addresses are fetched: ftp://x/y"),
        (["file:///etc/passwd"], "only http and https addresses are fetched: file:///etc/passwd"),
        (["http://127.0.0.1:1/metrics", "http://127.0.0.1:1/metrics"], "named twice"),
        (["127.0.0.1:8000/metrics"], "neither an address nor a file"),
        (["http://127.0.0.1:1/metrics", "--window", "inf"], "--window"),
        (["http://127.0.0.1:1/metrics", "--first-result", "nan"], "--first-result"),
        (["--trace", str(STARTS), "--cold-start", "inf"], "--cold-start"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_before_anything_is_fetched(
    coldstart: Coldstart, arguments: list[str], complaint: str
) -> None:
    done = coldstart("pool", "advise", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert complaint in done.stderr


def test_a_server_that_answers_nothing_is_an_answer_and_no_traceback(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    table = tmp_path / "tab.csv"
    table.write_text("time,running,waiting,rps\n0,8,50,0\n60,8,50,0\n")
    done = coldstart("pool", "advise", "--table", table, "--json")
    assert done.status == 3
    assert json.loads(done.stdout)["cause"] == "stalled"


def test_saved_looks_give_the_answer_of_the_server(coldstart: Coldstart, tmp_path: Path) -> None:
    """Sums and counts without buckets, as rules that relabel leave them."""
    for name, count in (("a.prom", 0), ("b.prom", 100)):
        (tmp_path / name).write_text(
            "vllm:num_requests_running 4\nvllm:num_requests_waiting 0\n"
            f"vllm:request_success_total {count}\n"
            f"vllm:time_to_first_token_seconds_sum {count / 10}\n"
            f"vllm:time_to_first_token_seconds_count {count}\n"
        )
    done = coldstart("pool", "advise", "a.prom", "--later", "b.prom", "--window", "30")
    assert done.status == 0
    assert "mean 0.10 s, the 95th percentile is not known" in done.stdout
