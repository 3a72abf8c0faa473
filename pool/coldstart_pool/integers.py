"""From fractions of machines to whole ones: round up, prune the dearest first, branch if that falls short."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from coldstart_pool.model import Solution, whole_machines
from coldstart_pool.problem import Counts, Problem

_ROUNDING_SLACK = 1e-7
_GOOD_GAP = 1e-9


def whole_plan(problem: Problem, relaxed: Solution) -> Counts:
    """The best whole plan found, every constraint checked exactly; the empty plan is the last resort."""
    candidates = [(0,) * len(problem.offers), round_up(problem, relaxed.instances)]
    best = _best(problem, candidates)
    short = sum(problem.missing(best).values())
    cost = float(problem.cost(best))
    close = cost <= relaxed.cost * (1 + _GOOD_GAP) + _GOOD_GAP
    if short > relaxed.shortfall + _ROUNDING_SLACK or not close:
        branched = whole_machines(problem)
        if branched is not None:
            counts = [round(value) for value in branched.instances]
            best = _best(problem, [best, prune(problem, counts)])
    return settle_ties(problem, best)


def round_up(problem: Problem, instances: Sequence[float]) -> Counts:
    """Round up, give back what limits do not allow, then drop what coverage does not need."""
    counts = [max(0, math.ceil(value - _ROUNDING_SLACK)) for value in instances]
    dearest_first = _dearest_first(problem)
    for limit in problem.limits:
        excess = problem.taken(limit, counts) - limit.count
        weights = dict(zip(limit.members, limit.weights, strict=True))
        for number in dearest_first if excess > 0 else ():
            if number in weights and excess > 0:
                fewer = min(counts[number], -(-excess // weights[number]))
                counts[number] -= fewer
                excess -= fewer * weights[number]
    return prune(problem, counts)


def prune(problem: Problem, counts: Sequence[int]) -> Counts:
    """Drop instances, the dearest GPU first, as long as nothing that is covered becomes short."""
    kept = list(counts)
    spare = {
        need.gpu: planned - need.required_gpus
        for need, planned in zip(problem.needs, problem.gpus(kept).values(), strict=True)
    }
    shares_bind = problem.largest_share < 1
    for number in _dearest_first(problem):
        offer = problem.offers[number]
        fewer = min(kept[number], max(0, spare[offer.gpu]) // offer.gpus_per_instance)
        while fewer:
            step = 1 if shares_bind else fewer
            broken_before = len(problem.share_violations(kept)) if shares_bind else 0
            kept[number] -= step
            if shares_bind and len(problem.share_violations(kept)) > broken_before:
                kept[number] += step
                break
            spare[offer.gpu] -= step * offer.gpus_per_instance
            fewer -= step
    return tuple(kept)


def settle_ties(problem: Problem, counts: Counts) -> Counts:
    """Among equally priced machines of one size the earlier offer wins, so that row order decides nothing."""
    settled = list(counts)
    groups: dict[tuple[str, int, Fraction], list[int]] = {}
    for number, offer in enumerate(problem.offers):
        groups.setdefault((offer.gpu, offer.gpus_per_instance, offer.price), []).append(number)
    for members in groups.values():
        for position, late in reversed(list(enumerate(members))):
            for early in members[:position] if settled[late] else ():
                _move(problem, settled, late, early)
    return tuple(settled)


def _move(problem: Problem, counts: list[int], source: int, destination: int) -> None:
    """Shift as many instances as the limits allow; both cost the same and cover the same."""
    same_provider = problem.offers[source].provider == problem.offers[destination].provider
    room = counts[source] if same_provider or problem.largest_share >= 1 else 0
    for limit, weight in problem.limits_of[destination] if room else ():
        if source not in limit.members:
            room = min(room, (limit.count - problem.taken(limit, counts)) // weight)
    counts[source] -= room
    counts[destination] += room


def _best(problem: Problem, candidates: Sequence[Counts]) -> Counts:
    sound = [counts for counts in candidates if not problem.violations(counts)]
    return min(sound, key=lambda counts: (sum(problem.missing(counts).values()), problem.cost(counts)))


def _dearest_first(problem: Problem) -> list[int]:
    numbers = range(len(problem.offers))
    return sorted(numbers, key=lambda number: (-problem.offers[number].price_per_gpu, number))
