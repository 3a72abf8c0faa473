"""A problem solved: relaxation, whole machines, certified bound, and the last exact check."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from coldstart_pool.planning.model.bound import lower_bound
from coldstart_pool.planning.model.build import build
from coldstart_pool.planning.model.exact import Ledger
from coldstart_pool.planning.model.integral import Integral
from coldstart_pool.planning.model.linear import ContradictionError, LinearModel, Relaxed, SolverError
from coldstart_pool.planning.model.system import NEEDS, Kind, Number, Row, System
from coldstart_pool.planning.model.whole import Whole, whole_plan
from coldstart_pool.planning.problem import Counts, Problem

_TIES_SIZE = 4_000_000


@dataclass(frozen=True)
class Solved:
    """Whole machines that keep every row, what is missing, and how far from the least cost they can be."""

    system: System
    counts: Counts
    missing: tuple[Number, ...]
    """For each row what it lacks to its lower bound, exact."""
    running_cost: Fraction
    """US dollars an hour above the commitments, the price of movement included."""
    scenario_cost: Fraction
    """US dollars an hour reckoned for what scenarios leave missing."""
    bound: Fraction
    """No plan with these gaps has a lower sum of both costs."""
    proven: bool
    """The exact step finished: there is no better plan of whole machines."""
    relaxed: Relaxed
    reduced_costs: tuple[float, ...]
    model: LinearModel
    """Ready for re-solves with one thing changed."""
    notes: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem:
        return self.system.problem

    @property
    def gap(self) -> Fraction:
        """Certified distance from the bound, as a share of it."""
        cost = self.running_cost + self.scenario_cost
        return max(Fraction(0), (cost - self.bound) / self.bound) if self.bound > 0 else Fraction(0)

    @property
    def short(self) -> bool:
        """Whether any need is not met; scenarios alone do not make a plan short."""
        return _short(self.system, self.missing)

    def missing_of(self, group: int) -> Number:
        """GPUs that a group lacks, by the row that lacks most (what a lost domain would leave is apart)."""
        rows = zip(self.system.rows, self.missing, strict=True)
        return max((gap for row, gap in rows if row.subject == group and row.kind in NEEDS), default=0)


def solve(problem: Problem, *, exact: bool = True) -> Solved:
    """The plan for a problem; a shortage is a plan too. Without the exact step it is found sooner."""
    integral, start, notes = prepare(problem)
    if start is None:
        # commitments alone pass a share: machines elsewhere may mend it, or nothing is added there
        try:
            return _solve(integral, None, notes, exact=exact)
        except ContradictionError:
            integral, start, notes = prepare(problem, lenient=True)
    return _solve(integral, start, notes, exact=exact)


def _solve(integral: Integral, start: Counts | None, notes: tuple[str, ...], *, exact: bool) -> Solved:
    system = integral.system
    model = LinearModel(system)
    relaxed = model.solve()
    reduced = model.reduced_costs()
    beyond = _out_of_reach(system)
    if any(beyond):
        # beside gaps that nothing can close the solver's tolerances would leave machines unused
        reachable = Integral(as_planned(system, beyond))
        whole, bound = _planned(reachable, LinearModel(reachable.system), start, exact=exact)
    else:
        whole, bound = _whole(integral, model, relaxed, reduced, start, exact=exact)
    if _short(system, _missing(integral, whole.counts)):
        whole, bound = _least_for_these_gaps(integral, whole, exact=exact)
    ledger = verified(integral, whole.counts)
    missing = _missing(integral, whole.counts)
    scenarios = ledger.missing_cost() - sum(
        (row.price * gap for row, gap in zip(system.rows, missing, strict=True) if row.soft), Fraction(0)
    )
    cost = ledger.running_cost() + scenarios
    return Solved(
        system, whole.counts, missing, ledger.running_cost(), scenarios, min(bound, cost),
        whole.proven, relaxed, reduced, model, notes,
    )  # fmt: skip


def _least_for_these_gaps(integral: Integral, whole: Whole, *, exact: bool) -> tuple[Whole, Fraction]:
    """The cheapest plan that lacks no more, and the bound that speaks of it.

    Beside the price of many gaps an hourly price is less than the solvers' tolerances.
    """
    covered = Integral(as_planned(integral.system, _missing(integral, whole.counts)))
    model = LinearModel(covered.system)
    if not exact:
        return whole, lower_bound(covered.system, model.solve())
    again, bound = _planned(covered, model, whole.counts, exact=True)
    before = Ledger(covered, whole.counts).objective()
    if again.objective < before:
        return again, bound
    return replace(whole, proven=again.proven and again.objective == before), bound


def _planned(
    integral: Integral, model: LinearModel, start: Counts | None, *, exact: bool
) -> tuple[Whole, Fraction]:
    relaxed = model.solve()
    return _whole(integral, model, relaxed, model.reduced_costs(), start, exact=exact)


def _whole(
    integral: Integral,
    model: LinearModel,
    relaxed: Relaxed,
    reduced: tuple[float, ...],
    start: Counts | None,
    *,
    exact: bool,
) -> tuple[Whole, Fraction]:
    """Whole machines from a relaxation, and the lower bound of its duals."""
    bound = lower_bound(integral.system, relaxed)
    settled = model.settle_ties(relaxed) if _ties_matter(integral.system) else relaxed
    return whole_plan(integral, settled, reduced, start, bound, exact=exact), bound


def _out_of_reach(system: System) -> tuple[Number, ...]:
    """For each need what is missing even with every machine that there is."""
    most = [sum(value * system.highest[offer] for offer, value in entry.terms) for entry in system.sums]

    def beyond(row: Row) -> Number:
        if not row.soft or row.at_least is None:
            return 0
        # what a lost domain takes away is part of the sum that it is taken from
        reach = sum(factor * most[entry] for entry, factor in row.sum_terms)
        reach += sum(value * system.highest[offer] for offer, value in row.offer_terms)
        return max(0, row.at_least - reach)

    return tuple(beyond(row) for row in system.rows)


def _ties_matter(system: System) -> bool:
    # where it would take seconds, ties are left to whole machines: the same tables still give the same plan
    return len(system.rows) * len(system.problem.offers) <= _TIES_SIZE


def _missing(integral: Integral, counts: Counts) -> tuple[Number, ...]:
    ledger = Ledger(integral, counts)
    return tuple(ledger.missing(number) for number in range(len(integral.system.rows)))


def _short(system: System, missing: tuple[Number, ...]) -> bool:
    return any(gap and row.soft for row, gap in zip(system.rows, missing, strict=True))


def prepare(problem: Problem, *, lenient: bool = False) -> tuple[Integral, Counts | None, tuple[str, ...]]:
    """The rows, a plan that keeps the hard ones if one was easy to find, notes on what was loosened."""
    integral = Integral(build(problem, lenient=lenient))
    start = _reduced_to_limits(integral)
    notes = []
    if lenient:
        if start is None:
            raise ContradictionError(
                "limits and commitments contradict each other: no plan keeps all of them"
            )
        notes.append(
            "commitments alone hold more than the largest share allows: nothing is added beside them there"
        )
    shrink = problem.will.shrink_gpus
    if problem.held and shrink is not None and start is not None:
        back = sum(
            offer.gpus_per_instance * max(0, before - after)
            for offer, before, after in zip(problem.offers, problem.current, start, strict=True)
        )
        if back > shrink:
            notes.append(
                f"{back} GPUs are given back at once, not {shrink}: budget, share or quota leave no choice"
            )
            loosened = replace(problem, will=replace(problem.will, shrink_gpus=back))
            integral = Integral(build(loosened, lenient=lenient))
    return integral, start, tuple(notes)


def verified(integral: Integral, counts: Counts) -> Ledger:
    """The exact account of a plan; raises when it breaks a row or a bound: such a plan is never shown."""
    ledger, system = Ledger(integral, counts), integral.system
    if outside := ledger.out_of_bounds():
        offer = system.problem.offers[outside[0]]
        raise SolverError(f"the plan breaks its own limits: {counts[outside[0]]} of {offer.instance_type}")
    if broken := ledger.broken():
        raise SolverError(f"the plan breaks its own constraints: {broken[0].kind} of {broken[0].label}")
    return ledger


def as_planned(system: System, missing: tuple[Number, ...]) -> System:
    """The same rows, asking of each need only what a plan with these gaps gives."""

    def eased(row: Row, gap: Number) -> Row:
        if not gap or not row.soft or row.at_least is None:
            return row
        return replace(row, at_least=row.at_least - gap)

    return replace(system, rows=tuple(eased(row, gap) for row, gap in zip(system.rows, missing, strict=True)))


def _reduced_to_limits(integral: Integral) -> Counts | None:
    """The current pool less the dearest machines of every limit it passes, however many that are."""
    system = integral.system
    ledger = Ledger(integral, system.problem.current)
    order = system.dearest_first
    while True:
        broken = [row for row in ledger.broken() if row.kind is not Kind.SHRINK]
        if not broken:
            return ledger.plan
        members = {offer for offer, factor in broken[0].offer_terms if factor > 0}
        removable = [n for n in order if n in members and ledger.counts[n] > system.lowest[n]]
        if not removable:
            return None
        ledger.apply(removable[0], -1)
