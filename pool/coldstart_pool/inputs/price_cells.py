"""What a price is worth: its unit, its currency, and whether it can be true."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache

from coldstart_pool.inputs.findings import Severity
from coldstart_pool.inputs.heading_units import HeadingUnit
from coldstart_pool.inputs.numbers import stated_currency
from coldstart_pool.inputs.rows import UnusableRow

# a month as clouds bill it
_HOURS = {
    "second": Fraction(1, 3600),
    "minute": Fraction(1, 60),
    "hour": Fraction(1),
    "day": Fraction(24),
    "week": Fraction(168),
    "month": Fraction(730),
    "year": Fraction(8760),
}
_HOURS_OF_UNIT = {
    **_HOURS,
    **{f"{name}s": hours for name, hours in _HOURS.items()},
    "hourly": Fraction(1),
    "hr": Fraction(1),
    "hrs": Fraction(1),
    "h": Fraction(1),
    "daily": Fraction(24),
    "weekly": Fraction(168),
    "monthly": Fraction(730),
    "mo": Fraction(730),
    "yearly": Fraction(8760),
    "annual": Fraction(8760),
}
# outside these bounds a price per GPU and hour is more likely a wrong column than an offer
_LOWEST_PER_GPU, _HIGHEST_PER_GPU = Fraction(2, 100), 50
_LOWEST_SPOT_SHARE = Fraction(1, 10)
_BOTH_COLUMNS_FACTOR = 2


@lru_cache(maxsize=4096)
def unit_hours(text: str) -> tuple[Fraction, bool]:
    """Hours in the price's unit, and whether the price is for one GPU; an empty unit is an hour."""
    words = [word for word in re.split(r"[\s/\-]+", text.lower()) if word not in {"per", "", "1"}]
    of_gpu = "gpu" in words
    words = [word for word in words if word not in {"gpu", "instance", "usd", "eur", "gbp", "$"}]
    if len(words) > 1 or (words and words[0] not in _HOURS_OF_UNIT):
        raise UnusableRow(Severity.REFUSED, "unknown price unit", f"`{text}`")
    return (_HOURS_OF_UNIT[words[0]] if words else Fraction(1)), of_gpu


def dollars(
    column: str, heading: str | None, cells: Iterable[str], rates: Mapping[str, Fraction]
) -> tuple[Fraction, str]:
    """US dollars for one unit of the row's currency, and the code that was found; `` where none is stated.

    A dollar sign beside the code of another dollar (CAD, AUD, SGD) says nothing against it.
    """
    stated = stated_currency(column) or column.upper()
    found = {code for cell in cells if cell and (code := stated_currency(cell)) is not None}
    if stated.endswith("D") and stated != "USD":
        found.discard("USD")
    codes = found | ({stated} if stated else {heading} if heading and not found else set())
    if len(codes) > 1:
        raise UnusableRow(Severity.REFUSED, "currencies contradict each other", " and ".join(sorted(codes)))
    code = next(iter(codes), "")
    if code in {"", "USD"}:
        return Fraction(1), code
    if (rate := rates.get(code)) is None:
        raise UnusableRow(Severity.REFUSED, "price is not in US dollars: pass `--rate CURRENCY=USD`", code)
    return rate, code


def plausible(price: Fraction, gpus: int) -> bool:
    """Whether US dollars an hour for so many GPUs are of a size that GPUs cost."""
    # whole numbers, since fractions compare ten times as slowly and a catalogue has many prices
    number, divisor = price.numerator, price.denominator * gpus
    return (
        _LOWEST_PER_GPU.numerator * divisor <= number * _LOWEST_PER_GPU.denominator
        and number <= _HIGHEST_PER_GPU * divisor
    )


def headed_hours(headed: HeadingUnit, stated: Fraction | None, heading: str) -> Fraction:
    """Hours of a price, from its heading or from the unit that its row states; else one."""
    if not headed.seconds:
        return Fraction(1) if stated is None else stated
    hours = headed.seconds[0] / 3600
    if stated is not None and stated != hours:
        detail = f"{float(stated):g} h in the row, {float(hours):g} h in `{heading}`"
        raise UnusableRow(Severity.REFUSED, "units of a price contradict each other", detail)
    return hours


def spot_suspicion(spot: Fraction, on_demand: Fraction) -> str | None:
    """What is odd about a spot price beside the on-demand price of the same machine."""
    if spot >= on_demand:
        return "spot price is not below the on-demand price"
    if spot <= on_demand * _LOWEST_SPOT_SHARE:
        return "spot price is a tenth of the on-demand price or less"
    return None


def same_size(first: Fraction, second: Fraction) -> bool:
    """Whether a price per instance and one per GPU times the GPUs can be the same price."""
    return max(first, second) <= min(first, second) * _BOTH_COLUMNS_FACTOR


def money(price: Fraction) -> str:
    return f"{float(price):.4g} USD"
