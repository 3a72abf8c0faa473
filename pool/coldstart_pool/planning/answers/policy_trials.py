"""Remedies of the operator's own: budget, shares, levels and lead time loosened."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

from coldstart_pool.inputs.pool_inputs import PoolInputs
from coldstart_pool.planning.answers.trial import Trial, planned, saying
from coldstart_pool.planning.assemble import Assembled, assemble
from coldstart_pool.planning.groups import level_kept, needed_pool
from coldstart_pool.planning.model.solve import Solved
from coldstart_pool.planning.policy import Policy
from coldstart_pool.planning.problem import Problem

_LOWER_LEVELS = ("0.99", "0.98", "0.95", "0.9", "0.8", "0.5")


def policy_trials(inputs: PoolInputs, assembled: Assembled, policy: Policy) -> Iterator[Trial]:
    """Budget, share, survival, utilisation, floor, growth: each loosened as far as this shortage needs."""
    for kind, changed, describe in (*_freed(policy), *_steps(policy), *_reserve(assembled, policy)):
        yield Trial(kind, planned(inputs, assembled.pool, changed), describe, stepwise=True)


_Change = tuple[str, Policy, Callable[[Solved], str | None]]


def _freed(policy: Policy) -> Iterator[_Change]:
    """Limits that are lifted whole: the plan then says how much of it was needed."""
    if policy.budget is not None:
        yield (
            "budget",
            replace(policy, budget=None),
            lambda s: f"raise `--budget` to {_up(s.problem.cost(s.counts)):.2f} USD/h",
        )
    if policy.grow_gpus is not None:
        yield (
            "growth",
            replace(policy, grow_gpus=None),
            lambda s: f"start {_started(s)} GPUs in this interval (`--grow {_started(s)}`)",
        )


def _steps(policy: Policy) -> Iterator[_Change]:
    """Shares loosened step by step."""
    for percent in range(5, 101, 5):
        if policy.largest_share < Fraction(percent, 100):
            text = f"allow one provider {percent} % of the GPUs (`--largest-share {percent / 100:g}`)"
            yield "share", replace(policy, largest_share=Fraction(percent, 100)), saying(text)
    for percent in range(90, -1, -10):
        if Fraction(percent, 100) < policy.survive:
            text = f"let the loss of a domain leave {percent} % of each need (`--survive {percent / 100:g}`)"
            yield "survival", replace(policy, survive=Fraction(percent, 100)), saying(text)
    for percent in (90, 80, 50, 0):
        if Fraction(percent, 100) < policy.floor:
            text = f"let spot hold more: {percent} % of each need not spot (`--floor {percent / 100:g}`)"
            yield "floor", replace(policy, floor=Fraction(percent, 100)), saying(text)


def _reserve(assembled: Assembled, policy: Policy) -> Iterator[_Change]:
    if assembled.pool.from_trace and policy.peak_utilisation is None:
        return  # there is no cap
    for text in ("0.95", "0.98", "1"):
        if Fraction(text) > policy.target_utilisation:
            sentence = (
                f"accept {float(text):.0%} of the GPUs in use at the peak (`--peak-utilisation {text}`)"
            )
            yield "utilisation", replace(policy, peak_utilisation=Fraction(text)), saying(sentence)


def level_trials(inputs: PoolInputs, assembled: Assembled, solved: Solved, policy: Policy) -> Iterator[Trial]:
    """A lower level, or a shorter refill: only a trace says what they need."""
    lead = policy.lead_time_seconds
    if not assembled.pool.from_trace or lead is None:
        return
    # what the plan keeps as it stands, to a thousandth
    kept = Fraction(math.floor(level_kept(inputs, policy, _planned(solved)) * 1000), 1000)
    for level in sorted({kept, *map(Fraction, _LOWER_LEVELS)}, reverse=True):
        if 0 < level < policy.service_level:
            changed = replace(policy, service_level=level)
            percent = f"{float(level * 100):g}%"
            sentence = f"promise {percent} of scale-ups instead (`--service-level {float(level):g}`)"
            yield Trial("service level", _sized(inputs, changed), saying(sentence), stepwise=True)
    for part in (2, 4, 8, 16):
        seconds = lead / part
        changed = replace(policy, lead_time_seconds=seconds)
        sentence = f"refill in {float(seconds):g} s instead of {float(lead):g} s"
        yield Trial("lead time", _sized(inputs, changed), saying(sentence), stepwise=True)


def _planned(solved: Solved) -> dict[tuple[str, ...], int]:
    return {
        group.classes: math.floor(sum(value * solved.counts[offer] for offer, value in group.usable))
        for group in solved.problem.groups
    }


def _sized(inputs: PoolInputs, policy: Policy) -> Callable[[], Problem]:
    return lambda: assemble(inputs, needed_pool(inputs, policy), policy).problem


def _started(solved: Solved) -> int:
    moves = zip(solved.problem.offers, solved.counts, solved.problem.current, strict=True)
    return sum(offer.gpus_per_instance * max(0, count - before) for offer, count, before in moves)


def _up(value: Fraction) -> float:
    """To whole cents, never below."""
    return math.ceil(value * 100) / 100
