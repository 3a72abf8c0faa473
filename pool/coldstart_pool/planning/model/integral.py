"""A system in integers: each row in a unit of its own, all money in one. Still exact, and fast."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from coldstart_pool.planning.model.system import Kind, Number, System

MOVING = frozenset({Kind.SHRINK, Kind.GROWTH})
_FITS = 1 << 60
HARD = -1
"""Stands for the pocket of a row that may not be missed."""


@dataclass(frozen=True)
class Column:
    """What one instance of an offer adds, row by row, the rows apart by what missing them means."""

    hard: Any
    hard_units: Any
    soft: Any
    soft_units: Any
    pocketed: Any
    pocketed_units: Any
    """Rows in pockets, those of one pocket together."""
    pockets: Any
    pocket_starts: Any
    """The pockets touched, and where the rows of each begin."""
    others: Any
    others_pockets: Any
    others_starts: Any
    """The other rows of those pockets, which of them have any, and where those of each begin."""
    bent: tuple[tuple[int, int], ...]
    """Rows that it moves by more or less, depending on what else is there, with what it adds always."""

    @staticmethod
    def of(integral: Integral, number: int) -> Column:
        bent = integral.bent_by(number)
        flat = integral.flat(number)
        always = tuple((row, int(flat[row])) for row in bent)
        flat[list(bent)] = 0
        order, soft_from, pocketed_from = integral.order
        rows = order[np.flatnonzero(flat[order])]
        kinds = integral.rank[rows]
        first, second = np.searchsorted(kinds, (soft_from, pocketed_from))
        pocketed = rows[second:]
        return Column(
            rows[:first],
            flat[rows[:first]],
            rows[first:second],
            flat[rows[first:second]],
            pocketed,
            flat[pocketed],
            *integral.pockets_of(pocketed),
            always,
        )


@dataclass(frozen=True)
class Integral:
    """Plain integers for the inner loops; Python's do not overflow."""

    system: System

    @cached_property
    def unit(self) -> tuple[int, ...]:
        """For each row, how many of its integer units are one of its own."""
        found = []
        sums = self._sum_unit
        for row in self.system.rows:
            parts = [_denominator(factor for _, factor in row.offer_terms)]
            for entry, factor in row.sum_terms:
                most = self.system.sums[entry].most
                parts.append(sums[entry] * factor.denominator * (1 if most is None else most.denominator))
            parts += [bound.denominator for bound in (row.at_least, row.at_most) if bound is not None]
            found.append(math.lcm(*parts))
        return tuple(found)

    @cached_property
    def money(self) -> int:
        """How many integer units of money are one US dollar."""
        numbers: list[Number] = [*self.system.prices, *self.system.churn]
        numbers += [
            row.price / unit for row, unit in zip(self.system.rows, self.unit, strict=True) if row.soft
        ]
        for number, price in enumerate(self.system.pockets):
            numbers += [price / self.pocket_unit[number]]
        return _denominator(numbers)

    @cached_property
    def pocket_unit(self) -> tuple[int, ...]:
        """Rows of one pocket are compared, so they share one unit."""
        found = [1] * len(self.system.pockets)
        for row, unit in zip(self.system.rows, self.unit, strict=True):
            if row.pocket is not None:
                found[row.pocket] = math.lcm(found[row.pocket], unit)
        return tuple(found)

    @cached_property
    def row_unit(self) -> tuple[int, ...]:
        """As `unit`, with the shared one for rows in a pocket."""
        return tuple(
            unit if row.pocket is None else self.pocket_unit[row.pocket]
            for row, unit in zip(self.system.rows, self.unit, strict=True)
        )

    @cached_property
    def least(self) -> tuple[int | None, ...]:
        bounds = zip(self.system.rows, self.row_unit, strict=True)
        return tuple(None if row.at_least is None else int(row.at_least * unit) for row, unit in bounds)

    @cached_property
    def most(self) -> tuple[int | None, ...]:
        bounds = zip(self.system.rows, self.row_unit, strict=True)
        return tuple(None if row.at_most is None else int(row.at_most * unit) for row, unit in bounds)

    @cached_property
    def gap_price(self) -> tuple[int, ...]:
        """Money for one integer unit missing of a soft row."""
        pairs = zip(self.system.rows, self.row_unit, strict=True)
        return tuple(int(row.price * self.money / unit) if row.soft else 0 for row, unit in pairs)

    @cached_property
    def pocket_price(self) -> tuple[int, ...]:
        pairs = zip(self.system.pockets, self.pocket_unit, strict=True)
        return tuple(int(price * self.money / unit) for price, unit in pairs)

    @cached_property
    def pocket_of(self) -> Any:
        """For each row its pocket, or `HARD`."""
        return np.array(
            [HARD if row.pocket is None else row.pocket for row in self.system.rows], dtype=np.intp
        )

    @cached_property
    def is_soft(self) -> Any:
        return np.array([row.soft for row in self.system.rows], dtype=np.bool_)

    @cached_property
    def price(self) -> tuple[int, ...]:
        return tuple(int(price * self.money) for price in self.system.prices)

    @cached_property
    def churn(self) -> tuple[int, ...]:
        return tuple(int(price * self.money) for price in self.system.churn)

    @cached_property
    def dtype(self) -> Any:
        """64-bit integers where every number that can occur fits by far, Python's own otherwise."""
        highest = self.system.highest
        reach = [
            sum(abs(float(factor)) * highest[offer] for offer, factor in entry.terms)
            for entry in self.system.sums
        ]
        most = max(
            (float(abs(bound)) for bound in (*self.least, *self.most) if bound is not None), default=0.0
        )
        for row, unit in zip(self.system.rows, self.row_unit, strict=True):
            total = sum(abs(float(factor)) * reach[entry] for entry, factor in row.sum_terms)
            total += sum(abs(float(factor)) * highest[offer] for offer, factor in row.offer_terms)
            most = max(most, total * unit)
        return np.int64 if most < _FITS / 2 else np.object_

    @cached_property
    def bounds(self) -> tuple[Any, Any]:
        """Lower and upper bounds of all rows as arrays; a number beyond all others where there is none."""
        far = 2 * _FITS if self.dtype is np.int64 else 10**100
        least = np.array([-far if bound is None else bound for bound in self.least], dtype=self.dtype)
        most = np.array([far if bound is None else bound for bound in self.most], dtype=self.dtype)
        return least, most

    def column(self, number: int) -> Column:
        """What one instance of an offer adds to which rows; made when it is first asked for."""
        if number not in self._columns:
            self._columns[number] = Column.of(self, number)
        return self._columns[number]

    def flat(self, number: int) -> Any:
        """What one instance of an offer adds to every row, but to those that it moves by more or less."""
        added = np.zeros(len(self.system.rows), dtype=self.dtype)
        for entry, factor in self.system.sums_of_offer[number]:
            if not self._is_cut(entry):
                rows, weights = self._rows_of_sum[entry]
                added[rows] += weights * int(factor * self._sum_unit[entry])
        for row, factor in self.system.rows_of_offer[number]:
            if self.system.rows[row].kind not in MOVING:
                added[row] += int(factor * self.row_unit[row])
        return added

    def bent_by(self, number: int) -> tuple[int, ...]:
        """Rows that an offer moves by more or less, depending on what else is there."""
        cut = {row for entry, _ in self.cut_sums[number] for row, _ in self.system.rows_of_sum[entry]}
        return (*sorted(cut), *self._moving)

    @cached_property
    def order(self) -> tuple[Any, int, int]:
        """Hard rows, those with a price, then pocket by pocket; where the second and the third begin."""
        rank = np.where(self.pocket_of != HARD, 2, np.where(self.is_soft, 1, 0))
        order = np.lexsort((np.arange(len(rank)), self.pocket_of, rank))
        first, second = np.searchsorted(rank[order], (1, 2))
        return order, int(first), int(second)

    @cached_property
    def rank(self) -> Any:
        """The place of each row in `order`."""
        places = np.empty(len(self.system.rows), dtype=np.intp)
        places[self.order[0]] = np.arange(len(places))
        return places

    def pockets_of(self, rows: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Of rows in the order of their pockets: those pockets, where each begins, and their other rows."""
        key = rows.tobytes()
        if key not in self._pockets_of:
            pockets, starts = np.unique(self.pocket_of[rows], return_index=True)
            self._pockets_of[key] = (pockets, starts, *_others(self, pockets, rows))
        return self._pockets_of[key]

    @cached_property
    def _pockets_of(self) -> dict[bytes, tuple[Any, Any, Any, Any, Any]]:
        return {}

    @cached_property
    def _columns(self) -> dict[int, Column]:
        return {}

    @cached_property
    def _moving(self) -> tuple[int, ...]:
        return tuple(number for number, row in enumerate(self.system.rows) if row.kind in MOVING)

    @cached_property
    def _sum_unit(self) -> tuple[int, ...]:
        return tuple(_denominator(factor for _, factor in entry.terms) for entry in self.system.sums)

    @cached_property
    def _rows_of_sum(self) -> list[tuple[Any, Any]]:
        """For each sum the rows it is in, and what one of its own units adds to each."""
        found = []
        for entry, used in enumerate(self.system.rows_of_sum):
            rows = np.array([row for row, _ in used], dtype=np.intp)
            weights = [int(factor * self.row_unit[row] // self._sum_unit[entry]) for row, factor in used]
            found.append((rows, np.array(weights, dtype=self.dtype)))
        return found

    @cached_property
    def cut(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each row the sums in it that are cut off, with the units that one of the sum adds."""
        return tuple(
            tuple((entry, int(factor * unit)) for entry, factor in row.sum_terms if self._is_cut(entry))
            for row, unit in zip(self.system.rows, self.row_unit, strict=True)
        )

    @cached_property
    def cut_sums(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each offer the sums that are cut off, with what one instance adds to them."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.system.problem.offers]
        for number, entry in enumerate(self.system.sums):
            if entry.most is not None:
                for offer, factor in entry.terms:
                    found[offer].append((number, int(factor)))
        return tuple(tuple(entries) for entries in found)

    def _is_cut(self, entry: int) -> bool:
        return self.system.sums[entry].most is not None


def _others(integral: Integral, pockets: Any, touched: Any) -> tuple[Any, Any, Any]:
    order, _, start = integral.order
    inside = order[start:]
    chosen = np.isin(integral.pocket_of[inside], pockets)
    chosen[integral.rank[touched] - start] = False
    rows = inside[chosen]
    found, starts = np.unique(integral.pocket_of[rows], return_index=True)
    return rows, np.searchsorted(pockets, found), starts


def _denominator(numbers: Iterable[Number]) -> int:
    return math.lcm(*(Fraction(number).denominator for number in numbers))
