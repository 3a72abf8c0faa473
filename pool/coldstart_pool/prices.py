"""Price tables: every line becomes offers at exact prices, or a finding that says why not."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from coldstart_pool.columns import PLACE_COLUMNS, Synonyms, synonyms
from coldstart_pool.findings import Finding, Severity, TableReport, line_ranges
from coldstart_pool.gpu_names import UnclearGpuError, canonical_gpu
from coldstart_pool.numbers import BadNumberError, foreign_currency, is_missing, parse_count, parse_number
from coldstart_pool.offers import ON_DEMAND, SPOT, Offer, canonical_market
from coldstart_pool.tables import Row, Table, read_table

_PRICE_COLUMNS: Synonyms = {
    **PLACE_COLUMNS,
    **synonyms(
        gpu_memory="gpumemory gpuram vram memorypergpu",
        vcpus="vcpus vcpu cpus cpu",
        memory="memory ram",
        price="price cost rate perhour priceper hourlyprice priceperinstance instanceprice",
        on_demand="ondemand ondemandprice priceondemand",
        spot="spot spotprice pricespot preemptible preemptibleprice",
        per_gpu="pergpu pricepergpu gpuprice",
        currency="currency billingcurrency",
        unit="unit priceunit pricingunit",
    ),
}
_PRICE_FIELDS = ("price", "on_demand", "spot", "per_gpu")
_HOURS_OF_UNIT = {
    "hour": 1,
    "hourly": 1,
    "hr": 1,
    "h": 1,
    "day": 24,
    "daily": 24,
    "month": 730,
    "monthly": 730,
}
# outside these bounds a price per GPU and hour is more likely a wrong column than an offer
_LOWEST_PER_GPU, _HIGHEST_PER_GPU = Fraction(2, 100), Fraction(50)
_LOWEST_SPOT_SHARE = Fraction(1, 10)
_BOTH_COLUMNS_FACTOR = 2
# a price per day, divided by 24, meets the same price per hour only to the rounding of both
_ROUNDING = Fraction(5, 1000)


class _Unusable(Exception):  # noqa: N818 - carries a finding, it is no failure of the program
    def __init__(self, severity: Severity, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.severity, self.reason, self.detail = severity, reason, detail


def load_offers(path: Path, *, accept_suspicious: bool = False) -> tuple[tuple[Offer, ...], TableReport]:
    """All offers of a price table in their fixed order, and what became of every row."""
    table = read_table(
        path,
        _PRICE_COLUMNS,
        "provider",
        "gpu",
        "gpu_count",
        "price|on_demand|per_gpu|spot",
        numeric=_PRICE_FIELDS,
    )
    reader = _Reader(table, accept_suspicious=accept_suspicious)
    for row in table.rows:
        reader.read(row)
    return reader.finish()


class _Reader:
    def __init__(self, table: Table, *, accept_suspicious: bool) -> None:
        self._table = table
        self._accept = accept_suspicious
        self._findings = list(table.findings)
        self._candidates: list[tuple[Offer, int]] = []
        self._used_lines: set[int] = set()
        # dstack writes the market as a yes/no column called `spot`
        words = {row.text("spot").lower() for row in table.rows}
        self._spot_is_flag = bool(words) and words <= {"true", "false"}
        headings = (table.headings.get(field, "") for field in _PRICE_FIELDS)
        self._header_currency = next(filter(None, map(foreign_currency, headings)), None)

    def read(self, row: Row) -> None:
        try:
            self._read(row)
        except _Unusable as problem:
            self._find(row.line, problem.severity, problem.reason, problem.detail)
        except BadNumberError as error:
            self._find(row.line, Severity.INVALID, "unreadable number", str(error))

    def finish(self) -> tuple[tuple[Offer, ...], TableReport]:
        offers = self._without_conflicts()
        report = TableReport(
            self._table.path,
            self._table.digest,
            self._table.row_count,
            len(self._used_lines),
            tuple(sorted(self._findings)),
        )
        return tuple(sorted(offers, key=lambda offer: offer.key)), report

    def _find(self, line: int, severity: Severity, reason: str, detail: str = "") -> None:
        self._findings.append(Finding(self._table.path, line, severity, reason, detail))

    def _question(self, line: int, reason: str, detail: str = "") -> bool:
        """Record a suspicion; whether the value may be used all the same."""
        self._find(line, Severity.QUESTIONED, reason, detail)
        return self._accept

    def _read(self, row: Row) -> None:
        count = parse_count(row.text("gpu_count"), self._table.mark) if row.text("gpu_count") else 0
        if count == 0:
            raise _Unusable(Severity.INVALID, "no GPUs in the instance")
        if not row.text("provider"):
            raise _Unusable(Severity.REFUSED, "no provider")
        self._check_currency(row)
        gpu = self._gpu(row, count)
        if (
            "region" in self._table.headings
            and not row.text("region")
            and not self._question(row.line, "no region")
        ):
            return
        prices = self._prices(row, count)
        if not prices:
            raise _Unusable(Severity.REFUSED, "no price")
        for market, price in self._plausible(row, prices, count).items():
            offer = Offer(
                row.text("provider").lower(),
                row.text("region").lower(),
                row.text("zone").lower(),
                _instance_type(row, gpu, count),
                gpu,
                count,
                market,
                price,
            )
            self._candidates.append((offer, row.line))

    def _gpu(self, row: Row, count: int) -> str:
        memory = row.text("gpu_memory")
        try:
            memory_gb = None if is_missing(memory) else parse_number(memory, self._table.mark)
        except BadNumberError:
            memory_gb = None  # `80 GB`, `24x2`: only a help for bare names
        try:
            return canonical_gpu(row.text("gpu"), memory_gb=memory_gb, gpu_count=count)
        except UnclearGpuError as error:
            raise _Unusable(Severity.REFUSED, str(error)) from error

    def _check_currency(self, row: Row) -> None:
        stated = row.text("currency").upper()
        foreign = stated if stated not in {"", "USD", "US$", "$"} else self._header_currency
        for field in _PRICE_FIELDS:
            foreign = foreign or foreign_currency(row.text(field))
        if foreign:
            raise _Unusable(Severity.REFUSED, "price is not in US dollars", foreign)

    def _prices(self, row: Row, count: int) -> dict[str, Fraction]:
        """Market -> price of one instance and hour."""
        hours, unit_is_gpu = _unit(row.text("unit"))
        market = self._market(row)
        per_instance = Fraction(count if unit_is_gpu else 1, hours)
        prices: dict[str, Fraction] = {}
        for field, sold_on, factor in (
            ("per_gpu", market, Fraction(count, hours)),
            ("price", market, per_instance),
            ("on_demand", ON_DEMAND, per_instance),
            ("spot", SPOT, per_instance),
        ):
            if (price := self._price(row, field, sold_on)) is None:
                continue
            earlier, price = prices.get(sold_on), price * factor
            if earlier is not None and not _same_size(earlier, price):
                detail = f"{_money(earlier)} and {_money(price)}"
                if not self._question(row.line, "price per instance and per GPU differ by a factor", detail):
                    del prices[sold_on]
                    continue
            prices[sold_on] = price  # the price per instance counts where both are stated
        return prices

    def _price(self, row: Row, field: str, market: str) -> Fraction | None:
        text = row.text(field)
        if is_missing(text) or (field == "spot" and self._spot_is_flag):
            return None
        try:
            price = parse_number(text, self._table.mark)
        except BadNumberError as error:
            self._find(row.line, Severity.INVALID, "price is not a finite number", str(error))
            return None
        if price < 0:
            raise _Unusable(Severity.INVALID, "price is negative", f"`{text}`")
        if price == 0:
            # public catalogues write 0.00 where no spot market exists; as a price it would fill the plan
            if market == SPOT:
                self._find(row.line, Severity.QUESTIONED, "spot price is 0: taken as not offered")
            else:
                self._find(row.line, Severity.INVALID, "price is 0")
            return None
        return price

    def _market(self, row: Row) -> str:
        if self._spot_is_flag:
            return SPOT if row.text("spot").lower() == "true" else ON_DEMAND
        text = row.text("market")
        if (market := canonical_market(text) if text else ON_DEMAND) is None:
            raise _Unusable(Severity.REFUSED, "unknown market", f"`{text}`")
        return market

    def _plausible(self, row: Row, prices: dict[str, Fraction], count: int) -> dict[str, Fraction]:
        kept = {}
        on_demand = prices.get(ON_DEMAND)
        for market, price in prices.items():
            per_gpu = price / count
            if not _plausible_size(per_gpu):
                reason, detail = f"implausible {market} price", f"{_money(per_gpu)} per GPU and hour"
            elif market == SPOT and on_demand is not None and not _plausible_size(on_demand / count):
                reason, detail = "spot price beside an implausible on-demand price", ""
            elif market == SPOT and on_demand is not None and price >= on_demand:
                reason, detail = "spot price is not below the on-demand price", ""
            elif market == SPOT and on_demand is not None and price <= on_demand * _LOWEST_SPOT_SHARE:
                reason, detail = "spot price is a tenth of the on-demand price or less", ""
            else:
                kept[market] = price
                continue
            if self._question(row.line, reason, detail):
                kept[market] = price
        return kept

    def _without_conflicts(self) -> list[Offer]:
        """Repetitions are merged; different prices of one offer are questioned, all lines named."""
        by_key: dict[tuple[object, ...], list[tuple[Offer, int]]] = {}
        for offer, line in self._candidates:
            by_key.setdefault(offer.key, []).append((offer, line))
        offers = []
        for members in by_key.values():
            # one spelling and, where accepted, the dearest price, whatever the order of the rows
            chosen = min(
                (offer for offer, _ in members), key=lambda offer: (-offer.price, offer.instance_type)
            )
            lines = sorted(line for _, line in members)
            if chosen.price > min(offer.price for offer, _ in members) * (1 + _ROUNDING):
                others = f"{chosen.market} in {line_ranges(lines)}"
                accepted = [
                    self._question(line, "prices of one offer contradict each other", others)
                    for line in lines
                ]
                if not all(accepted):
                    continue
            else:
                for line in lines[1:]:
                    self._find(
                        line, Severity.NOTED, "repeats an earlier row", f"{chosen.market} of line {lines[0]}"
                    )
            offers.append(chosen)
            self._used_lines.update(lines)
        return offers


def _instance_type(row: Row, gpu: str, count: int) -> str:
    """The stated type, or one made of what the row says, so that different machines stay apart."""
    if stated := row.text("instance_type"):
        return stated
    size = [
        f"{row.text(field)}{unit}" for field, unit in (("vcpus", "vcpu"), ("memory", "gb")) if row.text(field)
    ]
    return "-".join([f"{count}x{gpu}", *size])


def _unit(text: str) -> tuple[int, bool]:
    """Hours in the price's unit, and whether the price is for one GPU."""
    words = [word for word in text.lower().replace("/", " ").replace("-", " ").split() if word != "per"]
    of_gpu = "gpu" in words
    words = [word for word in words if word not in {"gpu", "instance", "usd", "$"}]
    if len(words) > 1 or (words and words[0] not in _HOURS_OF_UNIT):
        raise _Unusable(Severity.REFUSED, "unknown price unit", f"`{text}`")
    return (_HOURS_OF_UNIT[words[0]] if words else 1), of_gpu


def _plausible_size(per_gpu: Fraction) -> bool:
    return _LOWEST_PER_GPU <= per_gpu <= _HIGHEST_PER_GPU


def _same_size(first: Fraction, second: Fraction) -> bool:
    return max(first, second) <= min(first, second) * _BOTH_COLUMNS_FACTOR


def _money(price: Fraction) -> str:
    return f"{float(price):.4g} USD"
