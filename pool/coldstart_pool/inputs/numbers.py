"""Numbers as people write them in tables: currency signs, thousands marks, decimal commas. Exact results."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from coldstart_cli.errors import DataError

_MISSING = {"", "-", "--", "n/a", "na", "none", "null", "?"}
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_CODES = "USD|EUR|GBP|JPY|CNY|INR|CHF|CAD|AUD|NOK|SEK|DKK|PLN|KRW|SGD|BRL"
_CURRENCY = re.compile(rf"US\$|[$€£¥₹]|(?<![A-Z])({_CODES})(?![A-Z])", re.IGNORECASE)
_SIGNS = {"€": "EUR", "£": "GBP", "₹": "INR", "¥": "JPY or CNY"}
_BLANKS = re.compile(r"[\s\u00a0\u202f']")
_DOT_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+)?(\.\d*)?([eE][+-]?\d{1,3})?", re.ASCII)
_COMMA_NUMBER = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)?(,\d*)?([eE][+-]?\d{1,3})?", re.ASCII)
# three digits after the only mark could be thousands: they decide nothing
_SAYS_COMMA = re.compile(r"0,\d+|\d+,(\d{1,2}|\d{4,})|\d{1,3}(\.\d{3})+,\d+|\d{1,3}(\.\d{3}){2,}")
_SAYS_DOT = re.compile(r"0?\.\d+|0\.\d+|\d+\.(\d{1,2}|\d{4,})|\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,}")
_UNDECIDED_COMMA = re.compile(r"\d{1,3},\d{3}")
_UNDECIDED_DOT = re.compile(r"[1-9]\d{0,2}\.\d{3}")


class BadNumberError(ValueError):
    """The text is no finite number; the message says what it is."""


def is_missing(text: str) -> bool:
    """Whether a cell says that there is nothing; NaN is no such word, it is a defect."""
    return text.strip().lower() in _MISSING


@lru_cache(maxsize=65536)
def stated_currency(text: str) -> str | None:
    """The code of the currency that `text` names; a bare dollar sign is `USD`, a yen sign is left open."""
    match = _CURRENCY.search(text)
    if match is None:
        return None
    return "USD" if match.group() in {"$", "US$", "us$"} else _SIGNS.get(match.group(), match.group().upper())


def decimal_mark(path: str, cells: Iterable[str], *, whole: Iterable[str] = (), delimiter: str = ",") -> str:
    """`.` or `,` for a whole file; refused when its numbers contradict each other, or all could be either.

    `whole` are cells of counts, where nobody writes three decimals. Between commas a point is a decimal
    point: who writes decimal commas separates cells by something else.
    """
    comma = dot = undecided = ""
    counts = dict.fromkeys(whole)
    for cell in dict.fromkeys((*counts, *dict.fromkeys(cells))):
        digits = _bare(cell).lstrip("+-")
        if _SAYS_COMMA.fullmatch(digits):
            comma = comma or cell.strip()
        elif _SAYS_DOT.fullmatch(digits):
            dot = dot or cell.strip()
        elif _UNDECIDED_COMMA.fullmatch(digits) or (
            (delimiter != "," or cell in counts) and _UNDECIDED_DOT.fullmatch(digits)
        ):
            undecided = undecided or cell.strip()
    if comma and dot:
        raise DataError(
            f"{path}: numbers contradict each other: `{comma}` has a decimal comma, `{dot}` a decimal point",
            hint="write all numbers of the file the same way",
        )
    if undecided and not comma and not dot:
        sign = "," if "," in undecided else "."
        raise DataError(
            f"{path}: cannot tell whether `{undecided}` has a thousands mark or a decimal "
            f"{'comma' if sign == ',' else 'point'}",
            hint=f"write `{undecided.replace(sign, '')}` or `{_plainly(undecided.replace(sign, '.'))}`",
        )
    return "," if comma else "."


@lru_cache(maxsize=65536)
def parse_number(text: str, mark: str = ".") -> Fraction:
    """The exact value of `text`; raises `BadNumberError` for anything that is no finite number."""
    digits = _bare(text)
    if _NOT_FINITE.fullmatch(digits):
        raise BadNumberError(f"`{text.strip()}` is not a finite number")
    pattern = _COMMA_NUMBER if mark == "," else _DOT_NUMBER
    if not re.search("[0-9]", digits) or not pattern.fullmatch(digits):
        raise BadNumberError(f"`{text.strip()}` is not a number")
    plain = digits.replace(".", "").replace(",", ".") if mark == "," else digits.replace(",", "")
    value = Decimal(plain)
    # an exponent of hundreds of digits is an attack or an accident, and exact arithmetic would choke on it
    if value and not -12 <= value.adjusted() <= 12:
        raise BadNumberError(f"`{text.strip()}` is out of any sensible range")
    return Fraction(value)


@lru_cache(maxsize=65536)
def parse_count(text: str, mark: str = ".") -> int:
    """A whole number, not negative."""
    value = parse_number(text, mark)
    if value.denominator != 1:
        raise BadNumberError(f"`{text.strip()}` is not a whole number")
    if value < 0:
        raise BadNumberError(f"`{text.strip()}` is negative")
    return int(value)


def _plainly(text: str) -> str:
    """The same number with decimals that cannot be thousands: `1.0`, `1.25`, `1.2340`."""
    whole, _, part = text.partition(".")
    part = part.rstrip("0") or "0"
    return f"{whole}.{part}0" if len(part) == 3 else f"{whole}.{part}"


def _bare(text: str) -> str:
    return _BLANKS.sub("", _CURRENCY.sub("", text))
