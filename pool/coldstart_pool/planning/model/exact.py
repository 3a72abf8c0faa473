"""Whole machines against the rows, in exact arithmetic: what is broken, what is missing, what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from coldstart_pool.planning.model.integral import HARD, MOVING, Column, Integral
from coldstart_pool.planning.model.system import Kind, Row, dot
from coldstart_pool.planning.problem import Counts


class Ledger:
    """Counts of a plan that change one offer at a time, with every row's value kept exact."""

    def __init__(self, integral: Integral, counts: Sequence[int]) -> None:
        system = integral.system
        self.system = system
        self.integral = integral
        self.counts = list(counts)
        self._cut_sums = integral.cut_sums
        self._least, self._most = integral.bounds
        self._rows = np.zeros(len(system.rows), dtype=integral.dtype)
        for number, count in enumerate(self.counts):
            if count:
                column = integral.column(number)
                self._rows[column.hard] += column.hard_units * count
                self._rows[column.soft] += column.soft_units * count
                self._rows[column.pocketed] += column.pocketed_units * count
                for row, units in column.bent:
                    self._rows[row] += units * count
        self._sums = [
            0 if entry.most is None else int(dot(entry.terms, self.counts)) for entry in system.sums
        ]
        for row, cut in enumerate(integral.cut):
            for entry, units in cut:
                self._rows[row] += units * min(self._sums[entry], int(system.sums[entry].most or 0))
        for row, entry_row in enumerate(system.rows):
            if entry_row.kind in MOVING:
                self._rows[row] = sum(
                    self._moved(entry_row.kind, number, count) for number, count in enumerate(self.counts)
                )
        widest = [self._widest(np.array(list(rows), dtype=np.intp)) for rows in system.rows_of_pocket]
        self._pockets = np.array(widest, dtype=integral.dtype)
        hard = (integral.pocket_of == HARD) & ~integral.is_soft
        self._hard = np.flatnonzero(hard)
        self._soft = np.flatnonzero(integral.is_soft & (integral.pocket_of == HARD))

    @property
    def plan(self) -> Counts:
        return tuple(self.counts)

    def missing(self, number: int) -> Fraction:
        """What a row lacks to its lower bound, soft or not, in its own unit."""
        gap = max(0, int(self._least[number]) - int(self._rows[number]))
        return Fraction(gap, self.integral.row_unit[number])

    def value(self, number: int) -> Fraction:
        """What a row adds up to, in its own unit."""
        return Fraction(int(self._rows[number]), self.integral.row_unit[number])

    def broken(self) -> list[Row]:
        """Hard rows that do not hold."""
        broken = self._excess(self._hard, self._rows[self._hard]) > 0
        return [self.system.rows[number] for number in self._hard[broken].tolist()]

    def out_of_bounds(self) -> list[int]:
        lowest, highest = self.system.lowest, self.system.highest
        return [n for n, count in enumerate(self.counts) if not lowest[n] <= count <= highest[n]]

    def objective(self) -> Fraction:
        """Hourly price, price of movement, and the price of all that is missing, in US dollars."""
        return self.running_cost() + self.missing_cost()

    def running_cost(self) -> Fraction:
        """US dollars an hour above the commitments, and for movement."""
        floors, current = self.system.problem.floors, self.system.problem.current
        total = 0
        for number, count in enumerate(self.counts):
            total += self.integral.price[number] * (count - floors[number])
            total += self.integral.churn[number] * abs(count - current[number])
        return Fraction(total, self.integral.money)

    def missing_cost(self) -> Fraction:
        """US dollars an hour reckoned for all gaps."""
        gaps = self._least - self._rows
        prices = self.integral.gap_price
        total = sum(
            prices[number] * int(gaps[number])
            for number in np.flatnonzero(gaps > 0).tolist()
            if prices[number]
        )
        pockets = np.flatnonzero(self._pockets).tolist()
        total += sum(self.integral.pocket_price[number] * int(self._pockets[number]) for number in pockets)
        return Fraction(total, self.integral.money)

    def change(self, number: int, step: int) -> int | None:
        """What a step of one offer adds to the objective, in integer money; None where it breaks a limit."""
        if not self.allows(number, step):
            return None
        added = self.price_of_step(number, step)
        column = self.integral.column(number)
        before = self._least[column.soft] - self._rows[column.soft]
        more = np.maximum(before - column.soft_units * step, 0) - np.maximum(before, 0)
        for place in np.flatnonzero(more).tolist():
            added += self.integral.gap_price[column.soft[place]] * int(more[place])
        if len(column.pockets):
            wider = self._pockets_after(column, step) - self._pockets[column.pockets]
            for place in np.flatnonzero(wider).tolist():
                added += self.integral.pocket_price[column.pockets[place]] * int(wider[place])
        return added

    def price_of_step(self, number: int, step: int) -> int:
        """Of a step of one offer, the hourly price and that of movement, in integer money."""
        before = self.counts[number] - self.system.problem.current[number]
        added = self.integral.price[number] * step
        return added + self.integral.churn[number] * (abs(before + step) - abs(before))

    def open_gaps(self) -> list[tuple[int, int]]:
        """Rows with a price that are short, and by how many integer units."""
        gaps = self._least[self._soft] - self._rows[self._soft]
        short = np.flatnonzero(gaps > 0)
        return list(zip(self._soft[short].tolist(), gaps[short].tolist(), strict=True))

    def gaps(self, rows: Any) -> Any:
        """What rows lack to their lower bounds, negative where they have more."""
        return self._least[rows] - self._rows[rows]

    def over(self, rows: Any) -> Any:
        """How far rows are above their upper bounds, negative where there is room."""
        return self._rows[rows] - self._most[rows]

    def excess(self, rows: Any) -> Any:
        """How far rows are from holding, soft or not; 0 or less where they hold."""
        return self._excess(rows, self._rows[rows])

    def pockets(self, numbers: Any) -> Any:
        """The largest gap of each pocket."""
        return self._pockets[numbers]

    def allows(self, number: int, step: int) -> bool:
        """Whether a step keeps the bounds of its offer and breaks no hard row further."""
        count = self.counts[number] + step
        within = self.system.lowest[number] <= count <= self.system.highest[number]
        return within and not self._refused(number, step)

    def apply(self, number: int, step: int) -> None:
        column = self.integral.column(number)
        bent = self._bent(number, step)
        if len(column.pockets):
            self._pockets[column.pockets] = self._pockets_after(column, step)
        self._rows[column.hard] += column.hard_units * step
        self._rows[column.soft] += column.soft_units * step
        self._rows[column.pocketed] += column.pocketed_units * step
        for row, value in bent.items():
            self._rows[row] = value
        self.counts[number] += step
        for entry, factor in self._cut_sums[number]:
            self._sums[entry] += factor * step

    def _refused(self, number: int, step: int) -> bool:
        """Whether a step breaks a hard row, or breaks it further."""
        column = self.integral.column(number)
        rows = self._rows[column.hard]
        after = self._excess(column.hard, rows + column.hard_units * step)
        if (after > np.maximum(self._excess(column.hard, rows), 0)).any():
            return True
        return any(
            self._excess(row, after) > max(0, self._excess(row, self._rows[row]))
            for row, after in self._bent(number, step).items()
        )

    def _pockets_after(self, column: Column, step: int) -> Any:
        """The largest gap of each pocket that an offer touches, after a step of it."""
        gaps = self._least[column.pocketed] - self._rows[column.pocketed] - column.pocketed_units * step
        touched = np.maximum(np.maximum.reduceat(gaps, column.pocket_starts), 0)
        now = self._pockets[column.pockets]
        if step < 0:  # what an offer adds has one sign: untouched gaps stay, touched ones widen
            return np.maximum(now, touched)
        if len(column.others):  # the widest gap may be that of a row it does not lessen
            left = np.maximum.reduceat(
                self._least[column.others] - self._rows[column.others], column.others_starts
            )
            touched[column.others_pockets] = np.maximum(touched[column.others_pockets], left)
        return touched

    def opened(self, number: int, step: int) -> list[tuple[Row, float]]:
        """Rows that a step would leave short, or shorter, and by how much; the widest gap first."""
        found = []
        for row, after in self._after(number, step).items():
            gap = max(0, int(self._least[row]) - after)
            if gap > max(0, int(self._least[row]) - int(self._rows[row])):
                found.append((self.system.rows[row], gap / self.integral.row_unit[row], row))
        found.sort(key=lambda entry: (entry[0].kind is Kind.SCENARIO, -entry[1], entry[2]))
        return [(row, gap) for row, gap, _ in found]

    def refusing(self, number: int, step: int) -> list[Row]:
        """Hard rows that a step would break, or break further."""
        hard = set(self._hard.tolist())
        return [
            self.system.rows[row]
            for row, after in self._after(number, step).items()
            if row in hard and self._excess(row, after) > max(0, self._excess(row, self._rows[row]))
        ]

    def _after(self, number: int, step: int) -> dict[int, int]:
        column = self.integral.column(number)
        rows = np.concatenate((column.hard, column.soft, column.pocketed))
        units = np.concatenate((column.hard_units, column.soft_units, column.pocketed_units))
        values = self._rows[rows] + units * step
        return dict(zip(rows.tolist(), values.tolist(), strict=True)) | self._bent(number, step)

    def _bent(self, number: int, step: int) -> dict[int, int]:
        """Values after a step of the rows that are not linear in this offer."""
        touched = self.integral.column(number).bent
        moved = {entry: factor * step for entry, factor in self._cut_sums[number]} if touched else {}
        found = {}
        for row, units in touched:
            kind = self.system.rows[row].kind
            value = int(self._rows[row]) + units * step
            if kind in MOVING:
                count = self.counts[number]
                value += self._moved(kind, number, count + step) - self._moved(kind, number, count)
            for entry, weight in self.integral.cut[row]:
                if change := moved.get(entry):
                    most = int(self.system.sums[entry].most or 0)
                    before = self._sums[entry]
                    value += weight * (min(most, before + change) - min(most, before))
            found[row] = value
        return found

    def _moved(self, kind: Kind, number: int, count: int) -> int:
        """GPUs of an offer that are given back, or started, when it has this many instances."""
        more = count - self.system.problem.current[number]
        gpus = self.system.problem.offers[number].gpus_per_instance
        return gpus * max(0, -more if kind is Kind.SHRINK else more)

    def _excess(self, rows: Any, values: Any) -> Any:
        """How far hard rows are from holding; 0 or less where they hold."""
        return np.maximum(self._least[rows] - values, values - self._most[rows])

    def _widest(self, rows: Any) -> int:
        return max(0, int((self._least[rows] - self._rows[rows]).max())) if len(rows) else 0
