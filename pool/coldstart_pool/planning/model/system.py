"""The programme as exact rows: what GLOP solves, and what whole machines are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property

from coldstart_pool.planning.problem import Counts, Problem

Number = Fraction | int
Term = tuple[int, Number]


class Kind(StrEnum):
    """What a row says."""

    COVERAGE = "coverage"
    UTILISATION = "utilisation"
    SURVIVAL = "survival"
    FLOOR = "floor"
    SCENARIO = "scenario"
    SUPPLY = "supply"
    QUOTA = "quota"
    SHARE = "share"
    SHRINK = "shrink"
    GROWTH = "growth"
    BUDGET = "budget"


NEEDS = frozenset({Kind.COVERAGE, Kind.UTILISATION, Kind.FLOOR})
"""Rows that a group is short of GPUs by; what a lost domain would leave is apart."""


@dataclass(frozen=True)
class Sum:
    """A weighted sum of offers that rows share; `most` cuts it off (only where more would help a row)."""

    terms: tuple[Term, ...]
    most: Number | None = None


@dataclass(frozen=True)
class Row:
    """One constraint; a row with a price may be missed, and each missing unit costs that an hour.

    Rows with the same `pocket` are missed together: the largest of their gaps is what counts.
    """

    kind: Kind
    label: str
    subject: int
    """Number of the group, cap, share or scenario that the row comes from."""
    offer_terms: tuple[Term, ...] = ()
    sum_terms: tuple[Term, ...] = ()
    at_least: Number | None = None
    at_most: Number | None = None
    price: Fraction = Fraction(0)
    pocket: int | None = None
    other: int = 0
    """A second number where the subject is a pair: the domain of a survival row."""

    @property
    def soft(self) -> bool:
        return self.price > 0


@dataclass(frozen=True)
class System:
    """Rows over offers and sums, bounds and prices of each offer, and what movement costs."""

    problem: Problem
    sums: tuple[Sum, ...]
    rows: tuple[Row, ...]
    pockets: tuple[Fraction, ...]
    """Price of one unit missing in each pocket."""
    lowest: Counts
    highest: Counts

    @cached_property
    def size(self) -> int:
        """Numbers in the programme: what a solve takes."""
        found = sum(len(row.offer_terms) + len(row.sum_terms) for row in self.rows)
        return found + sum(len(entry.terms) for entry in self.sums)

    @cached_property
    def prices(self) -> tuple[Fraction, ...]:
        return tuple(offer.price for offer in self.problem.offers)

    @cached_property
    def churn(self) -> tuple[Fraction, ...]:
        """Price of starting or stopping one instance; nothing where there is no pool yet."""
        factor = self.problem.will.churn if self.problem.held else Fraction(0)
        return tuple(price * factor for price in self.prices)

    @cached_property
    def rows_of_sum(self) -> tuple[tuple[tuple[int, Number], ...], ...]:
        """For each sum the rows it is in, with its factor there."""
        found: list[list[tuple[int, Number]]] = [[] for _ in self.sums]
        for number, row in enumerate(self.rows):
            for entry, factor in row.sum_terms:
                found[entry].append((number, factor))
        return tuple(tuple(entries) for entries in found)

    @cached_property
    def rows_of_offer(self) -> tuple[tuple[tuple[int, Number], ...], ...]:
        found: list[list[tuple[int, Number]]] = [[] for _ in self.problem.offers]
        for number, row in enumerate(self.rows):
            for offer, factor in row.offer_terms:
                found[offer].append((number, factor))
        return tuple(tuple(entries) for entries in found)

    @cached_property
    def sums_of_offer(self) -> tuple[tuple[tuple[int, Number], ...], ...]:
        found: list[list[tuple[int, Number]]] = [[] for _ in self.problem.offers]
        for number, entry in enumerate(self.sums):
            for offer, factor in entry.terms:
                found[offer].append((number, factor))
        return tuple(tuple(entries) for entries in found)

    @cached_property
    def dearest_first(self) -> tuple[int, ...]:
        """Offers by price for one GPU, the dearest first, then in their fixed order."""
        offers = self.problem.offers
        return tuple(sorted(range(len(offers)), key=lambda number: (-offers[number].price_per_gpu, number)))

    @cached_property
    def limited(self) -> frozenset[int]:
        """Offers that a row of supply or quota limits."""
        kinds = {Kind.SUPPLY, Kind.QUOTA}
        return frozenset(offer for row in self.rows if row.kind in kinds for offer, _ in row.offer_terms)

    @cached_property
    def rows_of_pocket(self) -> tuple[dict[int, Number], ...]:
        """For each pocket the needs of its rows."""
        found: list[dict[int, Number]] = [{} for _ in self.pockets]
        for number, row in enumerate(self.rows):
            if row.pocket is not None and row.at_least is not None:
                found[row.pocket][number] = row.at_least
        return tuple(found)


def whole(value: Number) -> Number:
    """An integer where the fraction is one: plain integers are ten times faster."""
    return value.numerator if value.denominator == 1 else value


def dot(terms: Sequence[Term], values: Sequence[Number]) -> Number:
    return sum(factor * values[number] for number, factor in terms)
