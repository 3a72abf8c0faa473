"""Beyond single exchanges: moves that cost a little are taken too, ever fewer of them, and the best is kept.

Scenarios charge the widest gap of all groups, so that a saving often takes several moves, each of which
costs something alone. Chance is a fixed series of numbers, and the limit is a number of moves.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from coldstart_pool.planning.model.exact import Ledger
from coldstart_pool.planning.model.integral import Integral
from coldstart_pool.planning.model.neighbourhood import Neighbourhood

MOVES = 3_000
_NEAR_ENOUGH = Fraction(101, 100)
# of each GPU the nearest offers, by what the relaxation says of them, and no more with those in use
_NEAREST, _MOST_OFFERS = 16, 48
_DRAWN = 200
# from a quarter of the mean price of a GPU to a twenty-fifth, in equal ratios
_COOLINGS = 40
_HOTTEST = 4
_COOLER = (21, 22)
# rounded money and its noise stay below 2 ** 60
_MONEY_BITS, _NOISE_BITS = 48, 8
_NOISE = 1 << 16


def annealed(ledger: Ledger, reduced: Sequence[float], bound: Fraction, moves: int = MOVES) -> None:
    """The ledger's plan becomes the best that was met; no row is broken, and no gap of a need opened.

    It ends sooner within a hundredth of the bound, where seconds are worth more than what is left.
    """
    integral = ledger.integral
    gpus = integral.system.problem.gpus(ledger.counts)
    # exact, and negative until it is near enough
    enough = math.floor((bound * _NEAR_ENOUGH - ledger.objective()) * integral.money)
    if integral.dtype is not np.int64 or not gpus or enough >= 0:
        return
    shift = _money_shift(integral)
    around = _around(ledger, reduced, shift)
    if not around:
        return
    prices = zip(integral.price, ledger.counts, strict=True)
    heat = max(1, (sum(price * count for price, count in prices) // gpus // _HOTTEST) >> shift)
    noise, draws = _chances()
    chance = random.Random(0)  # noqa: S311 - no secret, the same moves each time
    best, total, least = ledger.plan, 0, 0
    for step in range(moves):
        if step and step % max(1, moves // _COOLINGS) == 0:
            heat = max(1, heat * _COOLER[0] // _COOLER[1])
        hood = around[_below(chance, len(around))]
        start = _below(chance, _NOISE - 3 * _DRAWN)
        found = hood.moves(ledger, draws[start : start + 3 * _DRAWN].reshape(3, _DRAWN))
        costs = hood.costs(ledger, found)
        start = _below(chance, _NOISE - len(costs))
        chosen = int(((costs << _NOISE_BITS) - heat * noise[start : start + len(costs)]).argmin())
        added = hood.applied(ledger, found, chosen)
        total += added or 0
        if total < least:
            best, least = ledger.plan, total
            if least <= enough:
                break
    for number, count in enumerate(best):
        if count != ledger.counts[number]:
            ledger.apply(number, count - ledger.counts[number])


def _around(ledger: Ledger, reduced: Sequence[float], shift: int) -> list[Neighbourhood]:
    """For each GPU the offers that the relaxation would use soonest, and those in use."""
    system = ledger.system
    by_gpu: dict[str, list[int]] = {}
    for number in sorted(range(len(reduced)), key=lambda n: (reduced[n], n)):
        if system.highest[number] > system.lowest[number]:
            members = by_gpu.setdefault(system.problem.offers[number].gpu, [])
            if len(members) < (_MOST_OFFERS if ledger.counts[number] else _NEAREST):
                members.append(number)
    return [Neighbourhood(ledger.integral, sorted(members), shift) for members in by_gpu.values()]


def _money_shift(integral: Integral) -> int:
    """By how many bits exact money is rounded, so that all gaps together fit."""
    pockets = zip(integral.pocket_price, integral.system.rows_of_pocket, integral.pocket_unit, strict=True)
    most = sum(price * math.ceil(max(rows.values(), default=0) * unit) for price, rows, unit in pockets)
    most += 4 * max(map(sum, zip(integral.price, integral.churn, strict=True)), default=0)
    return max(0, most.bit_length() - _MONEY_BITS)


@cache
def _chances() -> tuple[Any, Any]:
    """Noise that makes the least of noisy costs a draw by heat (Gumbel's), in whole numbers, and draws."""
    # of Python's generators only `random` promises the same series in every version
    source = random.Random(1)  # noqa: S311 - no secret
    values = [min(max(source.random(), 1e-9), 1 - 1e-9) for _ in range(_NOISE)]
    noise = [round(-math.log(-math.log(value)) * (1 << _NOISE_BITS)) for value in values]
    draws = [_below(source, 1 << 30) for _ in range(_NOISE)]
    return np.array(noise, dtype=np.int64), np.array(draws, dtype=np.int64)


def _below(source: random.Random, most: int) -> int:
    return int(source.random() * most)
