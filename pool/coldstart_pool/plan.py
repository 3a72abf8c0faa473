"""From three tables to a plan: read, join, solve, make whole, say what is missing and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from coldstart_cli.errors import DataError, UsageError
from coldstart_pool.demand import Target, load_demand
from coldstart_pool.explain import binding_limits
from coldstart_pool.findings import Finding, Severity, TableReport
from coldstart_pool.integers import whole_plan
from coldstart_pool.model import SolverError, relaxation
from coldstart_pool.offers import Offer
from coldstart_pool.prices import load_offers
from coldstart_pool.problem import Need, Problem
from coldstart_pool.supply import Availability, availability, load_supply


@dataclass(frozen=True)
class Policy:
    """What the operator decides; shares and levels are exact."""

    service_level: Fraction = Fraction(99, 100)
    lead_time_seconds: Fraction | None = None
    peak_utilisation: Fraction = Fraction(9, 10)
    largest_share: Fraction = Fraction(1)
    accept_suspicious: bool = False
    skip_invalid: bool = False


@dataclass(frozen=True)
class PlannedOffer:
    """An offer that the plan uses."""

    offer: Offer
    instances: int
    obtainable_instances: int


@dataclass(frozen=True)
class PlannedClass:
    """What became of the demand for one GPU; `limits` say what stands in the way of the missing ones."""

    need: Need
    planned_gpus: int
    missing_gpus: int
    limits: tuple[str, ...]
    scale_ups: int | None


@dataclass(frozen=True)
class Plan:
    """The answer: whole machines, their cost, and the proof of how far from the least cost it can be."""

    policy: Policy
    inputs: tuple[TableReport, ...]
    offers: tuple[PlannedOffer, ...]
    classes: tuple[PlannedClass, ...]
    cost_per_hour: Fraction
    lower_bound_per_hour: float
    offers_read: int
    unobserved_offers: int
    unmatched_supply: tuple[int, ...]
    """Lines of the supply table that fit no price row."""

    @property
    def feasible(self) -> bool:
        return not any(entry.missing_gpus for entry in self.classes)

    @property
    def gap(self) -> float:
        cost = float(self.cost_per_hour)
        return (cost - self.lower_bound_per_hour) / self.lower_bound_per_hour if cost else 0.0

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for report in self.inputs for finding in report.findings)


def policy_from(
    *,
    service_level: float,
    lead_time_seconds: float | None,
    peak_utilisation: float,
    largest_share: float,
    accept_suspicious: bool = False,
    skip_invalid: bool = False,
) -> Policy:
    """Exact policy from what was typed; refuse what is outside its range by option."""
    return Policy(
        _share("--service-level", service_level),
        None if lead_time_seconds is None else _seconds("--lead-time", lead_time_seconds),
        _share("--peak-utilisation", peak_utilisation),
        _share("--largest-share", largest_share),
        accept_suspicious,
        skip_invalid,
    )


def make_plan(prices: Path, supply: Path, demand: Path, policy: Policy) -> Plan:
    """Read the tables and plan; a shortage is a plan too, with what is missing and why."""
    offers, price_report = load_offers(prices, accept_suspicious=policy.accept_suspicious)
    observations, supply_report = load_supply(supply)
    targets, demand_report = load_demand(
        demand, service_level=policy.service_level, lead_time_seconds=policy.lead_time_seconds
    )
    reports = (price_report, supply_report, demand_report)
    _refuse_invalid(reports, policy)
    return plan_offers(offers, availability(offers, observations), targets, policy, reports)


def plan_offers(
    offers: Sequence[Offer],
    available: Availability,
    targets: Sequence[Target],
    policy: Policy,
    reports: tuple[TableReport, ...] = (),
) -> Plan:
    """Plan from loaded values."""
    problem = _problem(available, targets, policy)
    relaxed = relaxation(problem)
    counts = whole_plan(problem, relaxed)
    if broken := problem.violations(counts):
        raise SolverError(f"the plan breaks its own constraints: {broken[0]}")
    missing = problem.missing(counts)
    if any(missing.values()):
        # the bound must speak of what is really planned
        covered = {need.gpu: need.required_gpus - missing[need.gpu] for need in problem.needs}
        relaxed = relaxation(problem, covered)
    cost = problem.cost(counts)
    planned = problem.gpus(counts)
    explained = binding_limits(problem, counts, offers, available)
    scale_ups = {target.gpu: target.scale_ups for target in targets}
    obtainable = dict(zip((offer.key for offer in available.offers), available.obtainable, strict=True))
    return Plan(
        policy,
        reports,
        tuple(
            PlannedOffer(offer, count, obtainable[offer.key])
            for offer, count in zip(problem.offers, counts, strict=True)
            if count
        ),
        tuple(
            PlannedClass(
                need, planned[need.gpu], missing[need.gpu], explained.get(need.gpu, ()), scale_ups[need.gpu]
            )
            for need in problem.needs
        ),
        cost,
        min(relaxed.cost, float(cost)),
        len(offers),
        len(available.unobserved),
        available.unmatched_lines,
    )


# a pool a thousand times its peak is a slip of the finger, and less overflows the solver's integers
_SMALLEST_SHARE = 0.001


def _share(option: str, value: float) -> Fraction:
    if not (math.isfinite(value) and _SMALLEST_SHARE <= value <= 1):
        raise UsageError(f"{option} must be at least {_SMALLEST_SHARE} and at most 1: {value}")
    return Fraction(str(value))


def _seconds(option: str, value: float) -> Fraction:
    if not (math.isfinite(value) and 0 < value <= 10**9):
        raise UsageError(f"{option} must be a number of seconds above 0: {value}")
    return Fraction(str(value))


def _refuse_invalid(reports: Sequence[TableReport], policy: Policy) -> None:
    invalid = [finding for report in reports for finding in report.of_severity(Severity.INVALID)]
    if invalid and not policy.skip_invalid:
        shown = "; ".join(finding.sentence() for finding in invalid[:10])
        more = f"; and {len(invalid) - 10} more" if len(invalid) > 10 else ""
        raise DataError(
            shown + more, hint="correct these lines, or pass `--skip-invalid` to plan without them"
        )


def _problem(available: Availability, targets: Sequence[Target], policy: Policy) -> Problem:
    """Only offers that some class wants and of which at least one instance was obtainable."""
    wanted = {target.gpu for target in targets}
    kept = [
        number
        for number, offer in enumerate(available.offers)
        if offer.gpu in wanted and available.obtainable[number] > 0
    ]
    renumbered = {number: new for new, number in enumerate(kept)}
    limits = []
    for limit in available.limits:
        pairs = [
            (renumbered[number], weight)
            for number, weight in zip(limit.members, limit.weights, strict=True)
            if number in renumbered
        ]
        if pairs:
            members, weights = zip(*pairs, strict=True)
            limits.append(replace(limit, members=members, weights=weights))
    needs = tuple(
        Need(target.gpu, target.target_gpus, math.ceil(target.target_gpus / policy.peak_utilisation))
        for target in targets
    )
    offers = tuple(available.offers[number] for number in kept)
    return Problem(offers, tuple(limits), needs, policy.largest_share)
