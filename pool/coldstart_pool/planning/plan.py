"""From tables to a plan: read, join, solve, make whole, say what is missing and why."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from coldstart_pool.inputs.loading import load_tables
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.pool_inputs import PoolInputs, TableFiles
from coldstart_pool.planning.answers.changes import Change, changes
from coldstart_pool.planning.answers.limits import limits_of
from coldstart_pool.planning.answers.prices import ShadowPrice, shadow_prices
from coldstart_pool.planning.answers.remedies import Remedy, remedies
from coldstart_pool.planning.assemble import Assembled, assemble
from coldstart_pool.planning.groups import Needed, needed_pool
from coldstart_pool.planning.model.solve import Solved, solve
from coldstart_pool.planning.model.system import NEEDS, Kind, Number
from coldstart_pool.planning.policy import Policy, refuse_unknown_speeds
from coldstart_pool.planning.wants import Wants


@dataclass(frozen=True)
class PlannedOffer:
    """An offer that the plan uses, or that the pool has now."""

    offer: Offer
    instances: int
    held: int
    committed: int
    obtainable_instances: int


@dataclass(frozen=True)
class PlannedGroup:
    """What became of the demand of one class or of several together; `limits` say what stands in the way."""

    needed: Needed
    wants: tuple[Wants, ...]
    required_gpus: Number
    """Idle GPUs with what the cap on utilisation adds."""
    planned_gpus: Number
    missing_gpus: Number
    survival: tuple[tuple[str, Number], ...]
    """GPUs that are left when a domain is lost, the worst first."""
    missing_survival_gpus: Number
    limits: tuple[str, ...]

    @property
    def single(self) -> bool:
        return len(self.needed.classes) == 1


@dataclass(frozen=True)
class Plan:
    """The answer: whole machines, their cost, and the proof of how far from the least cost it can be."""

    policy: Policy
    inputs: PoolInputs
    assembled: Assembled
    solved: Solved
    offers: tuple[PlannedOffer, ...]
    groups: tuple[PlannedGroup, ...]
    changes: tuple[Change, ...]
    shadow_prices: tuple[ShadowPrice, ...]
    remedies: tuple[Remedy, ...]

    @property
    def classes(self) -> tuple[PlannedGroup, ...]:
        return tuple(group for group in self.groups if group.single)

    @property
    def unions(self) -> tuple[PlannedGroup, ...]:
        return tuple(group for group in self.groups if not group.single)

    @property
    def feasible(self) -> bool:
        return not self.solved.short

    @cached_property
    def cost_per_hour(self) -> Fraction:
        """US dollars, commitments included."""
        return self.solved.problem.cost(self.solved.counts)

    @property
    def committed_per_hour(self) -> Fraction:
        return self.solved.problem.cost(self.solved.problem.floors)

    @property
    def extra_per_hour(self) -> Fraction:
        """What is reckoned above the hourly price: movement, and what scenarios leave missing."""
        solved = self.solved
        return solved.running_cost + self.committed_per_hour + solved.scenario_cost - self.cost_per_hour

    @property
    def lower_bound_per_hour(self) -> Fraction:
        """No plan for these GPUs has a lower hourly price, movement and scenarios included as in the plan."""
        return self.solved.bound + self.committed_per_hour - self.extra_per_hour

    @property
    def gap(self) -> Fraction:
        return self.solved.gap

    @property
    def unmatched_supply(self) -> tuple[int, ...]:
        return self.assembled.available.unmatched_lines


def make_plan(tables: TableFiles, policy: Policy) -> Plan:
    """Read the tables and plan; a shortage is a plan too, with what is missing and why."""
    inputs = load_tables(tables)
    refuse_unknown_speeds(policy.speeds, inputs.offers)
    return plan_inputs(inputs, policy)


def plan_inputs(inputs: PoolInputs, policy: Policy) -> Plan:
    """Plan from loaded tables."""
    assembled = assemble(inputs, needed_pool(inputs, policy), policy)
    solved = solve(assembled.problem)
    problem = solved.problem
    obtainable = dict(
        zip((offer.key for offer in assembled.available.offers), assembled.available.obtainable, strict=True)
    )
    held = problem.held or (0,) * len(problem.offers)
    rows = zip(problem.offers, solved.counts, held, problem.floors, strict=True)
    offers = tuple(
        PlannedOffer(offer, count, before, committed, obtainable.get(offer.key, 0))
        for offer, count, before, committed in rows
        if count or before
    )
    limits = limits_of(assembled, solved, inputs)
    groups = tuple(
        _group(number, assembled, solved, limits.get(number, ())) for number in range(len(problem.groups))
    )
    return Plan(
        policy,
        inputs,
        assembled,
        solved,
        offers,
        groups,
        changes(solved),
        shadow_prices(solved),
        remedies(inputs, assembled, solved, policy),
    )


def _group(number: int, assembled: Assembled, solved: Solved, limits: tuple[str, ...]) -> PlannedGroup:
    problem = solved.problem
    group = problem.groups[number]
    needed = assembled.pool.needed[number]
    wants = {entry.name: entry for entry in assembled.pool.wants}
    used = [(offer, value * solved.counts[offer]) for offer, value in group.usable if solved.counts[offer]]
    planned = sum((gpus for _, gpus in used), Fraction(0))
    left = []
    for domain in problem.domains:
        lost = sum((gpus for offer, gpus in used if offer in domain.members), Fraction(0))
        if lost:
            left.append((domain.label, planned - lost))
    missing_survival = max(
        (
            gap
            for row, gap in zip(solved.system.rows, solved.missing, strict=True)
            if row.kind is Kind.SURVIVAL and row.subject == number
        ),
        default=Fraction(0),
    )
    return PlannedGroup(
        needed,
        tuple(wants[name] for name in needed.classes),
        max(row.at_least or 0 for row in solved.system.rows if row.subject == number and row.kind in NEEDS),
        planned,
        solved.missing_of(number),
        tuple(sorted(left, key=lambda entry: (entry[1], entry[0]))),
        missing_survival,
        limits,
    )
