"""The linear programme (GLOP) and its integer form (SCIP): cover every need at least cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coldstart_cli.errors import ColdstartError, UnavailableError
from coldstart_pool.problem import Problem

_SHORTFALL_TOLERANCE = 1e-6
_SCIP_NODES = 20_000
_SCIP_GAP = 1e-4
_SCIP_SECONDS = 60


class SolverError(ColdstartError):
    """The solver gave no answer that can be trusted."""


@dataclass(frozen=True)
class Solution:
    """Instances of each offer, the GPUs still missing, and the cost, as the solver's floats."""

    instances: tuple[float, ...]
    shortfall: float
    cost: float


def relaxation(problem: Problem, required: Mapping[str, int] | None = None) -> Solution:
    """Least shortfall, then least cost, with fractions of machines: no plan of whole ones can be cheaper.

    `required` replaces the needs, by class.
    """
    model = _Model(problem, "GLOP", required)
    shortfall = model.minimise_shortfall()
    model.cap_shortfall(shortfall)
    return model.minimise_cost(shortfall)


def whole_machines(problem: Problem) -> Solution | None:
    """The same in whole machines by branch and bound; None when that was not finished in its node budget.

    The budget is in nodes and not in seconds, so that the same tables give the same plan on any host.
    """
    model = _Model(problem, "SCIP", None)
    shortfall = model.minimise_shortfall()
    if not model.finished:
        return None
    model.cap_shortfall(round(shortfall))
    solution = model.minimise_cost(shortfall)
    return solution if model.finished else None


class _Model:
    def __init__(self, problem: Problem, solver: str, required: Mapping[str, int] | None) -> None:
        _check_numbers(problem)
        self._problem = problem
        self._lp = _solver_module()
        self._solver: Any = self._lp.Solver.CreateSolver(solver)
        if self._solver is None:
            raise UnavailableError(
                f"OR-Tools was built without {solver}", hint="pip install 'coldstart[pool]'"
            )
        self.finished = True
        integers = solver == "SCIP"
        if integers:
            self._solver.SetSolverSpecificParametersAsString(
                f"limits/nodes = {_SCIP_NODES}\nlimits/gap = {_SCIP_GAP}\n"
            )
            self._solver.SetTimeLimit(_SCIP_SECONDS * 1000)  # a guard against hanging only
        infinity = self._solver.infinity()
        self._x = [
            self._solver.Var(0, infinity, integers, f"x{number}") for number in range(len(problem.offers))
        ]
        self._z: list[Any] = []
        for need in problem.needs:
            needed = need.required_gpus if required is None else required[need.gpu]
            shortfall = self._solver.NumVar(0, needed, f"z{len(self._z)}")
            self._z.append(shortfall)
            covered = self._solver.Constraint(needed, infinity)
            covered.SetCoefficient(shortfall, 1)
            ceiling = self._solver.Constraint(0, problem.ceilings[need.gpu])
            for number in problem.members[need.gpu]:
                gpus = problem.offers[number].gpus_per_instance
                covered.SetCoefficient(self._x[number], gpus)
                ceiling.SetCoefficient(self._x[number], gpus)
        for limit in problem.limits:
            row = self._solver.Constraint(0, limit.count)
            for number, weight in zip(limit.members, limit.weights, strict=True):
                row.SetCoefficient(self._x[number], weight)
        if problem.largest_share < 1:
            self._add_shares(infinity)

    def _add_shares(self, infinity: float) -> None:
        total = self._solver.NumVar(0, infinity, "total")
        sum_row = self._solver.Constraint(0, 0)
        sum_row.SetCoefficient(total, -1)
        rows: dict[str, Any] = {}
        for variable, offer in zip(self._x, self._problem.offers, strict=True):
            sum_row.SetCoefficient(variable, offer.gpus_per_instance)
            if offer.provider not in rows:
                rows[offer.provider] = self._solver.Constraint(-infinity, 0)
                rows[offer.provider].SetCoefficient(total, -float(self._problem.largest_share))
            rows[offer.provider].SetCoefficient(variable, offer.gpus_per_instance)

    def minimise_shortfall(self) -> float:
        objective = self._solver.Objective()
        for shortfall in self._z:
            objective.SetCoefficient(shortfall, 1)
        objective.SetMinimization()
        self._solve()
        return float(objective.Value())

    def cap_shortfall(self, most: float) -> None:
        row = self._solver.Constraint(0, max(0.0, most) + _SHORTFALL_TOLERANCE)
        for shortfall in self._z:
            row.SetCoefficient(shortfall, 1)

    def minimise_cost(self, shortfall: float) -> Solution:
        objective = self._solver.Objective()
        objective.Clear()
        for variable, offer in zip(self._x, self._problem.offers, strict=True):
            objective.SetCoefficient(variable, float(offer.price))
        objective.SetMinimization()
        self._solve()
        instances = tuple(float(variable.solution_value()) for variable in self._x)
        return Solution(instances, shortfall, float(objective.Value()))

    def _solve(self) -> None:
        status = self._solver.Solve()
        # a node budget ends at the same node everywhere; an answer cut off by the clock is not repeatable
        self.finished = self._solver.wall_time() < _SCIP_SECONDS * 1000
        if status not in {self._lp.Solver.OPTIMAL, self._lp.Solver.FEASIBLE}:
            # nothing bought and everything short is always allowed, so this is the solver's failure
            raise SolverError(f"the solver gave up with status {status}; no plan was made")


def _check_numbers(problem: Problem) -> None:
    """A NaN bound makes GLOP of OR-Tools 9.15 answer OPTIMAL and buy nothing: keep such numbers out."""
    numbers: Sequence[float] = [
        *(float(offer.price) for offer in problem.offers),
        *(float(limit.count) for limit in problem.limits),
        *(float(need.required_gpus) for need in problem.needs),
    ]
    if not all(math.isfinite(number) and 0 <= number < 1e15 for number in numbers):
        raise SolverError("a price, count or need is out of range")
    if any(offer.price <= 0 for offer in problem.offers):
        raise SolverError("an offer without a price reached the model")


def _solver_module() -> Any:
    try:
        # 160 ms and an optional dependency
        from ortools.linear_solver import pywraplp
    except ImportError as error:
        raise UnavailableError("OR-Tools is not installed", hint="pip install 'coldstart[pool]'") from error
    return pywraplp
