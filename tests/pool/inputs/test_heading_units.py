"""What a heading says of the numbers below it: units of time, for one GPU; in other languages too."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.demand_tables import read_demand
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.fleet_tables import read_classes, read_holdings, read_quotas
from coldstart_pool.inputs.heading_units import heading_unit
from coldstart_pool.inputs.loading import read_tables
from coldstart_pool.inputs.pool_inputs import TableFiles
from coldstart_pool.inputs.prices import load_offers
from coldstart_pool.inputs.rules import ReadingRules, reading_rules
from coldstart_pool.inputs.supply_tables import read_supply


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("heading", "seconds"),
    [
        ("lead", 10), ("lead (s)", 10), ("lead_seconds", 10), ("lead (min)", 600), ("lead_minutes", 600),
        ("lead_ms", "0.01"), ("Lead time [h]", 36000), ("leadMinutes", 600), ("took (hours)", 36000),
        ("Dauer (Min.)", 600), ("durée (heures)", 36000), ("duration_s", 10),
    ],
)  # fmt: skip
def test_a_lead_time_is_in_the_unit_of_its_heading(tmp_path: Path, heading: str, seconds: float) -> None:
    text = f"time,provider,gpu,requested,obtained,{heading}\n2026-05-04T08:00:00Z,a,H100,1,1,10\n"
    supply, report = read_supply(table(tmp_path, text), ReadingRules())
    assert [one.lead_seconds for one in supply.attempts] == [Fraction(seconds)], report.decisions
    assert report.clean


def test_two_units_in_one_heading_are_refused(tmp_path: Path) -> None:
    text = "time,provider,gpu,requested,obtained,lead_seconds (min)\n2026-05-04T08:00:00Z,a,H100,1,1,10\n"
    with pytest.raises(DataError, match="states two units of time"):
        read_supply(table(tmp_path, text), ReadingRules())


@pytest.mark.parametrize(
    ("heading", "price"),
    [
        ("price", 24), ("price per hour", 24), ("price (USD/h)", 24), ("price per day", 1),
        ("daily price", 1), ("price_usd_day", 1), ("Price [USD/day]", 1), ("cost/week", Fraction(24, 168)),
        ("price ($/GPU/h)", 192), ("price per GPU and day", 8), ("price per GPU per day", 8),
        ("gpu price (daily)", 8), ("on-demand price ($/month)", Fraction(24, 730)),
        ("Preis pro Tag", 1), ("Preis pro Stunde", 24), ("prix par jour", 1), ("Prix (heure)", 24),
    ],
)  # fmt: skip
def test_a_price_is_for_the_time_and_the_thing_of_its_heading(
    tmp_path: Path, heading: str, price: Fraction
) -> None:
    path = table(tmp_path, f"provider,gpu,gpu_count,{heading}\na,H100,8,24\n")
    offers, report = load_offers(path, ReadingRules(accept_suspicious=True))
    assert [offer.price for offer in offers] == [price], report


def test_a_unit_in_the_row_that_says_something_else_is_refused(tmp_path: Path) -> None:
    text = "provider,gpu,gpu_count,unit,price per day\na,H100,8,day,576\nb,H100,8,hour,24\n"
    offers, report = load_offers(table(tmp_path, text))
    assert [offer.price for offer in offers] == [24]
    assert [(one.line, one.reason) for one in report.findings] == [
        (3, "units of a price contradict each other")
    ]
    assert ("unit", "`price per day`: 24 h of one instance") in report.decisions


@pytest.mark.parametrize(
    "heading", ["requests/min", "req per minute", "rate (requests/min)", "requests_per_minute"]
)
def test_a_rate_by_the_minute_is_no_rate_by_the_second(tmp_path: Path, heading: str) -> None:
    text = f"time,application,gpu,{heading}\n0,chat,H100,0\n60,chat,H100,1200\n"
    demand, _ = read_demand(table(tmp_path, text), reading_rules(service_rate=10))
    assert demand.trace is not None
    assert [event.replicas for event in demand.trace.events] == [2]


def test_a_series_by_the_minute_too(tmp_path: Path) -> None:
    text = "time,chat req/min\n0,0\n60,1200\n"
    rules = reading_rules(service_rate=10, constants=["demand.gpu=H100", "demand.value=requests"])
    demand, report = read_demand(table(tmp_path, text), rules)
    assert demand.trace is not None
    assert [event.replicas for event in demand.trace.events] == [2]
    assert ("unit", "`chat req/min`: requests in 60 s") in report.decisions
    assert ("series", "chat req/min") in report.decisions
    assert "columns not read" not in dict(report.decisions)


def test_what_a_replica_serves_by_the_minute_too(tmp_path: Path) -> None:
    classes, _ = read_classes(
        table(tmp_path, "application,gpu,service rate (req/min)\nchat,H100,90\n"), ReadingRules()
    )
    assert classes[0].service_rate == Fraction(3, 2)


def test_times_are_in_the_unit_of_their_heading(tmp_path: Path) -> None:
    demand, _ = read_demand(table(tmp_path, "time (ms),gpu\n0,H100\n90000,H100\n"), ReadingRules())
    assert demand.trace is not None
    assert (demand.trace.last_seconds, demand.trace.since_1970) == (90, False)


def test_german_and_french_headings_are_known(tmp_path: Path) -> None:
    german = table(tmp_path, "Anbieter;Region;GPU;Anzahl;Preis (€/h);Währung\na;eu;H100;8;23,60;EUR\n")
    offers, report = load_offers(german, reading_rules(rates=["EUR=1.1"]))
    assert [(offer.provider, offer.price) for offer in offers] == [("a", Fraction("25.96"))], report
    french = table(tmp_path, "Fournisseur;Région;Type de GPU;Nombre;Prix\na;eu;H100;8;23,60\n")
    assert [offer.region for offer in load_offers(french)[0]] == ["eu"]
    supply = table(tmp_path, "Anbieter;GPU;Verfügbar\na;H100;3\n")
    assert [one.count for one in read_supply(supply, ReadingRules())[0].observations] == [3]
    held = table(tmp_path, "Anbieter;GPU;Anzahl GPUs;Anzahl\na;H100;8;3\n")
    assert [(one.selector.gpu_count, one.instances) for one in read_holdings(held, ReadingRules())[0]] == [
        (8, 3)
    ]


def test_a_heading_without_a_unit_keeps_its_name() -> None:
    assert heading_unit("GPU").name == "gpu"
    assert heading_unit("price").seconds == ()
    assert heading_unit("s").name == "s"


@pytest.mark.parametrize("name", ["Total", "Summe:", "TOTAL"])
def test_a_row_of_sums_is_no_gpu_and_no_provider(tmp_path: Path, name: str) -> None:
    text = f"gpu,target\nH100,8\n{name},8\n"
    read = read_tables(TableFiles(((TableKind.DEMAND, table(tmp_path, text)),)))
    (report,) = read.inputs.reports
    assert [(one.line, one.reason) for one in report.findings] == [(3, "a row of sums names no GPU")]
    prices = table(tmp_path, f"provider,gpu,gpu_count,price\na,H100,8,24\n{name},H100,8,24\n")
    offers, report = load_offers(prices)
    assert len(offers) == 1
    assert [(one.line, one.reason) for one in report.findings] == [(3, "a row of sums names no provider")]


def test_names_that_look_the_same_are_the_same(tmp_path: Path) -> None:
    text = (
        'provider,region,gpu,gpu_count,price\n"big\ncloud",r\u200b,H100,8,24\nbig cloud,\u202er,H100,8,24\n'
    )
    offers, report = load_offers(table(tmp_path, text))
    assert [(offer.provider, offer.region) for offer in offers] == [("big cloud", "r")]
    assert [(one.line, one.reason) for one in report.findings] == [
        (2, "a cell over several lines: read as one line"),
        (4, "repeats an earlier row"),
    ]
    assert dict(report.decisions)["encoding"] == "UTF-8; invisible characters left out: 2"


@pytest.mark.parametrize(
    "text", ["gpu;target\nH100;1.000\n", "gpu,target\nH100,1.000\n", "gpu;target\nH100;1.000\nL4;12.000\n"]
)
def test_a_count_with_a_point_and_three_digits_may_be_thousands(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"cannot tell whether `1.000` has a thousands mark") as caught:
        read_demand(table(tmp_path, text), ReadingRules())
    assert caught.value.hint == "write `1000` or `1.0`"


def test_every_count_is_asked_not_those_alone_that_a_table_calls_numeric(tmp_path: Path) -> None:
    text = "provider,gpu,gpu_count,instances\na,H100,8,2.000\n"
    with pytest.raises(DataError, match=r"cannot tell whether `2.000`"):
        read_holdings(table(tmp_path, text), ReadingRules())


def test_between_commas_a_point_is_a_decimal_point_and_other_numbers_decide(tmp_path: Path) -> None:
    path = table(tmp_path, "provider,gpu,gpu_count,price\na,H100,1,2.125\n")
    assert load_offers(path)[0][0].price == Fraction("2.125")
    path = table(tmp_path, "provider;gpu;gpu_count;price\na;H100;1;2.125\nb;H100;1;2.5\n")
    assert load_offers(path)[0][0].price == Fraction("2.125")
    with pytest.raises(DataError, match=r"cannot tell whether `2.125`"):
        load_offers(table(tmp_path, "provider;gpu;gpu_count;price\na;H100;1;2.125\n"))


def test_the_hint_for_two_columns_can_be_typed(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_offers(table(tmp_path, "provider,gpu,gpu_count,price_eur,cost\na,H100,8,24,24\n"))
    assert caught.value.hint == "choose one: `--map prices.price=price_eur`"
    with pytest.raises(DataError) as caught:
        load_offers(table(tmp_path, "provider,gpu,gpu_count,price,price\na,H100,8,24,24\n"))
    assert caught.value.hint == "rename all but one"


def test_counts_of_gpus_are_no_counts_of_machines(tmp_path: Path) -> None:
    text = "provider,gpu,gpu_count,available (GPUs)\na,H100,8,16\nb,H100,,16\n"
    supply, report = read_supply(table(tmp_path, text), ReadingRules())
    assert [(one.selector.provider, one.count, one.of_gpus) for one in supply.observations] == [
        ("b", 16, True)
    ]
    assert [(one.line, one.reason) for one in report.findings] == [
        (2, "the heading counts GPUs, and the row names a machine")
    ]
    held = table(tmp_path, "provider,gpu,gpu_count,idle (GPUs)\na,H100,8,16\n")
    assert read_holdings(held, ReadingRules())[0] == ()


@pytest.mark.parametrize(
    ("heading", "unit"),
    [("limit", "gpus"), ("limit (vCPUs)", "vcpus"), ("quota limit [instances]", "instances")],
)
def test_a_quota_counts_what_its_heading_says(tmp_path: Path, heading: str, unit: str) -> None:
    found, _ = read_quotas(table(tmp_path, f"provider,{heading}\na,96\n"), ReadingRules())
    assert [(quota.unit, quota.limit) for quota in found] == [(unit, 96)]


def test_a_quota_cannot_count_two_things(tmp_path: Path) -> None:
    found, report = read_quotas(table(tmp_path, "provider,unit,limit (vCPUs)\na,gpus,96\n"), ReadingRules())
    assert (found, len(report.findings)) == ((), 1)
