"""From fractions of machines to whole ones: round, mend, prune the dearest, a small exact step."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from coldstart_pool.planning.model.annealing import annealed
from coldstart_pool.planning.model.exact import Ledger
from coldstart_pool.planning.model.family import Family
from coldstart_pool.planning.model.integral import Integral
from coldstart_pool.planning.model.linear import ContradictionError, LinearModel, Relaxed, SolverError
from coldstart_pool.planning.problem import Counts

_ROUNDING_SLACK = 1e-7
# each start leads to another plan of whole machines, in milliseconds; which is best differs by market
_ROUNDED_UP_FROM = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
_GOOD_GAP = Fraction(1, 10**7)
# limits in work, never in seconds: the same tables give the same plan on any host
_SAME_PRICE = 10**6
_EXACT_OFFERS = 400
_EXACT_SIZE = 300_000
# so small that it takes no time
_EXACT_ANYWAY = 6_000
_EXCHANGE_TRIES = 2_000
_FAMILY = 32
_SCIP_NODES = 400
_SCIP_SETTINGS = f"limits/nodes = {_SCIP_NODES}\nlimits/gap = 1e-6\nparallel/maxnthreads = 1\n"


@dataclass(frozen=True)
class Whole:
    """A plan of whole machines that keeps every hard row, and whether a solver says that none is better."""

    counts: Counts
    objective: Fraction
    proven: bool


def whole_plan(
    integral: Integral,
    relaxed: Relaxed,
    reduced: Sequence[float],
    start: Counts | None,
    bound: Fraction,
    *,
    exact: bool = True,
) -> Whole:
    """The best whole plan found from the relaxation, never worse than `start`, which keeps all hard rows."""
    system = integral.system
    used = [number for number, value in enumerate(relaxed.instances) if value > _ROUNDING_SLACK]
    candidates = [rounded(relaxed.instances, share) for share in _ROUNDED_UP_FROM]
    if start is not None and system.problem.held:
        candidates.append(list(start))  # what is held, and as little beside it as will do
    found = [ledger for counts in candidates if (ledger := improved(integral, counts, used)) is not None]
    if start is not None and not found:
        found = [Ledger(integral, start)]
    best = min(found, key=Ledger.objective, default=None)
    proven = best is not None and _close(best.objective(), bound)
    size = len(system.rows) * len(system.problem.offers)
    small = size <= (_EXACT_SIZE if exact else _EXACT_ANYWAY)
    if not proven and best is not None:
        if exact and size > _EXACT_ANYWAY and not best.open_gaps():
            annealed(best, reduced, bound)
        exchanged(best, system.dearest_first, families_of(integral, reduced))
    if not proven and small:
        best, proven = _exact_step(integral, best, relaxed, reduced, bound)
    if best is None:
        raise ContradictionError("no plan of whole machines was found that keeps all limits")
    prefer_earlier(best)
    return Whole(best.plan, best.objective(), proven)


def improved(integral: Integral, counts: Sequence[int], candidates: Sequence[int]) -> Ledger | None:
    """Counts within their limits, gaps filled, the needless dropped; None where limits stay broken."""
    system = integral.system
    lowest, highest = system.lowest, system.highest
    ledger = Ledger(
        integral, [min(max(c, lo), hi) for c, lo, hi in zip(counts, lowest, highest, strict=True)]
    )
    order = system.dearest_first
    _mend(ledger, order)
    if ledger.broken():
        return None
    _fill(ledger, candidates)
    _prune(ledger, order)
    return ledger


def exchanged(ledger: Ledger, order: Sequence[int], families: Sequence[Family | None]) -> None:
    """One instance less here and one of its family there, while that saves anything."""
    system = ledger.system
    tries = _EXCHANGE_TRIES
    changed = True
    while changed and tries > 0:
        changed = False
        for number in order:
            family = families[number]
            if family is None or ledger.counts[number] <= system.lowest[number] or tries <= 0:
                continue
            removed = ledger.change(number, -1)
            if removed is None:
                continue
            ledger.apply(number, -1)
            tries -= 1
            saving = sorted(
                (added, other)
                for added, other in zip(family.added(ledger), family.offers, strict=True)
                if removed + added < 0
            )
            other = next((other for _, other in saving if ledger.allows(other, 1)), number)
            ledger.apply(other, 1)
            changed = changed or other != number


def families_of(integral: Integral, reduced: Sequence[float]) -> list[Family | None]:
    """For each offer those of the same GPU that are nearest to be used by the relaxation."""
    system = integral.system
    by_gpu: dict[str, list[int]] = {}
    for number in sorted(range(len(reduced)), key=lambda n: (reduced[n], n)):
        if system.highest[number] > system.lowest[number]:
            by_gpu.setdefault(system.problem.offers[number].gpu, []).append(number)
    families = {gpu: Family(integral, numbers[:_FAMILY]) for gpu, numbers in by_gpu.items()}
    return [families.get(offer.gpu) for offer in system.problem.offers]


def prefer_earlier(ledger: Ledger) -> None:
    """Between offers that cost the same and do the same, what is held stays, then the earlier one wins.

    Prices that differ by a millionth are the same: a difference of rounding must not flip the plan.
    """
    problem = ledger.system.problem
    alike: dict[tuple[str, int], list[int]] = {}
    for number, offer in enumerate(problem.offers):
        alike.setdefault((offer.gpu, offer.gpus_per_instance), []).append(number)
    order = {number: (-problem.current[number], number) for number in range(len(problem.offers))}
    for members in alike.values():
        members.sort(key=order.__getitem__)
        for position, late in reversed(list(enumerate(members))):
            for early in members[:position] if ledger.counts[late] else ():
                if same_price(problem.offers[early].price, problem.offers[late].price):
                    while _moves_freely(ledger, late, early):
                        pass


def same_price(one: Fraction, other: Fraction) -> bool:
    return abs(one - other) * _SAME_PRICE <= one


def _moves_freely(ledger: Ledger, late: int, early: int) -> bool:
    """One instance from the later to the earlier offer, where that costs no more than rounding."""
    if ledger.counts[late] <= ledger.system.problem.current[late]:
        return False
    removed = ledger.change(late, -1)
    if removed is None:
        return False
    ledger.apply(late, -1)
    added = ledger.change(early, 1)
    if added is not None and (removed + added) * _SAME_PRICE <= ledger.integral.price[late]:
        ledger.apply(early, 1)
        return True
    ledger.apply(late, 1)
    return False


def rounded(instances: Sequence[float], share: float) -> list[int]:
    """Up where the fraction is above a share, else down; small errors of the solver decide nothing."""
    return [max(0, math.ceil(value - share - _ROUNDING_SLACK)) for value in instances]


def _close(objective: Fraction, bound: Fraction) -> bool:
    return objective - bound <= _GOOD_GAP * max(Fraction(1), abs(bound))


def _mend(ledger: Ledger, order: Sequence[int]) -> None:
    """Give back the dearest of whatever row is too full, until none is."""
    for _ in range(sum(ledger.counts) + 1):
        broken = [row for row in ledger.broken() if row.at_most is not None]
        if not broken:
            return
        members = {offer for offer, factor in broken[0].offer_terms if factor > 0}
        for number in order:
            if number in members and ledger.counts[number] > ledger.system.lowest[number]:
                ledger.apply(number, -1)
                break
        else:
            return


def _fill(ledger: Ledger, candidates: Sequence[int]) -> None:
    """Add what closes gaps best for its price, one instance at a time.

    What an instance saves never grows while others are added: a stale figure is a bound.
    """
    offers = ledger.system.problem.offers

    def gain(number: int) -> Fraction | None:
        added = ledger.change(number, 1)
        return None if added is None or added >= 0 else Fraction(added, offers[number].gpus_per_instance)

    heap = [(each, number) for number in candidates if (each := gain(number)) is not None]
    heapq.heapify(heap)
    while heap:
        _, number = heapq.heappop(heap)
        each = gain(number)
        if each is None:
            continue
        if heap and heap[0] < (each, number):
            heapq.heappush(heap, (each, number))
            continue
        ledger.apply(number, 1)
        if (again := gain(number)) is not None:
            heapq.heappush(heap, (again, number))


def _prune(ledger: Ledger, order: Sequence[int]) -> None:
    for number in order:
        while ledger.counts[number]:
            added = ledger.change(number, -1)
            if added is None or added >= 0:
                break
            ledger.apply(number, -1)


def _exact_step(
    integral: Integral, best: Ledger | None, relaxed: Relaxed, reduced: Sequence[float], bound: Fraction
) -> tuple[Ledger | None, bool]:
    """Branch and bound over the offers that could still pay: the others stay where the relaxation has them.

    An offer whose reduced cost is more than the gap is in no better plan: leaving it out is safe.
    """
    system = integral.system
    gap = math.inf if best is None else float(best.objective() - bound) * (1 + 1e-6) + 1e-6
    movable = [number for number, cost in enumerate(reduced) if abs(cost) <= gap]
    complete = len(movable) <= _EXACT_OFFERS
    movable = sorted(movable, key=lambda number: (abs(reduced[number]), number))[:_EXACT_OFFERS]
    low, high = list(system.lowest), list(system.highest)
    for number in set(range(len(reduced))).difference(movable):
        low[number] = high[number] = round(relaxed.instances[number])
    model = LinearModel(system, "SCIP", (low, high))
    try:
        found = model.branch(_SCIP_SETTINGS, None if best is None else best.plan)
    except SolverError:
        return best, False
    ledger = improved(integral, [round(value) for value in found.instances], ())
    if ledger is not None and (best is None or ledger.objective() < best.objective()):
        best = ledger
    return best, complete and model.finished
