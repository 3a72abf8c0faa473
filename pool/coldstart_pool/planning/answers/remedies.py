"""When demand cannot be met: of each kind the cheapest single remedy, found by planning again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coldstart_cli.errors import ColdstartError
from coldstart_pool.inputs.pool_inputs import PoolInputs
from coldstart_pool.planning.answers.limit_trials import limit_trials, unobserved_trials
from coldstart_pool.planning.answers.policy_trials import level_trials, policy_trials
from coldstart_pool.planning.answers.trial import Trial
from coldstart_pool.planning.answers.wants_trials import place_trials, substitute_trials
from coldstart_pool.planning.assemble import Assembled
from coldstart_pool.planning.model.solve import Solved, solve
from coldstart_pool.planning.policy import Policy
from coldstart_pool.planning.wants import Wants

# work, not time: each trial is a whole plan
_TRIALS_SMALL, _TRIALS_LARGE = 100, 8
_SMALL = 20_000


@dataclass(frozen=True)
class Remedy:
    """One change, what is missing after it (0 where it does), and the hourly price of the plan then."""

    kind: str
    sentence: str
    cost_per_hour_usd: float
    missing_gpus: float = 0.0


def remedies(inputs: PoolInputs, assembled: Assembled, solved: Solved, policy: Policy) -> tuple[Remedy, ...]:
    """The cheapest of each kind after which nothing is missing; where no single one does, the nearest."""
    if not solved.short:
        return ()
    size = solved.system.size
    left = _TRIALS_SMALL if size <= _SMALL else _TRIALS_LARGE
    found: list[Remedy] = []
    done: set[str] = set()
    for trial in _trials(inputs, assembled, solved, policy):
        if trial.kind in done:
            continue
        if left < 1:
            break
        left -= 1
        remedy = _tried(trial)
        if remedy is not None:
            found.append(remedy)
            if trial.stepwise and not remedy.missing_gpus:
                done.add(trial.kind)
    found.sort(key=lambda one: (one.missing_gpus, one.cost_per_hour_usd, one.kind, one.sentence))
    best: dict[str, Remedy] = {}
    for remedy in found:
        if not remedy.missing_gpus:
            best.setdefault(remedy.kind, remedy)
    nearest = [one for one in found[:1] if one.missing_gpus < _missing(solved)]
    return tuple(best.values()) or tuple(nearest)


def _tried(trial: Trial) -> Remedy | None:
    solved = _solved(trial)
    if solved is None:
        return None
    least = trial.settle(solved)
    again = None if least is None else _solved(least)
    if least is not None and again is not None and _missing(again) <= _missing(solved):
        trial, solved = least, again
    sentence = trial.describe(solved)
    if sentence is None:
        return None
    cost = round(float(solved.problem.cost(solved.counts)), 6)
    return Remedy(trial.kind, sentence, cost, _missing(solved))


def _solved(trial: Trial) -> Solved | None:
    try:
        return solve(trial.problem(), exact=False)
    except ColdstartError:
        return None  # what contradicts itself is no remedy


def _missing(solved: Solved) -> float:
    """GPUs missing over all classes and unions, what a lost domain would leave included."""
    rows = zip(solved.system.rows, solved.missing, strict=True)
    widest: dict[int, float] = {}
    for row, gap in rows:
        if row.soft:
            widest[row.subject] = max(widest.get(row.subject, 0.0), float(gap))
    return sum(widest.values())


def _trials(inputs: PoolInputs, assembled: Assembled, solved: Solved, policy: Policy) -> Iterator[Trial]:
    short = _short_wants(assembled, solved)
    yield from limit_trials(solved, short)
    yield from policy_trials(inputs, assembled, policy)
    yield from level_trials(inputs, assembled, solved, policy)
    yield from substitute_trials(inputs, assembled, policy, short)
    yield from place_trials(inputs, assembled, policy, short)
    yield from unobserved_trials(inputs, assembled, policy, short)


def _short_wants(assembled: Assembled, solved: Solved) -> list[Wants]:
    names: set[str] = set()
    for row, gap in zip(solved.system.rows, solved.missing, strict=True):
        if gap and row.soft:
            names.update(solved.problem.groups[row.subject].classes)
    return [wants for wants in assembled.pool.wants if wants.name in names]
