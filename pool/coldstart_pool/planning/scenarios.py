"""Joint scenarios of spot supply: moments of the past, seen over all places together, never means."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from coldstart_pool.inputs.observations import (
    Attempt,
    Observation,
    ObservedSupply,
    SupplyBlock,
    supply_blocks,
)
from coldstart_pool.inputs.offers import SPOT, Offer
from coldstart_pool.inputs.places import Selector, matching
from coldstart_pool.planning.problem import Domain, Scenario

# what is up now is up an hour later in 88 of 100 cases; older than two blocks a state is unknown
_BLOCK_SECONDS = 3600
_BLOCKS_KNOWN = 2
_HALF_LIFE_BLOCKS = 7 * 24
_MOST_SCENARIOS = 24
# of ten attempts that brought anything, nine brought this much
_OF_TEN = 10
# two-hour stock-outs took 5 % of the time; history may hold none for a place
_DEAD_SHARE = Fraction(1, 20)


@dataclass(frozen=True)
class JointSupply:
    """For each offer its unit, which is there or not as a whole, and the scenarios over all units."""

    units: tuple[int | None, ...]
    scenarios: tuple[Scenario, ...]
    blocks: int
    """Blocks of time with attempts on spot that the scenarios were drawn from."""


def joint_supply(
    offers: Sequence[Offer],
    attempts: Sequence[Attempt],
    domains: Sequence[Domain],
    obtainable: Sequence[int],
) -> JointSupply:
    """Moments of the past, and the loss of each domain added by hand (of the largest, where there are many).

    One unit is a GPU of a provider in a zone, on spot; its state is what was got of what was asked.
    """
    names: dict[tuple[str, ...], int] = {}
    units: list[int | None] = []
    for offer in offers:
        key = (offer.provider, offer.region, offer.zone, offer.gpu)
        units.append(names.setdefault(key, len(names)) if offer.market == SPOT else None)
    if not names:
        return JointSupply(tuple(units), (), 0)
    states = _states(offers, units, supply_blocks(attempts, _BLOCK_SECONDS))
    as_observed = Scenario("as observed", Fraction(1), (Fraction(1),) * len(names))
    scenarios = _thinned(_weighted(states)) or [as_observed]
    share = sum((entry.weight for entry in scenarios), Fraction(0))
    largest = _largest(offers, domains, obtainable)
    dead = [
        Scenario(
            f"{domains[number].label} dead",
            share * _DEAD_SHARE / (1 - _DEAD_SHARE) / len(largest),
            (Fraction(1),) * len(names),
            number,
        )
        for number in largest
    ]
    return JointSupply(tuple(units), (*scenarios, *dead), len(states))


def _largest(offers: Sequence[Offer], domains: Sequence[Domain], obtainable: Sequence[int]) -> list[int]:
    """The domains with most GPUs on offer, in their fixed order."""
    gpus = [
        sum(offers[number].gpus_per_instance * obtainable[number] for number in domain.members)
        for domain in domains
    ]
    chosen = sorted(range(len(domains)), key=lambda number: (-gpus[number], number))[:_MOST_SCENARIOS]
    return sorted(chosen)


def counts_when_there(supply: ObservedSupply) -> tuple[Observation, ...]:
    """The counts with spot measured at the moments it was there: that it was dry at others, scenarios say.

    A low quantile of all attempts is nearly always nothing; a mean would hide that all is gone at once.
    """
    successes: dict[Selector, list[int]] = {}
    lines: dict[Selector, set[int]] = {}
    for attempt in supply.attempts:
        lines.setdefault(attempt.selector, set()).add(attempt.line)
        if attempt.obtained:
            successes.setdefault(attempt.selector, []).append(attempt.obtained)
    found = []
    for one in supply.observations:
        got = sorted(successes.get(one.selector, ()))
        from_attempts = lines.get(one.selector, set()).issuperset(one.lines)
        if one.selector.market == SPOT and got and from_attempts:
            found.append(replace(one, count=max(one.count, got[len(got) // _OF_TEN])))
        else:
            found.append(one)
    return tuple(found)


def _states(
    offers: Sequence[Offer], units: Sequence[int | None], blocks: Sequence[SupplyBlock]
) -> list[tuple[int, tuple[Fraction, ...]]]:
    """For each block the share of each unit that was there; what nobody asked for lately is dry."""
    count = max(unit for unit in units if unit is not None) + 1
    seen: list[tuple[int, Fraction] | None] = [None] * count
    selectors = sorted({selector for block in blocks for selector, _, _ in block.outcomes})
    units_of = {
        selector: sorted({unit for member in members if (unit := units[member]) is not None})
        for selector, members in zip(selectors, matching(offers, selectors), strict=True)
    }
    found = []
    for block in blocks:
        number = int(block.start_seconds // _BLOCK_SECONDS)
        asked = [[0, 0] for _ in range(count)]
        for selector, requested, obtained in block.outcomes:
            for unit in units_of[selector]:
                asked[unit][0] += requested
                asked[unit][1] += obtained
        touched = False
        for unit, (requested, obtained) in enumerate(asked):
            if requested:
                seen[unit] = (number, Fraction(min(obtained, requested), requested))
                touched = True
        if touched:
            state = tuple(
                entry[1] if entry is not None and number - entry[0] <= _BLOCKS_KNOWN else Fraction(0)
                for entry in seen
            )
            found.append((number, state))
    return found


def _weighted(states: Sequence[tuple[int, tuple[Fraction, ...]]]) -> list[Scenario]:
    """Recent blocks weigh more; equal states are one scenario."""
    weights: dict[tuple[Fraction, ...], Fraction] = {}
    if not states:
        return []
    newest = states[-1][0]
    for number, state in states:
        # rounded, so that sums stay short fractions
        weight = Fraction(round(1_000_000 * math.exp2((number - newest) / _HALF_LIFE_BLOCKS)), 1_000_000)
        weights[state] = weights.get(state, Fraction(0)) + weight
    return [
        Scenario(f"joint state {n}", weight, state) for n, (state, weight) in enumerate(weights.items(), 1)
    ]


def _thinned(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """No more than a model of seconds bears: equally spaced along the weight, from poor to rich."""
    if len(scenarios) <= _MOST_SCENARIOS:
        return list(scenarios)
    ordered = sorted(scenarios, key=lambda entry: (sum(entry.supply), entry.supply))
    ends = list(itertools.accumulate(entry.weight for entry in ordered))
    step = ends[-1] / _MOST_SCENARIOS
    chosen: dict[int, int] = {}
    position = 0
    for index in range(_MOST_SCENARIOS):
        while ends[position] <= step * index + step / 2:
            position += 1
        chosen[position] = chosen.get(position, 0) + 1
    return [
        Scenario(ordered[number].label, step * times, ordered[number].supply)
        for number, times in chosen.items()
    ]
