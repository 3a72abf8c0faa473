"""Files as programs and people write them: encodings, preambles, chosen columns, given values."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, UsageError
from coldstart_pool.inputs.fields import FIELDS, TableKind
from coldstart_pool.inputs.prices import load_offers
from coldstart_pool.inputs.rules import reading_rules
from coldstart_pool.inputs.tables import Table, read_table

HEADER = "provider,region,instance_type,gpu,gpu_count,on_demand\n"
ROW = "a,eu-1,big,H100,8,23.60\n"


def write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "prices.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path, **rules: list[str]) -> Table:
    needed = ("provider", "gpu", "gpu_count", "price|on_demand|per_gpu|spot")
    return read_table(
        path,
        TableKind.PRICES,
        *needed,
        numeric=("on_demand",),
        rules=reading_rules(**rules),  # type: ignore[arg-type]
    )


def decided(table: Table) -> dict[str, str]:
    return dict(table.decisions)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_known_by_its_zero_bytes(tmp_path: Path, encoding: str) -> None:
    table = read(write(tmp_path, (HEADER + ROW).encode(encoding)))
    assert len(table.rows) == 1
    assert "without a byte-order mark" in decided(table)["encoding"]
    assert [finding.line for finding in table.findings] == [0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04rest", "Excel workbook"),
        (b"\x1f\x8b\x08rest", "compressed with gzip"),
        ((HEADER + "a,eu\x001,big,H100,8,1\n").encode(), r"prices.csv:2: a control character .*0x00"),
        (b"\xff\xfea", "not UTF-16"),
    ],
)
def test_what_is_no_text_is_refused_by_what_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(write(tmp_path, content))


def test_names_that_look_the_same_are_the_same(tmp_path: Path) -> None:
    rows = "a,Que\u0301bec,big,H100,8,23.60\na\u200b,Qu\u00e9bec\u00a0,big,H100,8,23.60\n"
    offers, report = load_offers(write(tmp_path, HEADER + rows))
    assert [(offer.provider, offer.region) for offer in offers] == [("a", "qu\u00e9bec")]
    assert dict(report.decisions)["encoding"] == "UTF-8; invisible characters left out: 1"


def test_lines_before_the_headings_are_a_preamble_and_line_numbers_stay_true(tmp_path: Path) -> None:
    preamble = (
        '"FormatVersion","v1.0"\n"Disclaimer","For information, only"\n"Publication Date","2026-01-16"\n\n'
    )
    table = read(write(tmp_path, preamble + HEADER + ROW + ROW))
    assert [row.line for row in table.rows] == [6, 7]
    assert decided(table)["headings"] == "in line 5; 4 lines before it are a preamble"


def test_the_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    table = read(write(tmp_path, "owner," + HEADER + "x," + ROW))
    assert decided(table)["columns not read"] == "owner"
    assert "on_demand=`on_demand`" in decided(table)["columns"]


def test_a_column_can_be_chosen_by_its_heading(tmp_path: Path) -> None:
    text = "provider,Card,gpu,gpu_count,on_demand,Contract ($/h)\na,H100,x,8,99,23.60\n"
    path = write(tmp_path, text)
    rules = reading_rules(maps=["prices.gpu=card", "prices.on_demand=Contract ($/h)"])
    ((offer,), _) = load_offers(path, rules=rules)
    assert (offer.gpu, float(offer.price)) == ("H100-80GB", 23.6)
    with pytest.raises(DataError, match=r"no column `Cards` for `gpu`") as caught:
        load_offers(path, rules=reading_rules(maps=["prices.gpu=Cards"]))
    assert "Card" in (caught.value.hint or "")


def test_two_columns_for_one_field_are_refused_until_one_is_chosen(tmp_path: Path) -> None:
    path = write(tmp_path, "provider,vendor,gpu,gpu_count,price\na,b,H100,1,2\n")
    with pytest.raises(DataError, match="two columns could be `provider`: `provider` and `vendor`"):
        load_offers(path)
    ((offer,), _) = load_offers(path, rules=reading_rules(maps=["prices.provider=vendor"]))
    assert offer.provider == "b"


def test_a_vague_heading_gives_way_to_an_exact_one(tmp_path: Path) -> None:
    header = "provider,RegionId,RegionName,SKU,Instance Type,gpu,gpu_count,price\n"
    text = header + "a,eu-1,Europe,XY12,big,H100,1,2\n"
    ((offer,), _) = load_offers(write(tmp_path, text))
    assert (offer.region, offer.instance_type) == ("eu-1", "big")


def test_a_field_without_a_column_can_be_given_and_one_with_a_column_cannot(tmp_path: Path) -> None:
    path = write(tmp_path, "gpu,gpu_count,price\nH100,1,2\n")
    with pytest.raises(DataError, match="no column for `provider`") as caught:
        load_offers(path)
    assert "--set" in (caught.value.hint or "")
    ((offer,), report) = load_offers(path, rules=reading_rules(constants=["prices.provider=here"]))
    assert offer.provider == "here"
    assert ("no column", "provider is `here` in every row") in report.decisions
    with pytest.raises(DataError, match="`gpu` has a column already"):
        load_offers(path, rules=reading_rules(constants=["prices.provider=a", "prices.gpu=H100"]))


def test_a_delimiter_behind_every_line_adds_no_column(tmp_path: Path) -> None:
    table = read(write(tmp_path, (HEADER + ROW).replace("\n", ",\n")))
    assert (len(table.rows), table.findings) == (1, ())


@pytest.mark.parametrize(
    "rules",
    [
        {"maps": ["gpu=x"]},
        {"maps": ["price.gpu=x"]},
        {"maps": ["prices.gpus=x"]},
        {"maps": ["prices.gpu="]},
        {"maps": ["prices.gpu=a", "prices.gpu=b"]},
        {"constants": ["prices=x"]},
        {"rates": ["EUR"]},
        {"rates": ["EUR=0"]},
        {"rates": ["EUR=nan"]},
        {"rates": ["EUR=-1"]},
        {"rates": ["EURO=1.1"]},
        {"rates": ["USD=2"]},
        {"time_zone": "Europe/Berlinn"},
        {"time_zone": "../etc/passwd"},
        {"service_rate": float("nan")},
        {"oldest_price_days": 0},
    ],
)
def test_a_rule_that_cannot_be_is_refused(rules: dict[str, list[str]]) -> None:
    with pytest.raises(UsageError):
        reading_rules(**rules)  # type: ignore[arg-type]


def test_no_heading_means_two_fields_of_one_table() -> None:
    for kind, fields in FIELDS.items():
        words = [word.removesuffix("?") for names in fields.values() for word in names]
        assert sorted(set(words)) == sorted(words), kind
