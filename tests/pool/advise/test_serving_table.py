"""Serving metrics as tables: units, order, gaps, and what is refused or said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart_cli.errors import ColdstartError, DataError, UsageError
from coldstart_pool.advise.diagnosis import Cause, Wanted, diagnose
from coldstart_pool.advise.serving_table import ServingTable, observed_in
from coldstart_pool.advise.serving_units import COLUMNS
from conftest import REPOSITORY

Read = Callable[..., ServingTable]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def observe(text: str, **options: float) -> ServingTable:
        path = tmp_path / "serving.csv"
        path.write_text(text)
        return observed_in(path, **options)  # type: ignore[arg-type]

    return observe


TABLE = """time,pod,batch size,queue depth,requests/s,time to first token (s),queue seconds,GPU util,KV cache
2026-11-29T10:00:00Z,a,{batch},12,4,6.5,6.0,{busy},30%
2026-11-29T10:01:00Z,a,{batch},14,4,6.5,6.0,{busy},40%
"""


def test_a_dashboards_table_gives_the_same_answer_as_a_scrape(read: Read) -> None:
    found = read(TABLE.format(batch=1, busy="95%")).observed
    assert (found[0].source, found[0].busy_share, found[0].kv_cache_share) == ("a", 0.95, 0.4)
    assert diagnose(found, Wanted()).cause is Cause.BATCHING


@pytest.mark.parametrize(
    ("batch", "busy"), [("many", "1"), ("-1", "1"), ("nan", "1"), ("1", "95"), ("7%", "1")]
)
def test_a_bad_cell_refuses_the_table_by_line(read: Read, batch: str, busy: str) -> None:
    with pytest.raises(DataError, match=r"serving\.csv:2: "):
        read(TABLE.format(batch=batch, busy=busy))


@pytest.mark.parametrize(
    ("heading", "cell", "seconds"),
    [
        ("ttft", "0.3", 0.3),
        ("ttft (ms)", "300", 0.3),
        ("ttft [ms]", "300", 0.3),
        ("ttft ms", "300", 0.3),
        ("ttft_ms", "300", 0.3),
        ("TTFT (mean)", "0.3", 0.3),
        ("time_to_first_token_seconds", "0.3", 0.3),
        ("time to first token (min)", "0.005", 0.3),
        ("ttft µs", "300000", 0.3),
        ("first_result_seconds", "0.3", 0.3),
    ],
)
def test_a_unit_in_the_heading_of_a_time_counts(read: Read, heading: str, cell: str, seconds: float) -> None:
    found = read(f"running,waiting,rps,{heading}\n1,0,3,{cell}\n").observed
    assert found[0].first_token_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("heading", "cell", "share"),
    [("GPU util (%)", "95", 0.95), ("GPU util %", "95", 0.95), ("gpu_util_percent", "95", 0.95),
     ("utilization", "0.95", 0.95), ("DCGM_FI_DEV_GPU_UTIL", "95", 0.95), ("busy", "95%", 0.95)],
)  # fmt: skip
def test_percent_in_a_heading_counts(read: Read, heading: str, cell: str, share: float) -> None:
    assert read(f"running,waiting,rps,{heading}\n1,0,3,{cell}\n").observed[0].busy_share == pytest.approx(
        share
    )


@pytest.mark.parametrize(
    ("heading", "rate"),
    [("rps", 120), ("requests/s", 120), ("requests per second", 120), ("req/min", 2), ("rpm", 2),
     ("throughput (requests/min)", 2), ("requests_per_second", 120)],
)  # fmt: skip
def test_requests_are_counted_by_the_time_that_the_heading_says(
    read: Read, heading: str, rate: float
) -> None:
    found = read(f"running,waiting,{heading}\n1,0,120\n").observed
    assert found[0].finished_per_second == pytest.approx(rate)


@pytest.mark.parametrize(
    "heading",
    ["ttft (ticks)", "ttft (p95)", "ttft seconds (ms)", "GPU util (W)", "queue (s)", "throughput (tokens/s)"],
)
def test_a_unit_that_is_unknown_or_of_something_else_is_refused_by_its_column(
    read: Read, heading: str
) -> None:
    others = "running,rps" if heading.startswith("queue") else "running,waiting"
    others += "" if heading.startswith(("queue", "through")) else ",rps"
    with pytest.raises(DataError) as caught:
        read(f"{others},{heading}\n" + ",".join("1" for _ in f"{others},".split(",")) + "\n")
    assert f"the unit of column `{heading}` is not clear" in str(caught.value)


def test_a_throughput_of_nobody_knows_what_is_refused(read: Read) -> None:
    with pytest.raises(DataError, match="column `throughput`") as caught:
        read("running,waiting,throughput\n1,0,900\n")
    assert "requests/s" in str(caught.value.hint)


def test_shares_under_a_heading_that_says_percent_are_questioned(read: Read) -> None:
    with pytest.raises(DataError, match="says percent, and no value is above 1"):
        read("running,waiting,rps,KV cache (%)\n1,0,3,0.93\n1,0,3,0.95\n")


def test_a_column_that_is_not_read_is_said(read: Read) -> None:
    notes = read("running,waiting,rps,ttft p99,color\n1,0,3,4,red\n").notes
    assert any("columns not read: ttft p99, color" in note for note in notes)


ROWS = [
    "2026-05-04T08:00:00Z,0",
    "2026-05-04T08:01:00Z,500",
    "2026-05-04T08:02:00Z,1000",
]


def test_rows_count_in_the_order_of_their_times_whatever_their_order_in_the_file(read: Read) -> None:
    def table(rows: list[str]) -> ServingTable:
        return read("time,waiting,running,rps\n" + "".join(f"{row},8,3\n" for row in rows))

    forward, backward = table(ROWS), table(ROWS[::-1])
    assert forward.observed == backward.observed
    assert forward.observed[0].seconds == 180
    assert forward.observed[0].arrivals_per_second == pytest.approx(3 + 1000 / 120)
    assert not forward.notes
    assert any("into the order of their times" in note for note in backward.notes)


def test_the_time_between_rows_comes_from_the_rows(read: Read) -> None:
    text = "time,waiting,running,rps\n0,0,8,3\n15,10,8,3\n30,20,8,3\n"
    assert read(text).observed[0].seconds == 45
    assert read(text, row_seconds=15).observed[0].seconds == 45
    with pytest.raises(UsageError, match="rows are 15 s apart by their times, and not 60 s"):
        read(text, row_seconds=60)


def test_rows_without_times_are_said_to_be_taken_as_they_come(read: Read) -> None:
    found = read("waiting,running,rps\n0,8,3\n10,8,3\n", row_seconds=30)
    assert found.observed[0].seconds == 60
    assert any("rows are taken in their order, 30 s apart" in note for note in found.notes)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (["yesterday,1"], r"serving\.csv:2: `yesterday` is not a time"),
        ([",1"], r"serving\.csv:2: "),
        (["2026-05-04 08:00:00,1"], r"serving\.csv:2: time without offset.*--tz"),
        ([ROWS[0], ROWS[0]], r"serving\.csv:3: the time of line 2 once more"),
        ([ROWS[0], "60,4"], "dates stand beside seconds"),
    ],
)
def test_times_that_cannot_be_used_refuse_the_table(read: Read, rows: list[str], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read("time,waiting,running,rps\n" + "".join(f"{row},8,3\n" for row in rows))


def test_replicas_that_followed_each_other_are_not_counted_as_two(read: Read) -> None:
    rows = ["0,old,3", "60,old,3", "120,new,3", "180,new,3"]
    with pytest.raises(DataError, match="`new` comes after `old` has gone"):
        read("time,pod,waiting,running,rps\n" + "".join(f"{row},8,3\n" for row in rows))


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        (",0,3,\n,0,3,0.2", "running"),
        ("1,,2,3\n1,,2,3", "waiting"),
        ("1,1,,3\n1,1,,3", "requests_per_second"),
    ],
)
def test_a_table_without_any_value_of_what_decides_is_refused(read: Read, rows: str, field: str) -> None:
    with pytest.raises(DataError, match=rf"no value of .*`{field}`"):
        read(f"running,waiting,rps,ttft\n{rows}\n")


def test_one_replica_without_values_is_named(read: Read) -> None:
    with pytest.raises(DataError, match="no value of `running` for replica `b`"):
        read("pod,running,waiting,rps\na,1,0,3\nb,,0,3\n")


def test_tokens_are_enough_where_requests_are_not_counted(read: Read) -> None:
    text = "batch size,queue depth,tokens/s,ttft,KV cache,utilisation\n{},40,900,4.5,{},0.99\n"
    full = diagnose(read(text.format(8, "95%")).observed, Wanted())
    assert (full.cause, full.needed_replicas) == (Cause.CAPACITY, 2)
    assert diagnose(read(text.format(1, "30%")).observed, Wanted()).cause is Cause.BATCHING


def test_models_of_a_table_are_asked_for_one_at_a_time(read: Read, tmp_path: Path) -> None:
    text = "model,running,waiting,rps\na,1,0,3\nb,2,0,3\n"
    with pytest.raises(DataError, match="rows of 2 models: a, b"):
        read(text)
    assert observed_in(tmp_path / "serving.csv", model="b").observed[0].running == 2


def test_every_name_that_the_documentation_gives_a_column_is_understood(read: Read) -> None:
    text = (REPOSITORY / "docs" / "pool-tables.md").read_text()
    missing = [field for field in COLUMNS if f"`{field}`" not in text]
    assert missing == []
    names = [field for field in COLUMNS if field not in {"time", "model", "replica"}]
    found = read(",".join(names) + "\n" + ",".join("0.5" for _ in names) + "\n")
    assert not any("not read" in note for note in found.notes)


def test_what_is_missing_is_named_with_a_hint_that_can_be_followed(read: Read) -> None:
    with pytest.raises(ColdstartError, match="no column for `requests_per_second` or") as caught:
        read("time,running,waiting,foo\n0,1,1,1\n")
    assert "--map" not in str(caught.value.hint)
    assert "requests_per_second" in str(caught.value.hint)
