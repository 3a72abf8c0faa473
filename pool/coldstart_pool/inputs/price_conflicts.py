"""One price for each offer: repetitions, newer dates, contradictions, spot beside on-demand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from coldstart_pool.inputs.findings import Severity, line_ranges
from coldstart_pool.inputs.offers import ON_DEMAND, SPOT, Offer, OfferKey
from coldstart_pool.inputs.price_cells import spot_suspicion
from coldstart_pool.inputs.rows import RowReader

# a price per day, divided by 24, meets the same price per hour only to the rounding of both
_ROUNDING = Fraction(5, 1000)


class Candidate(NamedTuple):
    """An offer as one row states it, with the date of its price where there is one."""

    offer: Offer
    line: int
    as_of: Fraction | None


class _Kept(NamedTuple):
    key: OfferKey
    offer: Offer
    lines: Sequence[int]


def one_price_each(candidates: list[Candidate], rows: RowReader) -> tuple[tuple[Offer, ...], set[int]]:
    """The offers in their fixed order, and the lines that were used; `candidates` is emptied on the way."""
    by_key: dict[OfferKey, Candidate | list[Candidate]] = {}
    for candidate in candidates:
        # nearly every offer has one row: a list for each would be most of the memory
        earlier = by_key.setdefault(candidate.offer.key, candidate)
        if isinstance(earlier, list):
            earlier.append(candidate)
        elif earlier is not candidate:
            by_key[candidate.offer.key] = [earlier, candidate]
    candidates.clear()
    kept = []
    for key, given in by_key.items():
        if isinstance(given, list):
            found = _agreed(given, rows)
            if found is not None:
                kept.append(_Kept(key, *found))
        else:
            kept.append(_Kept(key, given.offer, (given.line,)))
    del by_key
    used: set[int] = set()
    offers = []
    # keys differ: a sort by them never compares offers
    for one in sorted(_without_odd_pairs(kept, rows)):
        offers.append(one.offer)
        used.update(one.lines)
    return tuple(offers), used


def _agreed(given: list[Candidate], rows: RowReader) -> tuple[Offer, list[int]] | None:
    """Repetitions are merged, the newest of dated prices counts, different ones are questioned."""
    members = _newest(given, rows)
    # one spelling and, where accepted, the dearest price, whatever the order of the rows
    chosen = min((member.offer for member in members), key=lambda offer: (-offer.price, offer.instance_type))
    lines = sorted(member.line for member in members)
    if chosen.price > min(member.offer.price for member in members) * (1 + _ROUNDING):
        others = f"{chosen.market} in {line_ranges(lines)}"
        if not rows.question_all(lines, "prices of one offer contradict each other", others):
            return None
    else:
        detail = f"{chosen.market} of line {lines[0]}"
        for line in lines[1:]:
            rows.find(line, Severity.NOTED, "repeats an earlier row", detail)
    return chosen, sorted(member.line for member in given)


def _newest(members: list[Candidate], rows: RowReader) -> list[Candidate]:
    dates = [member.as_of for member in members if member.as_of is not None]
    if len(dates) < len(members) or min(dates) == (newest := max(dates)):
        return members
    for member in members:
        if member.as_of != newest:
            rows.find(member.line, Severity.NOTED, "a newer row of the same offer counts")
    return [member for member in members if member.as_of == newest]


def _without_odd_pairs(kept: list[_Kept], rows: RowReader) -> Iterable[_Kept]:
    """Spot and on-demand of one machine in rows of their own are compared as those of one row are."""
    on_demand = {one.key[:-1]: one for one in kept if one.offer.market == ON_DEMAND}
    for one in kept:
        beside = on_demand.get(one.key[:-1]) if one.offer.market == SPOT else None
        if beside is not None and set(one.lines).isdisjoint(beside.lines):
            reason = spot_suspicion(one.offer.price, beside.offer.price)
            detail = f"on-demand in line {line_ranges(beside.lines)}" if reason else ""
            if reason and not rows.question_all(one.lines, reason, detail):
                continue
        yield one
