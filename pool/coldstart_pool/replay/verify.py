"""Whether a plan keeps its promise on a trace, and the level that would have kept it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from coldstart_pool.need.counts import counts_in_lead_time, quantile
from coldstart_pool.need.families import families
from coldstart_pool.need.trace import Trace
from coldstart_pool.replay.outcome import Outcome

# levels are printed with four digits after the point: rounded up, so that what is printed is enough
_FINEST = 10_000


@dataclass(frozen=True)
class Shortfall:
    """A class whose scale-ups found GPUs less often than promised."""

    name: str
    hit_rate: float
    scale_ups: int


@dataclass(frozen=True)
class Verdict:
    """The promise beside what the replay gave."""

    service_level: Fraction
    margin: Fraction
    """How far below the promise a replay may stay."""
    outcome: Outcome
    broken: tuple[Shortfall, ...]
    level_that_keeps_it: Fraction | None
    """The level to size for instead; None when the promise is kept, or when no other level helps."""
    remedy: str
    """What to do about a broken promise, as a sentence; empty when it is kept."""

    @property
    def kept(self) -> bool:
        return not self.broken


def judge(
    outcome: Outcome,
    service_level: Fraction,
    *,
    sized_from: Trace | None,
    unseen: Trace,
    lead_time_seconds: Fraction,
    margin: Fraction = Fraction(0),
    returns: bool = False,
) -> Verdict:
    """Every class was promised the level, so each is judged; `sized_from` is the demand behind the plan."""
    accepted = service_level - margin
    broken = tuple(
        Shortfall(entry.name, entry.hit_rate, entry.scale_ups)
        for entry in outcome.classes
        if Fraction(entry.hits, entry.scale_ups) < accepted
    )
    if not broken:
        return Verdict(service_level, margin, outcome, broken, None, "")
    if sized_from is None:
        remedy = "size the pool from events, not from targets"
        return Verdict(service_level, margin, outcome, broken, None, remedy)
    level = level_for(sized_from, unseen, lead_time_seconds, accepted, returns=returns)
    if level is None:
        remedy = "no level keeps it: the trace has larger bursts than the demand; size the pool from both"
    elif level <= service_level:
        level = None
        remedy = "another level does not help: GPUs are missing in the plan, or its hosts are too small"
    else:
        remedy = f"`--service-level {float(level):g}` would have kept it"
    return Verdict(service_level, margin, outcome, broken, level, remedy)


def level_for(
    sized_from: Trace,
    unseen: Trace,
    lead_time_seconds: Fraction,
    service_level: Fraction,
    *,
    returns: bool = False,
) -> Fraction | None:
    """The smallest level at which needs of the one trace cover what the promise takes on the other.

    Classes alone and unions; None when a class is new, or its bursts are larger than any it was sized from.
    """
    level = service_level
    known = {name: number for number, name in enumerate(sized_from.names)}
    for members in families(unseen):
        part = unseen.of(members)
        if not part.scale_ups:
            continue
        numbers = [known[unseen.names[number]] for number in members if unseen.names[number] in known]
        needed = quantile(counts_in_lead_time(part, lead_time_seconds, returns=returns), service_level)
        counts = counts_in_lead_time(sized_from.of(numbers), lead_time_seconds, returns=returns)
        smaller = int((counts < needed).sum())
        if smaller == len(counts):
            return None
        # just more than this share of arrivals must be served for the quantile to reach `needed`
        share = Fraction(smaller + 1, len(counts))
        level = max(level, min(Fraction(1), Fraction(math.ceil(share * _FINEST), _FINEST)))
    return level
