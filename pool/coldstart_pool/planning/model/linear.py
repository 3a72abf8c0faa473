"""The rows in GLOP (fractions of machines), re-solved in place for other right-hand sides and prices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from coldstart_cli.errors import ColdstartError, UnavailableError
from coldstart_pool.planning.model.system import Kind, Number, Row, System

_TIE_TOLERANCE = 1e-6
_HANGING_SECONDS = 60
# prices are positive, so an empty plan is dual feasible; without presolve a re-solve keeps the basis
_GLOP_SETTINGS = "use_dual_simplex: true use_preprocessing: false"
# GLOP 9.15's dual simplex gives up, or calls infeasible what is not, once in some thousand programmes
_GLOP_CAREFUL_SETTINGS = (
    "use_dual_simplex: false use_preprocessing: true",
    "use_dual_simplex: false use_preprocessing: false use_scaling: false",
    "use_dual_simplex: true use_preprocessing: true",
)


class SolverError(ColdstartError):
    """The solver gave no answer that can be trusted."""


class ContradictionError(SolverError):
    """No numbers of machines at all keep every hard row."""


@dataclass(frozen=True)
class Relaxed:
    """An optimum in fractions of machines, as the solver's floats."""

    instances: tuple[float, ...]
    objective: float
    """Hourly price above the commitments, movement, and the price of what is missing."""
    duals: tuple[float, ...]
    """For each row, what one unit more on its right-hand side would add to the objective."""
    sum_duals: tuple[float, ...] = ()
    """The same for the rows that define the sums."""
    gaps: float = 0.0
    """Of the objective, the price of what needs lack: a means of the planner's, no money."""


class LinearModel:
    """One programme; the solver keeps its basis: a re-solve after a small change takes milliseconds."""

    def __init__(
        self, system: System, solver: str = "GLOP", bounds: tuple[Sequence[int], Sequence[int]] | None = None
    ) -> None:
        """`bounds` narrow those of the offers; any solver of OR-Tools but GLOP plans whole machines."""
        self.system = system
        self._lp = solver_module()
        self._solver: Any = self._lp.Solver.CreateSolver(solver)
        if self._solver is None:
            raise UnavailableError(
                f"OR-Tools was built without {solver}", hint="pip install 'coldstart[pool]'"
            )
        self._integers = solver != "GLOP"
        if not self._integers:
            self._solver.SetSolverSpecificParametersAsString(_GLOP_SETTINGS)
        self._infinity = self._solver.infinity()
        self._objective = self._solver.Objective()
        self._objective.SetMinimization()
        self._cost: list[tuple[Any, float]] = []
        self._constant = 0.0
        self._rows: dict[int, Any] = {}
        self.finished = True
        lowest, highest = bounds or (system.lowest, system.highest)
        # a limit that is a row keeps its price to itself when the bound of the variable does not repeat it
        self._limited = set() if self._integers else system.limited
        self.x = [
            self._offer(number, low, high)
            for number, (low, high) in enumerate(zip(lowest, highest, strict=True))
        ]
        self._down = self._downs()
        self._sum_rows: list[Any] = []
        self._sums = [self._sum(number) for number in range(len(system.sums))]
        self._pockets = [self._priced(price) for price in system.pockets]
        self.shortfalls: dict[int, Any] = {}
        for number, row in enumerate(system.rows):
            self._row(number, row)
        self._objective.SetOffset(self._constant)

    # --- building ---

    def _offer(self, number: int, low: int, high: int) -> Any:
        most = self._infinity if number in self._limited else _bounded(high)
        variable = self._solver.Var(_bounded(low), most, self._integers, "")
        price, churn = float(self.system.prices[number]), float(self.system.churn[number])
        current = self.system.problem.current[number]
        # up = x - current + down, so movement is x - current + 2 down
        self._charge(variable, price + churn)
        self._constant -= price * self.system.problem.floors[number] + churn * current
        return variable

    def _downs(self) -> dict[int, Any]:
        found = {}
        problem = self.system.problem
        for number, current in enumerate(problem.current if problem.held else ()):
            if current > self.system.lowest[number]:
                down = self._solver.NumVar(0, _bounded(current - self.system.lowest[number]), "")
                self._charge(down, 2 * float(self.system.churn[number]))
                row = self._solver.Constraint(_bounded(current), self._infinity)
                row.SetCoefficient(self.x[number], 1)
                row.SetCoefficient(down, 1)
                found[number] = down
        return found

    def _sum(self, number: int) -> Any:
        entry = self.system.sums[number]
        most = self._infinity if entry.most is None else _bounded(entry.most)
        variable = self._solver.NumVar(0, most, "")
        row = self._solver.Constraint(0, 0 if entry.most is None else self._infinity)
        row.SetCoefficient(variable, -1)
        for offer, factor in entry.terms:
            row.SetCoefficient(self.x[offer], float(factor))
        self._sum_rows.append(row)
        return variable

    def _priced(self, price: Fraction) -> Any:
        variable = self._solver.NumVar(0, self._infinity, "")
        self._charge(variable, float(price))
        return variable

    def _row(self, number: int, row: Row) -> None:
        low = -self._infinity if row.at_least is None else _bounded(row.at_least)
        high = self._infinity if row.at_most is None else _bounded(row.at_most)
        if row.kind in {Kind.SHRINK, Kind.GROWTH}:
            self._rows[number] = self._movement(row, high)
            return
        constraint = self._solver.Constraint(low, high)
        self._rows[number] = constraint
        for offer, factor in row.offer_terms:
            constraint.SetCoefficient(self.x[offer], float(factor))
        for entry, factor in row.sum_terms:
            constraint.SetCoefficient(self._sums[entry], float(factor))
        if row.pocket is not None:
            constraint.SetCoefficient(self._pockets[row.pocket], 1)
        elif row.soft:
            self.shortfalls[number] = self._priced(row.price)
            constraint.SetCoefficient(self.shortfalls[number], 1)

    def _movement(self, row: Row, high: float) -> Any:
        problem = self.system.problem
        gpus = [offer.gpus_per_instance for offer in problem.offers]
        if row.kind is Kind.GROWTH:  # of x - current + down
            high += sum(gpus[number] * count for number, count in enumerate(problem.current))
        constraint = self._solver.Constraint(-self._infinity, high)
        for number, down in self._down.items():
            constraint.SetCoefficient(down, gpus[number])
        if row.kind is Kind.GROWTH:
            for number, variable in enumerate(self.x):
                constraint.SetCoefficient(variable, gpus[number])
        return constraint

    def _charge(self, variable: Any, price: float) -> None:
        self._objective.SetCoefficient(variable, price)
        self._cost.append((variable, price))

    # --- solving ---

    def solve(self) -> Relaxed:
        """The least objective; raises where the solver cannot be believed."""
        self._run()
        value = float(self._objective.Value())
        instances = tuple(variable.solution_value() for variable in self.x)
        duals = tuple(self._rows[number].dual_value() for number in range(len(self._rows)))
        prices = ((gap, float(self.system.rows[number].price)) for number, gap in self.shortfalls.items())
        gaps = sum(gap.solution_value() * price for gap, price in prices)
        return Relaxed(instances, value, duals, tuple(row.dual_value() for row in self._sum_rows), gaps)

    def branch(self, settings: str, hint: Sequence[int] | None) -> Relaxed:
        """The least objective in whole machines that the settings' work allows; `finished`: proven."""
        self._solver.SetSolverSpecificParametersAsString(settings)
        self._solver.SetTimeLimit(_HANGING_SECONDS * 1000)  # a guard against hanging only
        if hint is not None:
            self._solver.SetHint(self.x, list(hint))
        status = self._solver.Solve()
        self.finished = status == self._lp.Solver.OPTIMAL
        if status not in {self._lp.Solver.OPTIMAL, self._lp.Solver.FEASIBLE}:
            raise SolverError(f"the exact step gave up with status {status}")
        if self._solver.wall_time() >= _HANGING_SECONDS * 1000:
            # an answer cut off by the clock is not repeatable
            raise SolverError("the exact step was cut off by the clock")
        instances = tuple(variable.solution_value() for variable in self.x)
        return Relaxed(instances, float(self._objective.Value()), ())

    def bind(self, number: int, low: int, high: int) -> None:
        """Narrow the bounds of one offer for the solves that follow."""
        self.x[number].SetBounds(_bounded(low), _bounded(high))

    def settle_ties(self, best: Relaxed) -> Relaxed:
        """Among optima the one nearest to the current pool, then the one of earlier offers."""
        offers = self.system.problem.offers
        added = [self._at_most(self._cost, best.objective - self._constant)]
        moves = [(variable, offers[number].gpus_per_instance) for number, variable in enumerate(self.x)]
        moves += [(down, 2 * offers[number].gpus_per_instance) for number, down in self._down.items()]
        if self.system.problem.held:
            added.append(self._at_most(moves, self._minimised(moves)))
        self._minimised(
            [(x, offers[n].gpus_per_instance * (1 + n / len(self.x))) for n, x in enumerate(self.x)]
        )
        settled = replace(best, instances=tuple(variable.solution_value() for variable in self.x))
        for row in added:  # rows cannot be taken out again, but they need not say anything
            row.SetBounds(-self._infinity, self._infinity)
        self._objective.Clear()
        for variable, price in self._cost:
            self._objective.SetCoefficient(variable, price)
        self._objective.SetOffset(self._constant)
        return settled

    def _minimised(self, terms: Sequence[tuple[Any, float]]) -> float:
        self._objective.Clear()
        for variable, factor in terms:
            self._objective.SetCoefficient(variable, factor)
        self._run()
        return float(self._objective.Value())

    def _at_most(self, terms: Sequence[tuple[Any, float]], value: float) -> Any:
        row = self._solver.Constraint(-self._infinity, value + _TIE_TOLERANCE * max(1.0, abs(value)))
        for variable, factor in terms:
            row.SetCoefficient(variable, factor)
        return row

    def without(self, numbers: Iterable[int]) -> Relaxed:
        """Solved again as if these rows were not there; they are put back afterwards."""
        rows = [self._rows[number] for number in numbers]
        bounds = [(row.lb(), row.ub()) for row in rows]
        for row in rows:
            row.SetBounds(-self._infinity, self._infinity)
        try:
            return self.solve()
        finally:
            for row, (low, high) in zip(rows, bounds, strict=True):
                row.SetBounds(low, high)

    def with_bounds(self, changed: Mapping[int, Number]) -> Relaxed:
        """Solved again with other right-hand sides of some rows, which are put back afterwards."""
        before = [
            (self._rows[number], self._rows[number].lb(), self._rows[number].ub()) for number in changed
        ]
        for number, value in changed.items():
            row, constraint = self.system.rows[number], self._rows[number]
            if row.at_least is not None:
                constraint.SetLb(_bounded(value))
            else:
                constraint.SetUb(constraint.ub() + float(value - (row.at_most or 0)))
        try:
            return self.solve()
        finally:
            for constraint, low, high in before:
                constraint.SetLb(low)
                constraint.SetUb(high)

    def with_price(self, number: int, price: float) -> Relaxed:
        """Solved again with another price of one offer, which is put back afterwards."""
        variable = self.x[number]
        before = self._objective.GetCoefficient(variable)
        self._objective.SetCoefficient(variable, _bounded(price) + float(self.system.churn[number]))
        try:
            return self.solve()
        finally:
            self._objective.SetCoefficient(variable, before)

    def reduced_costs(self) -> tuple[float, ...]:
        """Of the last solve: what one instance more of each offer would add."""
        return tuple(variable.reduced_cost() for variable in self.x)

    def _run(self) -> None:
        status = self._solver.Solve()
        if status != self._lp.Solver.OPTIMAL:
            afresh = self._lp.MPSolverParameters()
            afresh.SetIntegerParam(afresh.INCREMENTALITY, afresh.INCREMENTALITY_OFF)
            for settings in _GLOP_CAREFUL_SETTINGS:
                self._solver.SetSolverSpecificParametersAsString(settings)
                status = self._solver.Solve(afresh)
                if status in {self._lp.Solver.OPTIMAL, self._lp.Solver.INFEASIBLE}:
                    break
            self._solver.SetSolverSpecificParametersAsString(_GLOP_SETTINGS)
        if status == self._lp.Solver.INFEASIBLE:
            raise ContradictionError(
                "limits, commitments and movement contradict each other: no plan keeps all of them"
            )
        if status != self._lp.Solver.OPTIMAL:
            raise SolverError(f"the solver gave up with status {status}; no plan was made")
        if not math.isfinite(self._objective.Value()):
            raise SolverError("the solver answered with a number that is none; no plan was made")


def _bounded(value: Number | float) -> float:
    """A number as the solver takes it; GLOP 9.15 answers OPTIMAL and buys nothing where one is NaN."""
    number = float(value)
    if not math.isfinite(number):
        raise SolverError("a number out of range reached the model")
    return number


def solver_module() -> Any:
    """OR-Tools' linear solvers, or the error that says how to install them."""
    try:
        # 160 ms and an optional dependency
        from ortools.linear_solver import pywraplp
    except ImportError as error:
        raise UnavailableError("OR-Tools is not installed", hint="pip install 'coldstart[pool]'") from error
    return pywraplp
