"""Whatever bytes a table holds: it is read or refused, and no row of it is lost silently."""

from __future__ import annotations

import csv
import io
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coldstart_cli.errors import ColdstartError
from coldstart_pool.inputs.fields import FIELDS, TableKind
from coldstart_pool.inputs.findings import Severity
from coldstart_pool.inputs.loading import load_tables, read_tables
from coldstart_pool.inputs.pool_inputs import PoolInputs, TableFiles
from coldstart_pool.inputs.rules import ReadingRules, reading_rules

WORDS = """
a eu-1 H100 A100 A100-80GB-640GB L4 tpu-v5 big 8 1 0 -1 1.5 24 nan inf 1e400 1e-400 1,5 1.234,50 $3 €3 12%
spot on-demand reserved Hrs USD XYZ 2026-01-01T00:00:00Z 2026-01-02T00:00:00Z 03/04/2026 1767225600 60 120
vcpus gpus n/a - " x86-64-v3 é Unused Usage ٣ {
"""
CELLS = st.sampled_from(
    [*WORDS.split(), "", "1.2 K", "per day", "2026-03-29 02:30:00", "\x85", '{"InstanceType": 3}']
)
# columns without which a table is refused at once, and nothing deeper would be tried
NEEDED = {
    TableKind.PRICES: ["provider", "gpu", "gpu_count", "price"],
    TableKind.PAID: [
        *("provider", "instance_type", "contractedunitprice", "pricingunit"),
        *("chargeperiodstart", "chargeperiodend"),
    ],
    TableKind.SUPPLY: ["provider", "gpu", "got"],
    TableKind.DEMAND: ["time"],
    TableKind.CLASSES: ["application", "gpu"],
    TableKind.CURRENT: ["provider", "instance_type", "instances"],
    TableKind.QUOTA: ["provider", "limit"],
    TableKind.COMMITMENTS: ["provider", "instance_type", "instances"],
    TableKind.DOMAINS: ["domain", "provider"],
    TableKind.SNAPSHOTS: ["snapshot", "gpu"],
    TableKind.MACHINES: ["provider", "driver"],
}
GOOD = {
    "provider": ["a", "b"],
    "gpu": ["H100", "L4"],
    "gpu_count": ["1", "8"],
    "price": ["0.8", "24", "25"],
    "instance_type": ["big", "one"],
    "instances": ["1", "3"],
    "got": ["0", "1"],
    "contractedunitprice": ["40", "41"],
    "pricingunit": ["Hrs"],
    "chargeperiodstart": ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"],
    "chargeperiodend": ["2026-01-03T00:00:00Z"],
    "time": ["0", "60", "120", "180", "2026-01-01T00:00:00Z"],
    "limit": ["5", "6"],
}
RULES = (ReadingRules(), reading_rules(time_zone="Europe/Berlin", accept_suspicious=True, service_rate=2))


@st.composite
def csv_texts(draw: st.DrawFn) -> tuple[TableKind, bytes]:
    """Tables with headings that mean something, and cells that may mean anything."""
    kind = draw(st.sampled_from(list(TableKind)))
    known = [min(names).removesuffix("?") for names in FIELDS[kind].values()]
    others = draw(st.lists(st.sampled_from([*known, "other", 'rps{app="x",gpu="L4"}']), max_size=6))
    needed = NEEDED[kind] if draw(st.integers(0, 9)) else []
    headings = list(dict.fromkeys((*needed, *others)))
    delimiter = draw(st.sampled_from([",", ";", "\t"]))
    columns = [st.sampled_from(GOOD[name]) | CELLS if name in GOOD else CELLS for name in headings]
    rows: list[list[str]] = []
    for _ in range(draw(st.integers(0, 6))):
        good = draw(st.booleans())
        row = [
            draw(st.sampled_from(GOOD[name]) if good and name in GOOD else columns[n])
            for n, name in enumerate(headings)
        ]
        rows.append(row + ["x"] * (not draw(st.integers(0, 19))))
    quote = draw(st.booleans())
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_ALL if quote else csv.QUOTE_MINIMAL)
    writer.writerows([headings, *rows])
    encoding = draw(st.sampled_from(["utf-8", "utf-16", "utf-8-sig"]))
    return kind, stream.getvalue().encode(encoding)


def read_whole(kind: TableKind, content: bytes, rules: ReadingRules) -> PoolInputs | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(content)
        tables = TableFiles(((kind, path),), rules)
        read = read_tables(tables)
        try:
            load_tables(tables)
        except ColdstartError as error:
            assert error.message  # noqa: PT017 - which error is not foreseen, that it speaks is
        if read.unreadable:
            assert all(str(path) in error.message for _, _, error in read.unreadable)
            return None
        return read.inputs


def check(inputs: PoolInputs) -> None:
    (report,) = inputs.reports
    assert 0 <= report.used_rows <= report.rows
    # a row that is not used is in the findings, by line
    named = {finding.line for finding in report.findings if finding.line}
    assert len(named) >= report.refused_rows
    if report.clean:
        assert report.refused_rows == 0
        assert report.rows
    for offer in inputs.offers:
        assert offer.price > 0
        assert math.isfinite(float(offer.price))
        assert offer.gpus_per_instance > 0
        assert offer.provider
        assert offer.gpu
    assert all(one.count >= 0 for one in inputs.supply.observations)
    assert all(0 <= one.obtained <= one.requested for one in inputs.supply.attempts)
    if inputs.demand.trace is not None:
        assert all(event.replicas for event in inputs.demand.trace.events)
    assert all(finding.severity in Severity for finding in report.findings)


@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from(list(TableKind)), content=st.binary(max_size=300))
@example(kind=TableKind.SNAPSHOTS, content=b"[" * 5000)
@example(kind=TableKind.PRICES, content=b"\xef\xbb\xbf")
@example(kind=TableKind.DEMAND, content=b"time\n\n")
def test_any_bytes_are_read_or_refused(kind: TableKind, content: bytes) -> None:
    for rules in RULES:
        if (inputs := read_whole(kind, content, rules)) is not None:
            check(inputs)


@settings(max_examples=400, deadline=None)
@given(table=csv_texts())
def test_any_table_is_read_or_refused_and_no_row_is_lost(table: tuple[TableKind, bytes]) -> None:
    for rules in RULES:
        if (inputs := read_whole(*table, rules)) is not None:
            check(inputs)


@settings(max_examples=100, deadline=None)
@given(rows=st.permutations(range(6)))
def test_the_order_of_rows_changes_nothing_but_line_numbers(rows: list[int]) -> None:
    lines = [
        "a,eu-1,big,H100,8,24,10",
        "a,eu-1,big,h100 80GB,8,24,10",
        "a,us-1,big,H100,8,25,2.5",
        "b,us-1,big,H100,8,25,",
        "b,us-1,BIG,H100,8,26,",
        "c,,one,L4,1,0.8,0.3",
    ]
    text = "provider,region,instance_type,gpu,gpu_count,on_demand,spot\n"
    for rules in RULES:
        straight = read_whole(TableKind.PRICES, (text + "\n".join(lines)).encode(), rules)
        shuffled = read_whole(TableKind.PRICES, (text + "\n".join(lines[n] for n in rows)).encode(), rules)
        assert straight is not None
        assert shuffled is not None
        assert straight.offers == shuffled.offers


@pytest.mark.parametrize("kind", list(TableKind))
@pytest.mark.parametrize(
    "content", [b"", b"\n\n\n", b"sep=;\n", b"\xff\xfe", b"\xef\xbb\xbf", b",,,\n", b"   "]
)
def test_a_file_without_a_table_is_refused(kind: TableKind, content: bytes) -> None:
    assert read_whole(kind, content, RULES[0]) is None
