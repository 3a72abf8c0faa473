"""A plan and its rivals on one trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from coldstart_cli.errors import UsageError
from coldstart_pool.need.trace import Trace
from coldstart_pool.replay.baselines import baselines
from coldstart_pool.replay.fleet import Fleet, Market
from coldstart_pool.replay.outcome import Outcome, outcome
from coldstart_pool.replay.plan_fleet import fleet_of
from coldstart_pool.replay.planned import PlannedPool
from coldstart_pool.replay.simulation import play
from coldstart_pool.replay.verify import Verdict, judge
from coldstart_pool.replay.walk_forward import WalkForward, walk_forward

PLAN = "plan"


@dataclass(frozen=True)
class Setting:
    """How to replay; the lead time is the plan's own unless another one is given."""

    market: Market
    floor_share: float = 0.1
    """Time is counted in which a pool holds less than this share of what it should."""

    def __post_init__(self) -> None:
        if not 0 <= self.floor_share <= 1:
            raise UsageError(f"--floor must be at least 0 and at most 1: {self.floor_share:g}")


def lead_time_of(plan: PlannedPool, given_seconds: float | None) -> float:
    """The lead time to replay with; refused when neither the plan nor the caller has one."""
    if given_seconds is not None:
        return given_seconds
    if plan.lead_time_seconds is None:
        raise UsageError(
            f"{plan.path} was sized from targets and holds no lead time", hint="pass `--lead-time SECONDS`"
        )
    return float(plan.lead_time_seconds)


def simulate(
    plan: PlannedPool,
    trace: Trace,
    setting: Setting,
    *,
    rivals: bool = True,
) -> Iterator[Outcome]:
    """The plan first, then what operators do without one; each is replayed when it is asked for."""
    fleet = fleet_of(plan, trace)
    yield _outcome(PLAN, trace, fleet, setting)
    if rivals:
        for name, their_trace, their_fleet in baselines(trace, fleet):
            yield _outcome(name, their_trace, their_fleet, setting)


def walk(plan: PlannedPool, trace: Trace, setting: Setting, trained_days: int) -> WalkForward:
    """Size anew from the days before each day, with the plan's promise."""
    lead = Fraction(str(setting.market.lead_time_seconds))
    return walk_forward(trace, lead, plan.service_level, trained_days)


def verify(
    plan: PlannedPool,
    sized_from: Trace | None,
    unseen: Trace,
    setting: Setting,
    margin: Fraction = Fraction(0),
) -> Verdict:
    """Replay a plan on a trace and hold it to its promise less `margin`, class by class."""
    fleet = fleet_of(plan, unseen)
    played = _outcome(PLAN, unseen, fleet, setting)
    return judge(
        played,
        plan.service_level,
        sized_from=sized_from,
        unseen=unseen,
        lead_time_seconds=Fraction(str(setting.market.lead_time_seconds)),
        margin=margin,
    )


def _outcome(name: str, trace: Trace, fleet: Fleet, setting: Setting) -> Outcome:
    played = play(trace, fleet, setting.market, floor_share=setting.floor_share)
    return outcome(name, trace, fleet, played, Fraction(str(setting.market.lead_time_seconds)))
