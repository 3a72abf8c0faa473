"""Observed supply as values: counts, attempts with their times, and blocks of time for joint scenarios."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from coldstart_pool.inputs.places import Selector


@dataclass(frozen=True, order=True)
class Observation:
    """Obtainable machines that fit a selector; an empty field (or 0 GPUs) fits every offer."""

    selector: Selector
    count: int
    of_gpus: bool
    """The count is of GPUs: the rows named no machine, only a GPU."""
    lines: tuple[int, ...]


@dataclass(frozen=True, order=True)
class Attempt:
    """One request for machines: when (seconds since 1970), how many, and what came of it."""

    time_seconds: Fraction
    selector: Selector
    requested: int
    obtained: int
    lead_seconds: Fraction | None
    """From asking to having them; None where nothing was obtained or the table does not say."""
    reason: str
    line: int

    @property
    def order(self) -> tuple[float, Selector, int, int, int]:
        """Sorts by time, then by place."""
        return (float(self.time_seconds), self.selector, self.requested, self.obtained, self.line)


@dataclass(frozen=True)
class SupplyBlock:
    """What was asked and obtained in one stretch of time, over all places together."""

    start_seconds: Fraction
    outcomes: tuple[tuple[Selector, int, int], ...]
    """(place, requested, obtained) of the attempts in the block, summed, in the order of places."""


@dataclass(frozen=True)
class ObservedSupply:
    """Counts for limits, and the attempts in order of time from which scenarios are drawn."""

    observations: tuple[Observation, ...] = ()
    attempts: tuple[Attempt, ...] = ()

    @property
    def lead_seconds(self) -> tuple[Fraction, ...]:
        """How long each successful attempt took, where the table says so; sorted."""
        return tuple(sorted(entry.lead_seconds for entry in self.attempts if entry.lead_seconds is not None))


def supply_blocks(attempts: Iterable[Attempt], block_seconds: int) -> tuple[SupplyBlock, ...]:
    """Attempts by block of time, all places together: what was dry at once stays together.

    Blocks begin at multiples of `block_seconds`; those without any attempt are left out.
    """
    blocks: dict[int, dict[Selector, list[int]]] = {}
    for attempt in attempts:
        block = blocks.setdefault(math.floor(attempt.time_seconds / block_seconds), {})
        sums = block.setdefault(attempt.selector, [0, 0])
        sums[0] += attempt.requested
        sums[1] += attempt.obtained
    return tuple(
        SupplyBlock(
            Fraction(number * block_seconds),
            tuple((selector, asked, got) for selector, (asked, got) in sorted(block.items())),
        )
        for number, block in sorted(blocks.items())
    )
