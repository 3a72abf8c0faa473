"""Every plan of a small problem, judged straight from what the constraints say, without rows or solver."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

from coldstart_pool.planning.problem import Counts, Group, Problem, weighted


def best_objective(problem: Problem, highest: Counts) -> Fraction | None:
    """The least objective of all whole plans that keep the hard limits; None when there is none."""
    return min((objective(problem, counts) for counts in all_plans(problem, highest)), default=None)


def all_plans(problem: Problem, highest: Counts) -> Iterator[Counts]:
    ranges = (range(low, high + 1) for low, high in zip(problem.floors, highest, strict=True))
    return (counts for counts in itertools.product(*ranges) if allowed(problem, counts))


def allowed(problem: Problem, counts: Counts) -> bool:
    will = problem.will
    gpus = [offer.gpus_per_instance for offer in problem.offers]
    for cap in problem.caps:
        if weighted(cap, counts) > max(cap.count, weighted(cap, problem.current)):
            return False
    for share in problem.shares:
        held = sum(gpus[n] * counts[n] for n in share.members)
        if held > share.most * sum(g * c for g, c in zip(gpus, counts, strict=True)):
            return False
    if problem.held:
        moves = [g * (c - b) for g, c, b in zip(gpus, counts, problem.current, strict=True)]
        if will.shrink_gpus is not None and -sum(m for m in moves if m < 0) > will.shrink_gpus:
            return False
        if will.grow_gpus is not None and sum(m for m in moves if m > 0) > will.grow_gpus:
            return False
    return will.budget is None or problem.cost(counts) <= will.budget


def objective(problem: Problem, counts: Counts) -> Fraction:
    will = problem.will
    gap = 1000 * -(-max(o.price_per_gpu for o in problem.offers).__ceil__() // 1)
    total = problem.cost(counts) - problem.cost(problem.floors)
    if problem.held:
        for offer, now, before in zip(problem.offers, counts, problem.current, strict=True):
            total += will.churn * offer.price * abs(now - before)
    for group in problem.groups:
        everything = {number: counts[number] for number, _ in group.usable}
        total += gap * short(problem, group, everything, group.idle_gpus)
        steady = {n: c for n, c in everything.items() if not problem.is_spot(n)}
        total += gap * short(problem, group, steady, will.floor * group.idle_gpus)
        if group.peak_gpus:
            raw = sum(problem.offers[n].gpus_per_instance * c for n, c in everything.items())
            total += Fraction(gap) / 2 * max(0, group.most_at_peak(will.utilisation).__ceil__() - raw)
        for domain in problem.domains if will.survive else ():
            if domain.members.isdisjoint(everything):
                continue
            left = {n: c for n, c in everything.items() if n not in domain.members}
            total += Fraction(gap) / 100 * short(problem, group, left, will.survive * group.idle_gpus)
    return total + scenario_cost(problem, counts)


def short(problem: Problem, group: Group, counts: dict[int, int], need: Fraction) -> Fraction:
    worth = dict(group.usable)
    there = sum((worth[number] * count for number, count in counts.items()), Fraction(0))
    if all(value.denominator == 1 for _, value in group.usable):
        need = Fraction(need.__ceil__())
    return max(Fraction(0), need - there)


def scenario_cost(problem: Problem, counts: Counts) -> Fraction:
    """Groups that share offers are one part of the pool: its gap is the largest of theirs."""
    if problem.will.floor >= 1 or not problem.scenarios:
        return Fraction(0)
    weights = sum((entry.weight for entry in problem.scenarios), Fraction(0))
    total = Fraction(0)
    for scenario in problem.scenarios:
        dead = frozenset() if scenario.dead_domain is None else problem.domains[scenario.dead_domain].members
        for part in parts(problem):
            widest = Fraction(0)
            for group in part:
                there, touched = Fraction(0), False
                for number, value in group.usable:
                    unit = problem.units[number]
                    left = Fraction(1) if unit is None else scenario.supply[unit]
                    touched = touched or number in dead or left < 1
                    there += value * counts[number] * (0 if number in dead else left)
                # a group of which a scenario takes nothing is as short as without it
                widest = max(widest, group.idle_gpus - there) if touched else widest
            total += problem.will.scenario_price * scenario.weight / weights * widest
    return total


def parts(problem: Problem) -> list[list[Group]]:
    found: list[list[Group]] = []
    for group in problem.groups:
        own = {number for number, _ in group.usable}
        touching = [part for part in found if any(own & {n for n, _ in other.usable} for other in part)]
        found = [part for part in found if part not in touching]
        found.append([*(other for part in touching for other in part), group])
    return found
