"""A lower bound that holds exactly: the dual values of GLOP, repaired and added up in fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from coldstart_pool.planning.model.linear import Relaxed
from coldstart_pool.planning.model.system import Kind, Number, Row, System

# duals are rounded to these steps first: any duals give a valid bound, and small denominators are fast
_STEPS = 1 << 24


def lower_bound(system: System, relaxed: Relaxed) -> Fraction:
    """No plan that keeps the rows has an objective below this, whatever the solver's tolerances.

    Weak duality: for prices y of the rows, the objective is at least the sum of y times the right-hand sides
    and, for each variable within its bounds, the lesser of its two ends times its reduced cost.
    """
    problem = system.problem
    problem = system.problem
    owed = _Owed(system)
    for row, price in zip(system.rows, _admissible(system, relaxed.duals), strict=True):
        if price:
            owed.add_row(row, price)
    for number, dual in enumerate(relaxed.sum_duals):
        owed.add_sum(number, Fraction(round(dual * _STEPS), _STEPS))
    total = owed.constant
    for number, cost in enumerate(owed.costs):
        total += _least(system, number, cost, owed.down_costs[number])
        total -= system.prices[number] * problem.floors[number]
        total -= system.churn[number] * problem.current[number]
    return Fraction(total)


class _Owed:
    """What is left of each variable's cost once the rows, at their prices, have paid for their part."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.constant: Number = Fraction(0)
        pairs = zip(system.prices, system.churn, strict=True)
        self.costs: list[Number] = [price + churn for price, churn in pairs]
        self.down_costs: list[Number] = [2 * churn for churn in system.churn]
        self._sums: list[Number] = [Fraction(0)] * len(system.sums)

    def add_row(self, row: Row, price: Fraction) -> None:
        right = row.at_least if price > 0 else row.at_most
        assert right is not None
        problem = self._system.problem
        if row.kind in {Kind.SHRINK, Kind.GROWTH}:
            for number, offer in enumerate(problem.offers):
                paid = price * offer.gpus_per_instance
                self.down_costs[number] -= paid
                if row.kind is Kind.GROWTH:  # of x - current + down
                    self.costs[number] -= paid
                    right += offer.gpus_per_instance * problem.current[number]
        else:
            for number, factor in row.offer_terms:
                self.costs[number] -= price * factor
            for entry, factor in row.sum_terms:
                self._sums[entry] += price * factor
        self.constant += price * right

    def add_sum(self, number: int, dual: Fraction) -> None:
        """Pass what rows paid a sum on to its terms; the part above its cut is the cut's to pay."""
        shared, paid = self._system.sums[number], self._sums[number]
        worth = paid
        if shared.most is not None:
            worth = max(Fraction(0), dual)
            self.constant += min(Fraction(0), (worth - paid) * shared.most)
        for offer, factor in shared.terms if worth else ():
            self.costs[offer] -= worth * factor


def _admissible(system: System, duals: Sequence[float]) -> list[Fraction]:
    """The duals with the signs that their rows allow, and never above the price of what is missing."""
    found: list[Fraction] = []
    pockets: list[Fraction] = [Fraction(0)] * len(system.pockets)
    for row, dual in zip(system.rows, duals, strict=True):
        value = Fraction(round(dual * _STEPS), _STEPS)
        if value > 0:
            value = Fraction(0) if row.at_least is None else value
            value = min(value, row.price) if row.soft else value
        elif row.at_most is None:
            value = Fraction(0)
        if row.pocket is not None:
            pockets[row.pocket] += value
        found.append(value)
    for number, row in enumerate(system.rows):
        if row.pocket is not None and pockets[row.pocket] > system.pockets[row.pocket]:
            found[number] *= system.pockets[row.pocket] / pockets[row.pocket]
    return found


def _least(system: System, number: int, cost: Number, down_cost: Number) -> Number:
    """The least of cost x + down cost max(0, current - x) within the bounds of x."""
    low, high = system.lowest[number], system.highest[number]
    current = system.problem.current[number]
    points = {low, high, min(max(current, low), high)}
    if down_cost >= 0:
        return min(cost * x + down_cost * max(0, current - x) for x in points)
    # more may be booked as given back than is: take the most
    return min(cost * x for x in points) + down_cost * max(0, current - low)
