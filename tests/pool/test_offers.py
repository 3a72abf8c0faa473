"""Price tables, clean and dirty."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, ExitCode, NotFoundError
from coldstart_pool.inputs.findings import Severity, TableReport, grouped_sentences
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.prices import load_offers
from coldstart_pool.inputs.rules import ReadingRules
from conftest import shared_data

HEADER = "provider,region,instance_type,gpu,gpu_count,on_demand,spot\n"


def table(tmp_path: Path, text: str | bytes, name: str = "prices.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def lines(report: TableReport, severity: Severity) -> list[int]:
    return sorted({finding.line for finding in report.of_severity(severity)})


def prices(offers: tuple[Offer, ...]) -> dict[tuple[str, int, str], float]:
    return {(offer.provider, offer.gpus_per_instance, offer.market): float(offer.price) for offer in offers}


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_lines_may_end_with_a_carriage_return(tmp_path: Path, end: str) -> None:
    text = (HEADER + "A,eu-1,big,H100,8,23.60,\nB,eu-1,big,H100,8,x,\n").replace("\n", end)
    offers, report = load_offers(table(tmp_path, text))
    assert [offer.provider for offer in offers] == ["a"]
    assert lines(report, Severity.INVALID) == [3]
    assert len(load_offers(table(tmp_path, f"sep=,{end}{text}"))[0]) == 1


def test_a_first_line_that_is_no_csv_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not valid CSV"):
        load_offers(table(tmp_path, "x" * 200_000 + "\n1\n"))


def test_a_clean_table_gives_one_offer_for_each_market(tmp_path: Path) -> None:
    offers, report = load_offers(table(tmp_path, HEADER + "A,eu-1,big,H100,8,23.60,10.00\n"))
    assert [(offer.market, offer.price) for offer in offers] == [
        ("on-demand", Fraction(236, 10)),
        ("spot", Fraction(10)),
    ]
    assert (report.rows, report.used_rows, report.findings) == (1, 1, ())


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ("8,-1,", "price is negative"),
        ("8,NaN,", "price is not a finite number"),
        ("8,inf,", "price is not a finite number"),
        ("8,1e400,", "price is not a finite number"),
        ("8,0.00,", "price is 0"),
        ("8,free,", "price is not a finite number"),
        ("0,1.0,", "no GPUs in the instance"),
        (",1.0,", "no GPUs in the instance"),
        ("-8,1.0,", "unreadable number"),
        ("1.5,1.0,", "unreadable number"),
        ("8,1.0", "wrong number of cells"),
    ],
)
def test_a_value_that_cannot_be_right_is_invalid_and_named_by_line(
    tmp_path: Path, cells: str, reason: str
) -> None:
    good = "a,eu-1,small,L40S,1,0.91,\n"
    offers, report = load_offers(table(tmp_path, HEADER + good + f"b,eu-1,big,H100,{cells}\n"))
    assert [offer.provider for offer in offers] == ["a"]
    assert [(finding.line, finding.reason) for finding in report.of_severity(Severity.INVALID)] == [
        (3, reason)
    ]
    assert report.refused_rows == 1


@pytest.mark.parametrize("spot", ["0", "0.00", "$0.00"])
def test_a_spot_price_of_nought_means_not_offered_even_when_suspicious_prices_are_accepted(
    tmp_path: Path, spot: str
) -> None:
    path = table(tmp_path, HEADER + f"a,eu-1,big,H100,8,23.60,{spot}\n")
    for accept in (False, True):
        offers, report = load_offers(path, ReadingRules(accept_suspicious=accept))
        assert [offer.market for offer in offers] == ["on-demand"]
        assert lines(report, Severity.QUESTIONED) == [2]


@pytest.mark.parametrize("spot", ["23.60", "25", "2.36", "1.00"])
def test_a_suspicious_spot_price_is_left_out_unless_accepted(tmp_path: Path, spot: str) -> None:
    path = table(tmp_path, HEADER + f"a,eu-1,big,H100,8,23.60,{spot}\n")
    assert [offer.market for offer in load_offers(path)[0]] == ["on-demand"]
    assert [offer.market for offer in load_offers(path, ReadingRules(accept_suspicious=True))[0]] == [
        "on-demand",
        "spot",
    ]


def test_contradicting_prices_of_one_offer_are_questioned_with_both_lines(tmp_path: Path) -> None:
    path = table(tmp_path, HEADER + "a,eu-1,big,H100,8,23.60,\na,EU-1,BIG,H100-80GB,8,30.00,\n")
    offers, report = load_offers(path)
    assert offers == ()
    assert lines(report, Severity.QUESTIONED) == [2, 3]
    assert prices(load_offers(path, ReadingRules(accept_suspicious=True))[0]) == {("a", 8, "on-demand"): 30.0}


def test_repeated_rows_are_merged_and_count_as_used(tmp_path: Path) -> None:
    row = "a,eu-1,big,H100,8,23.60,\n"
    offers, report = load_offers(table(tmp_path, HEADER + row * 3))
    assert len(offers) == 1
    assert (report.used_rows, lines(report, Severity.NOTED)) == (3, [3, 4])


def test_columns_are_found_by_meaning_in_any_order(tmp_path: Path) -> None:
    skypilot = (
        "Price,SpotPrice,InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Region,AvailabilityZone,Provider\n"
        "23.60,10.00,big,H100,8,128,1600,eu-1,eu-1a,a\n"
    )
    dstack = (
        "provider,instance_name,location,price,gpu_count,gpu_name,gpu_memory,spot\n"
        "b,one,us-1,2.5,1,A100,80,False\nb,one,us-1,1.1,1,A100,80,True\n"
    )
    per_gpu = "vendor,gpu,gpus,price_per_gpu_hour,market\nc,L40S,2,0.50,preemptible\n"
    assert prices(load_offers(table(tmp_path, skypilot))[0]) == {
        ("a", 8, "on-demand"): 23.6,
        ("a", 8, "spot"): 10.0,
    }
    assert prices(load_offers(table(tmp_path, dstack))[0]) == {
        ("b", 1, "on-demand"): 2.5,
        ("b", 1, "spot"): 1.1,
    }
    assert prices(load_offers(table(tmp_path, per_gpu))[0]) == {("c", 2, "spot"): 1.0}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_encoding_and_delimiter_are_found_out(tmp_path: Path, encoding: str, delimiter: str) -> None:
    text = (HEADER + "a,Hafnarfjörður,big,H100,8,23.60,10.00\n").replace(",", delimiter)
    (offer, _), _ = load_offers(table(tmp_path, text.encode(encoding)))
    assert (offer.region, offer.price) == ("hafnarfjörður", Fraction(236, 10))


def test_excels_separator_line_is_understood_and_line_numbers_stay_true(tmp_path: Path) -> None:
    text = "sep=;\r\n" + HEADER.replace(",", ";") + "a;eu-1;big;H100;8;-2,95;\r\n"
    _, report = load_offers(table(tmp_path, text))
    assert lines(report, Severity.INVALID) == [3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("provider,gpu,on_demand\na,H100,1\n", "no column for `gpu_count`"),
        ("provider,gpu,gpu_count\na,H100,1\n", "no column for `price` or `on_demand`"),
        ("provider,cloud,gpu,gpu_count,price\na,b,H100,1,2\n", "two columns could be `provider`"),
        ('provider,gpu,gpu_count,price\na,"H100,1,2\n', "not valid CSV"),
    ],
)
def test_a_table_without_the_needed_shape_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load_offers(table(tmp_path, text))
    assert "prices.csv" in caught.value.message
    assert caught.value.exit_code is ExitCode.DATAERR


def test_bytes_that_are_no_text_are_refused_with_the_conversion(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither UTF-8 \\(byte 63\\) nor Windows-1252") as caught:
        load_offers(table(tmp_path, HEADER.encode() + b"a,Qu\x81bec,big,H100,8,1,\n"))
    assert "iconv" in (caught.value.hint or "")


def test_a_table_in_windows_1252_is_read_and_that_is_said(tmp_path: Path) -> None:
    (offer,), report = load_offers(table(tmp_path, HEADER.encode() + b"a,Qu\xe9bec,big,H100,8,23.6,\n"))
    assert offer.region == "québec"
    assert [finding.reason for finding in report.of_severity(Severity.NOTED)] == [
        "read as Windows-1252, since byte 63 is not UTF-8"
    ]


def test_a_missing_table_is_named_with_near_matches(tmp_path: Path) -> None:
    table(tmp_path, HEADER)
    with pytest.raises(NotFoundError) as caught:
        load_offers(tmp_path / "price.csv")
    assert "prices.csv" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "rows", "used", "questioned"),
    [
        ("cloud_gpus_2022-08-04.csv", 73, 73, [50, 51, 52]),
        ("cloud_gpus_2023-05.csv", 137, 137, [42, 43, 44]),
    ],
)
def test_the_published_price_tables_are_read_whole(
    name: str, rows: int, used: int, questioned: list[int]
) -> None:
    offers, report = load_offers(shared_data(f"pool/{name}"))
    assert (report.rows, report.used_rows) == (rows, used)
    assert lines(report, Severity.QUESTIONED) == questioned
    assert all(0 < offer.price_per_gpu < 10 for offer in offers)


def test_same_named_machines_at_different_prices_are_left_out_of_the_newest_table() -> None:
    _, report = load_offers(shared_data("pool/cloud_gpus_2025-03-07.csv"))
    assert (report.rows, report.used_rows) == (257, 233)
    assert set(range(57, 61)) <= set(lines(report, Severity.QUESTIONED))


def test_catalogue_facts_never_give_a_free_or_a_doubtful_offer() -> None:
    offers, report = load_offers(shared_data("pool/gpu_price_facts.csv"))
    assert not [offer for offer in offers if offer.provider == "vast" and offer.market == "spot"]
    assert not [offer for offer in offers if offer.provider == "runpod" and offer.market == "spot"]
    assert {offer.gpus_per_instance for offer in offers if offer.gpu == "A100-80GB"} >= {1, 2, 4, 8}
    assert lines(report, Severity.REFUSED) == [26, 27, 47]  # a V100 of 16 or of 32 GB
    assert len({finding.line for finding in report.findings} | set(range(2, 85))) == report.rows
    assert any("lines 58-68" in sentence for sentence in grouped_sentences(report.findings))


def test_the_european_export_is_understood() -> None:
    offers, report = load_offers(shared_data("pool/dirty/eu_excel_bom_semicolon.csv"))
    assert prices(offers) == {
        ("alpha", 1, "on-demand"): 2.95,
        ("alpha", 1, "spot"): 1.25,
        ("beta", 8, "on-demand"): 23.6,
    }
    assert {offer.region for offer in offers} == {"eu-1"}
    assert lines(report, Severity.QUESTIONED) == [2]


def test_every_planted_defect_is_found_and_none_is_planned() -> None:
    offers, report = load_offers(shared_data("pool/dirty/mixed_defects.csv"))
    assert lines(report, Severity.INVALID) == [6, 13, 14]
    assert lines(report, Severity.REFUSED) == [9, 10, 11]
    assert lines(report, Severity.QUESTIONED) == [5, 7, 12]
    assert lines(report, Severity.NOTED) == [3, 4]
    assert prices(offers).keys() == {
        ("alpha", 8, "on-demand"),
        ("alpha", 8, "spot"),
        ("beta", 1, "on-demand"),
        ("beta", 1, "spot"),
        ("gamma", 8, "on-demand"),
        ("gamma", 8, "spot"),
    }
    assert prices(offers)["alpha", 8, "on-demand"] == 42.97  # per day and per hour agree to the cent
