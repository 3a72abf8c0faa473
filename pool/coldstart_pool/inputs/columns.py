"""Columns are found by what their heading says, never by position."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from coldstart_cli.errors import DataError, near_matches_hint
from coldstart_pool.inputs.heading_units import heading_unit, plain

Synonyms = Mapping[str, frozenset[str]]
# fields whose heading may say in what they are counted
DURATIONS = frozenset(("lead",))
RATES = frozenset(("rate", "service_rate"))
PRICES = frozenset(("price", "on_demand", "spot", "per_gpu"))
WITH_UNITS = DURATIONS | RATES | PRICES
_UNIT_WORDS = {"usd", "eur", "gbp", "h", "hr", "hrs", "hour", "hourly", "per", "gib", "gb"}


def synonyms(**names: str) -> Synonyms:
    """Field -> the normalised headings that mean it, from space-separated words.

    A word with `?` behind it counts only where no other column means the field; one with `/` only where the
    heading states a unit of time.
    """
    return {field: frozenset(words.split()) for field, words in names.items()}


@lru_cache(maxsize=4096)
def normalised(heading: str) -> str:
    """`On-demand ($/h)` and `on_demand_usd_h` are both `ondemand`."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"\([^)]*\)|\[[^\]]*\]", " ", plain(heading)))
    kept = list(words)
    while len(kept) > 1 and kept[-1] in _UNIT_WORDS:
        kept.pop()
    return "".join(kept if kept and kept[-1] not in _UNIT_WORDS else words)


def map_columns(
    path: str,
    headings: Sequence[str],
    known: Synonyms,
    named: Mapping[str, str] | None = None,
    *,
    table: str | None = None,
) -> dict[str, int]:
    """Field -> column number; `named` fields have the heading given. Two for one are refused.

    `table` is the name that `--map` has for the table.
    """
    found = {field: _named_column(path, headings, field, heading) for field, heading in (named or {}).items()}
    taken = set(found.values())
    claims: dict[str, tuple[list[int], list[int]]] = {}
    for number, heading in enumerate(headings):
        for field in fields_of(heading, known) if number not in taken else ():
            vague = normalised(heading) not in known[field]
            claims.setdefault(field, ([], []))[int(vague)].append(number)
    for field, (first, second) in claims.items():
        numbers = first or second
        if field in found:
            continue
        if len(numbers) > 1:
            one, other = (headings[number] for number in numbers[:2])
            raise DataError(
                f"{path}: two columns could be `{field}`: `{one}` and `{other}`",
                hint="rename all but one"
                if table is None or one.casefold() == other.casefold()
                else f"choose one: `--map {table}.{field}={one}`",
            )
        found[field] = numbers[0]
    return found


def fields_of(heading: str, known: Synonyms) -> list[str]:
    """The fields that a heading means."""
    name, unit = normalised(heading), heading_unit(heading)
    found = [field for field, names in known.items() if name in names or f"{name}?" in names]
    if found or not (unit.seconds or unit.of_gpu):
        return found
    return [
        field
        for field, names in known.items()
        if field in WITH_UNITS and (unit.name in names or (unit.seconds and f"{unit.name}/" in names))
    ]


def require_columns(
    path: str, headings: Sequence[str], columns: Mapping[str, int], *needed: str, given: Iterable[str] = ()
) -> None:
    """Refuse a file without a needed field; `a|b` is satisfied by either."""
    have = columns.keys() | set(given)
    unused = [heading for number, heading in enumerate(headings) if number not in columns.values()]
    for alternatives in needed:
        fields = alternatives.split("|")
        if not have & set(fields):
            wanted = " or ".join(f"`{field}`" for field in fields)
            raise DataError(
                f"{path}: no column for {wanted}; the columns are: {_listed(headings)}",
                hint=near_matches_hint(
                    fields[0],
                    unused,
                    otherwise=f"add a column `{fields[0]}`, name the one that holds it with `--map`, "
                    "or give one value for all rows with `--set`",
                ),
            )


def _named_column(path: str, headings: Sequence[str], field: str, wanted: str) -> int:
    exact = [number for number, heading in enumerate(headings) if heading == wanted]
    folded = [number for number, heading in enumerate(headings) if heading.casefold() == wanted.casefold()]
    for numbers in (exact, folded):
        if len(numbers) == 1:
            return numbers[0]
        if numbers:
            raise DataError(
                f"{path}: {len(numbers)} columns are called `{wanted}`", hint="rename all but one"
            )
    raise DataError(
        f"{path}: no column `{wanted}` for `{field}`; the columns are: {_listed(headings)}",
        hint=near_matches_hint(wanted, headings),
    )


def _listed(headings: Sequence[str]) -> str:
    more = f", and {len(headings) - 20} more" if len(headings) > 20 else ""
    return ", ".join(heading[:60] for heading in headings[:20]) + more
