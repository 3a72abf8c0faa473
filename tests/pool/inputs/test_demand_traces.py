"""Demand as starts and stops of replicas, and as samples of what dashboards export."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.demand_tables import read_demand, refuse_bad_demand
from coldstart_pool.inputs.demand_values import Demand, DemandClass, DemandTrace
from coldstart_pool.inputs.findings import TableReport
from coldstart_pool.inputs.rules import ReadingRules, reading_rules
from conftest import shared_data

CHAT = DemandClass("chat", ("H100-80GB", "H200-141GB"), 2, service_rate=Fraction(5))


def load(
    tmp_path: Path, text: str, rules: ReadingRules | None = None, classes: tuple[DemandClass, ...] = ()
) -> tuple[Demand, TableReport]:
    path = tmp_path / "demand.csv"
    path.write_text(text)
    return read_demand(path, rules or ReadingRules(), classes)


def trace(
    tmp_path: Path, text: str, rules: ReadingRules | None = None, classes: tuple[DemandClass, ...] = ()
) -> DemandTrace:
    demand, report = load(tmp_path, text, rules, classes)
    refuse_bad_demand(report, demand)
    assert demand.trace is not None
    return demand.trace


def changes(found: DemandTrace) -> list[tuple[float, str, int]]:
    start = found.first_seconds
    return [(float(event.time_seconds - start), event.application, event.replicas) for event in found.events]


def reasons(report: TableReport) -> list[tuple[int, str]]:
    return [(finding.line, finding.reason) for finding in report.findings]


# --- starts and stops ---


def test_starts_and_stops_become_events_in_order_of_time(tmp_path: Path) -> None:
    found = trace(tmp_path, "start_time,stop_time,app,gpu,replicas\n100,400,b,H100,2\n0,,a,H100,1\n")
    assert changes(found) == [(0, "a", 1), (100, "b", 2), (400, "b", -2)]
    assert (found.since_1970, found.has_stops) == (False, True)


def test_a_replica_that_stops_without_a_start_ran_before_the_trace(tmp_path: Path) -> None:
    found = trace(tmp_path, "time,stop,app,gpu\n,50,a,H100\n10,,a,H100\n")
    assert found.running_at_start == (("a", "H100-80GB", 1, 1),)
    assert changes(found) == [(0, "a", 1), (40, "a", -1)]


def test_a_column_can_say_whether_a_row_is_a_start_or_a_stop(tmp_path: Path) -> None:
    found = trace(tmp_path, "time,event,gpu,replicas\n0,scale-up,H100,3\n60,stopped,H100,2\n")
    assert [replicas for _, _, replicas in changes(found)] == [3, -2]


def test_an_application_takes_gpu_and_size_from_its_class(tmp_path: Path) -> None:
    found = trace(tmp_path, "time,application\n0,chat\n", classes=(CHAT,))
    assert [(event.gpu, event.gpus_per_replica) for event in found.events] == [("H100-80GB", 2)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "time,application\n0,chta\n",
            "no GPU for `chta`: name it in `--classes` or with `--set demand.gpu`",
        ),
        ("time,application,gpu\n0,chat,L4\n", "chat runs on H100-80GB or H200-141GB, not on L4-24GB"),
        ("time,stop,gpu\n10,5,H100\n", "a replica stops before it starts"),
        ("time,event,gpu\n10,maybe,H100\n", "neither a start nor a stop"),
        ("time,gpu\n2026-01-01 10:00,H100\n", "time without offset: pass `--tz ZONE`"),
        ("time,gpu,replicas\n10,H100,-1\n", "unreadable number"),
        ("time,gpu,replicas\n10,H100,1.5\n", "unreadable number"),
        ("time,gpu,gpus_per_replica\n10,H100,0\n", "a scale-up of nothing"),
    ],
)
def test_demand_that_cannot_be_stops_everything_by_line(tmp_path: Path, text: str, reason: str) -> None:
    demand, report = load(tmp_path, text, classes=(CHAT,))
    assert reasons(report) == [(2, reason)]
    with pytest.raises(DataError, match=r"demand\.csv:2: "):
        refuse_bad_demand(report, demand)


def test_dates_beside_seconds_of_a_trace_are_refused(tmp_path: Path) -> None:
    demand, report = load(tmp_path, "time,gpu\n10,H100\n2026-01-01T00:00:00Z,H100\n")
    assert reasons(report) == [(0, "dates stand beside seconds that count from a start of their own")]
    with pytest.raises(DataError):
        refuse_bad_demand(report, demand)


# --- samples ---

GRAFANA = (
    'sep=;\n"Time";"{__name__=""app_replicas"", app=""chat"", gpu=""H100""}";'
    '"app_replicas{app=""draw"",gpu=""L4""}"\n'
    "1767225600000;2;\n1767225660000;2;NaN\n1767225720000;5;1\n1767225780000;NaN;1\n1767225840000;4;3\n"
)


def test_a_grafana_export_of_replicas_becomes_rises_and_falls(tmp_path: Path) -> None:
    demand, report = load(tmp_path, GRAFANA)
    found = demand.trace
    assert found is not None
    assert changes(found) == [(120, "chat", 3), (120, "draw", 1), (240, "chat", -1), (240, "draw", 2)]
    assert found.running_at_start == (("chat", "H100-80GB", 1, 2),)
    assert (found.sampled_every_seconds, found.since_1970) == (60, True)
    said = dict(report.decisions)
    assert said["delimiter"] == "semicolon"
    assert said["gaps"].startswith("3 samples are missing")
    assert said["times"] == "milliseconds since 1970"
    assert (report.rows, report.used_rows) == (5, 5)


def test_request_rates_become_replicas_by_what_one_serves(tmp_path: Path) -> None:
    text = 'Time,"rate{app=""chat""}"\n0,10\n60,10.1\n120,31\n180,0\n'
    found = trace(tmp_path, text, classes=(CHAT,))
    assert found.running_at_start == (("chat", "H100-80GB", 2, 2),)
    assert [replicas for _, _, replicas in changes(found)] == [1, 4, -7]
    rules = reading_rules(constants=["demand.gpu=L4"], service_rate=10)
    assert [event.replicas for event in trace(tmp_path, text, rules).events] == [1, 2, -4]


def test_series_of_one_application_are_added_before_they_are_rounded(tmp_path: Path) -> None:
    text = 'Time,"r{app=""chat"",pod=""1""}","r{app=""chat"",pod=""2""}"\n0,1,1\n60,3,3\n'
    found = trace(tmp_path, text, classes=(CHAT,))
    assert found.running_at_start[0][3] == 1
    assert [event.replicas for event in found.events] == [1]


def test_rows_of_samples_are_read_as_columns_are(tmp_path: Path) -> None:
    text = "time,application,gpu,requests_per_second,service_rate\n" + "".join(
        f"{time},{app},H100,{rate},5\n"
        for time, app, rate in ((0, "a", 5), (0, "b", 0), (60, "a", 11), (60, "b", 1), (60, "b", 1))
    )
    demand, report = load(tmp_path, text)
    assert demand.trace is not None
    assert changes(demand.trace) == [(60, "a", 2), (60, "b", 1)]
    assert reasons(report) == [(6, "repeats an earlier row")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'Time,"rate{app=""x"",gpu=""L4""}"\n0,1\n60,2\n',
            "request rates need `--service-rate`; for replicas",
        ),
        ('Time,"http_requests_total{app=""x"",gpu=""L4""}"\n0,1\n60,2\n', "a counter, export its `rate()`"),
        ('Time,"replicas{app=""x"",gpu=""L4""}"\n0,1.2 K\n60,2\n', "a formatted and so a rounded value"),
        ('Time,"replicas{app=""x"",gpu=""L4""}"\n0,45%\n60,2\n', "a formatted and so a rounded value"),
        ('Time,"replicas{app=""x"",gpu=""L4""}"\n0,1\n0,2\n60,3\n', "the time of line 2 once more"),
        ('Time,"replicas{app=""x"",gpu=""L4""}"\n0,-1\n60,2\n', "`-1` is negative"),
        ('Time,"replicas{app=""x"",gpu=""L4""}"\n0,inf\n60,2\n', "`inf` is not a finite number"),
        ('Time,"replicas{app=""x""}"\n0,1\n60,2\n', "no GPU for `x`"),
        ('Time,"replicas{app=""x"",gpu=""L4""}"\n0,1\n', "fewer than two samples"),
        ("time,app,gpu,running\n0,x,L4,1\n60,x,L4,2\n60,x,L4,3\n", "contradicts the sample of line 3"),
    ],
)
def test_samples_that_say_too_little_or_too_much_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    demand, report = load(tmp_path, text)
    assert any(found.startswith(reason) for _, found in reasons(report)), reasons(report)
    with pytest.raises(DataError):
        refuse_bad_demand(report, demand)


def test_a_log_of_single_requests_is_not_taken_for_samples() -> None:
    path = shared_data("pool/azure_llm_2023_code.csv")
    rules = reading_rules(constants=["demand.gpu=H100"], time_zone="UTC", service_rate=1)
    demand, report = read_demand(path, rules)
    assert [reason for _, reason in reasons(report)] == [
        "times do not lie on one grid: samples are expected, not single requests"
    ]
    with pytest.raises(DataError, match="single requests"):
        refuse_bad_demand(report, demand)


def test_times_of_seven_digits_in_a_recorded_trace_are_read(tmp_path: Path) -> None:
    lines = shared_data("pool/azure_llm_2023_conv.csv").read_text().splitlines()
    text = "start_time,gpu\n" + "".join(f"{line.split(',')[0]},H100\n" for line in lines[1:])
    found = trace(tmp_path, text, reading_rules(time_zone="UTC"))
    assert len(found.events) == len(lines) - 1
    assert 3000 < found.last_seconds - found.first_seconds < 4000


def test_more_gpus_than_any_replica_has_are_a_slip(tmp_path: Path) -> None:
    _, report = load(tmp_path, "time,gpu,gpus_per_replica\n0,H100,1000000000000\n60,H100,8\n")
    assert reasons(report) == [(2, "no replica has so many GPUs")]
