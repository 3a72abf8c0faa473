"""Price tables: every line becomes offers at exact prices, or a finding that says why not."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Severity, TableReport
from coldstart_pool.inputs.google_machines import join_google_rows
from coldstart_pool.inputs.gpu_names import board_in, memory_doubt
from coldstart_pool.inputs.numbers import BadNumberError, is_missing, parse_number, stated_currency
from coldstart_pool.inputs.offers import ON_DEMAND, SPOT, Offer, canonical_market
from coldstart_pool.inputs.places import canonical_provider, is_total
from coldstart_pool.inputs.price_cells import (
    dollars,
    headed_hours,
    money,
    plausible,
    same_size,
    spot_suspicion,
    unit_hours,
)
from coldstart_pool.inputs.price_conflicts import Candidate, one_price_each
from coldstart_pool.inputs.rows import OtherRow, RowReader, UnusableRow
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.tables import Row, Table, read_table
from coldstart_pool.inputs.times import Clock, age_days

# in this order: the price per instance counts where both are stated
_PRICE_FIELDS = ("per_gpu", "price", "on_demand", "spot")
# the cells that decide what an instance costs, and what a machine is
_PRICE_SAYINGS = (*_PRICE_FIELDS, "unit", "currency", "market")
_MACHINE_SAYINGS = ("gpu", "gpu_count", "gpu_info", "gpu_memory")
_MOST_REMEMBERED = 1 << 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# SkyPilot's catalogue has a folder for each provider, and no column for it
_CATALOGUE_FILE = "vms.csv"
_OTHER_ACCELERATORS = ("TPU", "INFERENTIA", "TRAINIUM")
_SIZE_IN_MIB = re.compile(r"""(?:SizeInMiB|TotalGpuMemoryInMiB)['"]?\s*:\s*(\d{1,9}(?:\.\d{1,3})?)""")


def load_offers(path: Path, rules: ReadingRules | None = None) -> tuple[tuple[Offer, ...], TableReport]:
    """All offers of a price table in their fixed order, and what became of every row."""
    rules = rules or ReadingRules()
    in_catalogue = path.name == _CATALOGUE_FILE and path.absolute().parent.name
    table = read_table(
        path,
        TableKind.PRICES,
        "provider",
        "gpu",
        "gpu_count",
        "price|on_demand|per_gpu|spot",
        numeric=_PRICE_FIELDS,
        rules=rules,
        defaults={"provider": in_catalogue} if in_catalogue else None,
    )
    names = {row.text("gpu") for row in table.rows} - {""}
    if names and all(name.isdigit() for name in names):
        # Amazon's price list has the number of GPUs in a column `GPU`, and their name in none
        raise DataError(
            f"{path}: the column `{table.headings['gpu']}` holds numbers and no names of GPUs",
            hint=f"`--map prices.gpu_count={table.headings['gpu']}`, and `--map prices.gpu` for their names",
        )
    table, *joined = join_google_rows(table)
    reader = _PriceReader(table, rules, *joined)
    candidates = [one for _, found in reader.rows.values(reader.read) for one in found]
    return reader.finish(candidates)


class _PriceReader:
    def __init__(
        self, table: Table, rules: ReadingRules, added: frozenset[int], alone: frozenset[int]
    ) -> None:
        self.rows = RowReader(table, rules)
        self._table = table
        self._rules = rules
        # dstack writes the market as a yes/no column called `spot`
        words = {row.text("spot").lower() for row in table.rows}
        self._spot_is_flag = bool(words) and words <= {"true", "false"}
        headings = (table.headings.get(field, "") for field in _PRICE_FIELDS)
        self._heading_currency = next(filter(None, map(stated_currency, headings)), None)
        self._currencies: set[str] = set()
        self._units: set[str] = set()
        # a GPU's row names no machine where the two are priced apart
        self._hosts_apart = any(row.text("instance_type") and not row.text("gpu") for row in table.rows)
        self._added, self._alone = added, alone
        # the zone moves an age by hours at most
        self._clock = Clock((row.text("as_of") for row in table.rows), rules.time_zone or UTC, dates=True)
        self._dates: dict[str, tuple[Fraction, str, str]] = {}
        self._machines: dict[tuple[str, ...], tuple[int, str]] = {}
        self._priced: dict[tuple[object, ...], dict[str, Fraction]] = {}
        self._believed: dict[tuple[object, ...], dict[str, Fraction]] = {}
        self._price_fields = [field for field in _PRICE_FIELDS if field in table.headings]
        self._price_sayings = tuple(field for field in _PRICE_SAYINGS if field in table.headings)
        self._machine_sayings = tuple(field for field in _MACHINE_SAYINGS if field in table.headings)
        self._heading_units = {field: table.unit(field) for field in self._price_fields}

    def read(self, row: Row) -> list[Candidate]:
        count, gpu = self._machine(row)
        provider = row.text("provider")
        if not provider:
            raise UnusableRow(Severity.REFUSED, "no provider")
        if is_total(provider):
            raise UnusableRow(Severity.REFUSED, "a row of sums names no provider", f"`{provider}`")
        if (
            "region" in self._table.headings
            and not row.text("region")
            and not self._question(row, "no region")
        ):
            return []
        as_of = self._as_of(row)
        # prices repeat: what was found good once needs no second look
        said = (*map(row.text, self._price_sayings), count)
        prices = self._once(self._priced, said, lambda: self._prices(row, count))
        if not prices:
            raise UnusableRow(Severity.REFUSED, "no price")
        if as_of is not None and not self._fresh(row, as_of):
            return []
        believed = self._once(self._believed, said, lambda: self._plausible(row, prices, count))
        return [
            Candidate(
                Offer(
                    canonical_provider(provider),
                    row.text("region").lower(),
                    row.text("zone").lower(),
                    _instance_type(row, gpu, count),
                    gpu,
                    count,
                    market,
                    price,
                    _number_or_none(row.text("vcpus"), self._table.mark),
                    row.text("driver"),
                    row.text("cpu_level").lower(),
                ),
                row.line,
                as_of,
            )
            for market, price in believed.items()
        ]

    def finish(self, candidates: list[Candidate]) -> tuple[tuple[Offer, ...], TableReport]:
        offers, used_lines = one_price_each(candidates, self.rows)
        self._decide()
        return offers, self.rows.report(used_lines)

    def _once(
        self,
        known: dict[tuple[object, ...], dict[str, Fraction]],
        key: tuple[object, ...],
        read: Callable[[], dict[str, Fraction]],
    ) -> dict[str, Fraction]:
        """What was read of the same cells before; only what left no finding is remembered."""
        if (found := known.get(key)) is None:
            before = len(self.rows.findings)
            found = read()
            if len(self.rows.findings) == before and len(known) < _MOST_REMEMBERED:
                known[key] = found
        return found

    def _question(self, row: Row, reason: str, detail: str = "") -> bool:
        return self.rows.question(row.line, reason, detail)

    def _machine(self, row: Row) -> tuple[int, str]:
        """GPUs of the instance, and the name of one."""
        if row.line in self._added:
            raise OtherRow("the price of GPUs, added to that of their machine")
        if row.line in self._alone:
            raise UnusableRow(Severity.REFUSED, "price of the machine alone, no row prices its GPUs")
        board = board_in(row.text("instance_type"))
        said = (*map(row.text, self._machine_sayings), board)
        # where machines are priced apart, more than these cells decide
        if (found := None if self._hosts_apart else self._machines.get(said)) is None:
            before = len(self.rows.findings)
            found = self._read_machine(row, board)
            if len(self.rows.findings) == before and len(self._machines) < _MOST_REMEMBERED:
                self._machines[said] = found
        return found

    def _read_machine(self, row: Row, board: str) -> tuple[int, str]:
        name = row.text("gpu")
        count = self.rows.count(row, "gpu_count")
        if is_missing(name):
            if count == 0:
                raise OtherRow("a machine without a GPU")
            raise UnusableRow(Severity.REFUSED, "GPUs without a name")
        if name.upper().startswith(_OTHER_ACCELERATORS):
            raise OtherRow("an accelerator that is no GPU")
        if count == 0:
            raise UnusableRow(Severity.INVALID, "no GPUs in the instance")
        if self._hosts_apart and not row.text("instance_type"):
            raise UnusableRow(
                Severity.REFUSED, "price of the GPU alone, its machine is priced in another row"
            )
        memories = [
            reading
            for size in _SIZE_IN_MIB.findall(row.text("gpu_info"))
            # providers write MiB, GiB or the memory of all cards into this field
            for reading in (Fraction(size) / 1024, Fraction(size))
        ]
        memory = _number_or_none(row.text("gpu_memory"), self._table.mark)
        memories += [] if memory is None else [memory]
        gpu = self.rows.gpu(name, tuple(memories), count, board)
        if (doubt := memory_doubt(gpu, memories, count)) is not None:
            self.rows.doubt(row.line, "the memory does not fit the GPU", f"{gpu}: {doubt}")
        return count, gpu

    def _prices(self, row: Row, count: int) -> dict[str, Fraction]:
        """Market -> US dollars for one instance and hour."""
        hours, unit_is_gpu = unit_hours(row.text("unit")) if row.text("unit") else (None, False)
        cells = [row.text(field) for field in self._price_fields]
        rate, currency = dollars(row.text("currency"), self._heading_currency, cells, self._rules.rates)
        self._currencies.add(currency)
        self._units.add(row.text("unit").lower())
        market = self._market(row)
        prices: dict[str, Fraction] = {}
        for field in self._price_fields:
            sold_on = {"on_demand": ON_DEMAND, "spot": SPOT}.get(field, market)
            if (price := self._price(row, field, sold_on)) is None:
                continue
            headed = self._heading_units[field]
            of_gpu = unit_is_gpu or headed.of_gpu or field == "per_gpu"
            unit = headed_hours(headed, hours, self._table.headings[field])
            factor = rate * (count if of_gpu else 1) / unit
            earlier, price = prices.get(sold_on), price if factor == 1 else price * factor
            if earlier is not None and not same_size(earlier, price):
                detail = f"{money(earlier)} and {money(price)}"
                if not self._question(row, "price per instance and per GPU differ by a factor", detail):
                    del prices[sold_on]
                    continue
            prices[sold_on] = price
        return prices

    def _price(self, row: Row, field: str, market: str) -> Fraction | None:
        text = row.text(field)
        if is_missing(text) or (field == "spot" and self._spot_is_flag):
            return None
        try:
            price = parse_number(text, self._table.mark)
        except BadNumberError as error:
            self.rows.find(row.line, Severity.INVALID, "price is not a finite number", str(error))
            return None
        if price < 0:
            raise UnusableRow(Severity.INVALID, "price is negative", f"`{text}`")
        if price == 0:
            # public catalogues write 0.00 where no spot market exists; as a price it would fill the plan
            if market == SPOT:
                self._question(row, "spot price is 0: taken as not offered")
            else:
                self.rows.find(row.line, Severity.INVALID, "price is 0")
            return None
        return price

    def _market(self, row: Row) -> str:
        if self._spot_is_flag:
            return SPOT if row.text("spot").lower() == "true" else ON_DEMAND
        text = row.text("market")
        if (market := canonical_market(text) if text else ON_DEMAND) is None:
            raise UnusableRow(Severity.REFUSED, "unknown market", f"`{text}`")
        return market

    def _as_of(self, row: Row) -> Fraction | None:
        text = row.text("as_of")
        if not is_missing(text):
            return self._clock.seconds(text)
        return None if "as_of" in self._table.headings else self._file_date

    @cached_property
    def _file_date(self) -> Fraction | None:
        """Without a date in the table the operator's limit is one on the file."""
        if not self._rules.age_by_file:
            return None
        try:
            return Fraction(int(os.stat(self._table.path).st_mtime))
        except OSError:
            return None

    def _fresh(self, row: Row, as_of: Fraction) -> bool:
        text = row.text("as_of")
        if (found := self._dates.get(text)) is None:
            age = age_days(as_of, self._rules.now)
            reason = detail = ""
            if age > self._rules.oldest_price_days:
                reason = f"price is older than {float(self._rules.oldest_price_days):g} days"
                detail = f"{float(age):.0f} days"
            elif age <= -1:
                reason = "price is dated in the future"
            found = self._dates[text] = as_of, reason, detail
        return not found[1] or self._question(row, *found[1:])

    def _plausible(self, row: Row, prices: dict[str, Fraction], count: int) -> dict[str, Fraction]:
        kept = {}
        on_demand = prices.get(ON_DEMAND)
        for market, price in prices.items():
            reason, detail = None, ""
            if not plausible(price, count):
                reason, detail = f"implausible {market} price", f"{money(price / count)} per GPU and hour"
            elif market == SPOT and on_demand is not None:
                if not plausible(on_demand, count):
                    reason = "spot price beside an implausible on-demand price"
                else:
                    reason = spot_suspicion(price, on_demand)
            if reason is None or self._question(row, reason, detail):
                kept[market] = price
        return kept

    def _decide(self) -> None:
        stated = sorted(self._currencies - {""})
        rated = [
            f"{code} at {float(self._rules.rates[code]):g} USD" if code != "USD" else code for code in stated
        ]
        self.rows.decide("currency", ", ".join(rated) or "none stated: US dollars")
        units = sorted(self._units - {""})
        self.rows.decide(
            "unit", ", ".join(units) or "none stated: one hour of an instance, one of a GPU where so headed"
        )
        for field, headed in self._heading_units.items():
            if headed.seconds or headed.of_gpu:
                hours = float(headed.seconds[0] / 3600) if headed.seconds else 1
                what = "GPU" if headed.of_gpu else "instance"
                said = f"`{self._table.headings[field]}`: {hours:g} h of one {what}"
                self.rows.decide("unit", said)
        if self._dates:
            oldest = _EPOCH + timedelta(seconds=math.floor(min(date for date, _, _ in self._dates.values())))
            self.rows.decide("age", f"the oldest price is of {oldest:%Y-%m-%d}")


def _instance_type(row: Row, gpu: str, count: int) -> str:
    """The stated type, or one made of what the row says, so that different machines stay apart."""
    if stated := row.text("instance_type"):
        return stated
    size = [
        f"{row.text(field)}{unit}" for field, unit in (("vcpus", "vcpu"), ("memory", "gb")) if row.text(field)
    ]
    return "-".join([f"{count}x{gpu}", *size])


@lru_cache(maxsize=4096)
def _number_or_none(text: str, mark: str) -> Fraction | None:
    """A number that only helps: `80 GB` and `24x2` are no reason to refuse a row."""
    try:
        return None if is_missing(text) else max(parse_number(text, mark), Fraction(0)) or None
    except BadNumberError:
        return None
