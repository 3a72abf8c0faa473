"""One thing changed, to be planned again: what it is, and how to say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coldstart_pool.inputs.pool_inputs import PoolInputs
from coldstart_pool.planning.assemble import assemble
from coldstart_pool.planning.groups import NeededPool
from coldstart_pool.planning.model.solve import Solved
from coldstart_pool.planning.policy import Policy
from coldstart_pool.planning.problem import Problem

# of each kind no more than these are tried, the likeliest first
MOST_OF_A_KIND = 8
PLENTY = 100_000


def settled(_solved: Solved) -> Trial | None:
    """Nothing smaller to try."""
    return None


@dataclass(frozen=True)
class Trial:
    """A problem with one thing changed."""

    kind: str
    problem: Callable[[], Problem]
    describe: Callable[[Solved], str | None]
    """The sentence, from the plan that it led to; None where that plan shows it was not this change."""
    settle: Callable[[Solved], Trial | None] = settled
    """The least of the change that this plan needs, to be tried once more."""
    stepwise: bool = False
    """Trials of its kind go further and further: the first that does is the least, and the last needed."""


def saying(text: str) -> Callable[[Solved], str]:
    """The same sentence, whatever the plan."""
    return lambda _solved: text


def planned(inputs: PoolInputs, pool: NeededPool, policy: Policy) -> Callable[[], Problem]:
    """The problem of these values, made only when it is tried."""
    return lambda: assemble(inputs, pool, policy).problem
