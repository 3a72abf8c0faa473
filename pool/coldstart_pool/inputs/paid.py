"""FOCUS exports: what was paid by contract, and reservations that nothing used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from coldstart_pool.inputs.facts import Commitment, PaidPrice
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Severity, TableReport, line_ranges
from coldstart_pool.inputs.offers import ON_DEMAND, SPOT
from coldstart_pool.inputs.places import Selector, canonical_provider
from coldstart_pool.inputs.price_cells import dollars, unit_hours
from coldstart_pool.inputs.rows import OtherRow, RowReader, UnusableRow
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.tables import Row, read_table

# the names that exports use for the kind of machine inside `SkuPriceDetails`
_TYPE_KEYS = ("InstanceType", "instanceType", "MachineType", "VMSize", "x_InstanceType")


@dataclass(frozen=True)
class _Charge:
    selector: Selector
    start: Fraction
    hours: Fraction
    price: Fraction | None
    unused_instances: Fraction | None
    line: int


@dataclass(frozen=True)
class Paid:
    """Contracted prices, and machines that are reserved and idle."""

    prices: tuple[PaidPrice, ...] = ()
    commitments: tuple[Commitment, ...] = ()


def read_paid(path: Path, rules: ReadingRules) -> tuple[Paid, TableReport]:
    """Contracted prices by machine from the newest charge period, and what was reserved without use in it."""
    table = read_table(
        path,
        TableKind.PAID,
        "provider",
        "instance_type|details",
        "contracted_price",
        "unit",
        "period_start",
        "period_end",
        numeric=("contracted_price", "quantity"),
        rules=rules,
    )
    rows = RowReader(table, rules)
    reader = _ChargeReader(rows)
    by_machine: dict[Selector, list[_Charge]] = {}
    for _, charge in rows.values(reader.read):
        by_machine.setdefault(charge.selector, []).append(charge)
    prices, commitments = [], []
    used: set[int] = set()
    for selector, charges in sorted(by_machine.items()):
        newest = max(charge.start for charge in charges)
        current = [charge for charge in charges if charge.start == newest]
        # older periods say what was paid then; they are read, and superseded
        used.update(charge.line for charge in charges)
        if (price := _price(rows, selector, current)) is not None:
            prices.append(price)
        if (commitment := _commitment(rows, path, selector, current)) is not None:
            commitments.append(commitment)
    used -= {finding.line for finding in rows.findings if finding.severity is not Severity.NOTED}
    return Paid(tuple(prices), tuple(commitments)), rows.report(used)


class _ChargeReader:
    def __init__(self, rows: RowReader) -> None:
        self._rows = rows
        self._clock = rows.clock("period_start", "period_end", dates=True)

    def read(self, row: Row) -> _Charge:
        if (charge := row.text("charge").lower()) not in {"", "usage"}:
            raise OtherRow(f"a charge of category {charge}")
        instance_type = row.text("instance_type") or _type_in(row.text("details"))
        if not instance_type:
            raise OtherRow("a charge that names no machine")
        hours_of_unit, of_gpu = unit_hours(row.text("unit"))
        if of_gpu:
            raise UnusableRow(Severity.REFUSED, "a price per GPU beside an instance type")
        start, end = (self._clock.seconds(row.text(field)) for field in ("period_start", "period_end"))
        if end <= start:
            raise UnusableRow(Severity.INVALID, "the charge period ends before it starts")
        selector = Selector(
            canonical_provider(row.text("provider")),
            row.text("region").lower(),
            row.text("zone").lower(),
            instance_type.casefold(),
            market=SPOT if row.text("market").lower() == "dynamic" else ON_DEMAND,
        )
        if not selector.provider:
            raise UnusableRow(Severity.REFUSED, "no provider")
        hours = (end - start) / 3600
        unused = None
        if "unused" in {row.text(field).lower() for field in ("reservation_status", "commitment_status")}:
            quantity = self._rows.number(row, "quantity")
            unused = None if quantity is None else quantity * hours_of_unit / hours
        return _Charge(selector, start, hours, self._price(row, hours_of_unit), unused, row.line)

    def _price(self, row: Row, hours_of_unit: Fraction) -> Fraction | None:
        price = self._rows.number(row, "contracted_price")
        if price is None:
            return None
        if price == 0:
            # a charge that a commitment covers is billed at 0 in some exports: no price of the machine
            self._rows.find(row.line, Severity.NOTED, "contracted price is 0: the list price stays")
            return None
        rate, _ = dollars(row.text("currency"), None, [], self._rows.rules.rates)
        return price / hours_of_unit * rate


def _price(rows: RowReader, selector: Selector, charges: list[_Charge]) -> PaidPrice | None:
    priced = [(charge.price, charge.line) for charge in charges if charge.price is not None]
    if not priced:
        return None
    lines = sorted(line for _, line in priced)
    dearest = max(price for price, _ in priced)
    if dearest > min(price for price, _ in priced):
        reason = "contracted prices of one machine contradict each other in one charge period"
        if not rows.question_all(lines, reason, f"{selector.text}: lines {line_ranges(lines)}"):
            return None
    return PaidPrice(selector, dearest, tuple(lines))


def _commitment(rows: RowReader, path: Path, selector: Selector, charges: list[_Charge]) -> Commitment | None:
    unused = [(charge.unused_instances, charge.line) for charge in charges if charge.unused_instances]
    if not unused:
        return None
    lines = tuple(sorted(line for _, line in unused))
    instances = sum((count for count, _ in unused), Fraction(0))
    if instances < 1:
        rows.find(lines[0], Severity.NOTED, "less than one machine was reserved without use", selector.text)
        return None
    return Commitment(selector, int(instances), f"{path}: unused reservation", lines)


def _type_in(details: str) -> str:
    """The instance type in the JSON of `SkuPriceDetails`."""
    if not details.startswith("{"):
        return ""
    try:
        values = json.loads(details)
    except (ValueError, RecursionError):
        return ""
    found = next((values[key] for key in _TYPE_KEYS if isinstance(values.get(key), str)), "")
    return str(found)
