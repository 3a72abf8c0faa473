"""The last gate of a plan: it is held to its promise on a trace before anybody trusts it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from coldstart_cli.errors import UsageError
from coldstart_pool.inputs.demand_values import Demand
from coldstart_pool.need.reading import by_classes, trace_of
from coldstart_pool.replay.fleet import Market
from coldstart_pool.replay.planned import planned_from
from coldstart_pool.replay.simulate import Setting, lead_time_of, verify
from coldstart_pool.replay.verify import Verdict


def margin_from(value: float, service_level: Fraction) -> Fraction:
    """How far below the promise a replay may stay, from what was typed; refused where nothing is promised."""
    if not (math.isfinite(value) and 0 <= Fraction(str(value)) < service_level):
        raise UsageError(
            f"--verify-margin must be at least 0 and below the service level of {float(service_level):g}: "
            f"{value}"
        )
    return Fraction(str(value))


def verify_plan(
    document: Mapping[str, Any], demand: Demand, unseen: Demand, margin: Fraction = Fraction(0)
) -> Verdict:
    """Replay a plan document on unseen demand; `demand` is what it was sized from.

    Spare machines are released at once: the promise must not hang on a habit that the plan does not state.
    """
    planned = planned_from(document, "the plan")
    class_of = by_classes(entry.replica_class for entry in planned.classes)
    return verify(
        planned,
        None if demand.trace is None else trace_of(demand, class_of),
        trace_of(unseen, class_of),
        Setting(Market(lead_time_of(planned, None), keep_seconds=0)),
        margin,
    )


def verification_document(verdict: Verdict, path: str, digest: str) -> dict[str, Any]:
    """What the plan says about its verification; what does not apply is left out."""
    outcome = verdict.outcome
    level = verdict.level_that_keeps_it
    return {
        "path": path,
        "digest": digest,
        "kept": verdict.kept,
        "margin": float(verdict.margin),
        "scale_ups": outcome.scale_ups,
        "hit_rate": outcome.hit_rate,
        **(
            {}
            if outcome.hit_rate_interval is None
            else {"hit_rate_interval": list(outcome.hit_rate_interval)}
        ),
        "longest_wait_seconds": outcome.waits_seconds.max,
        "broken_classes": [
            {"class": one.name, "hit_rate": one.hit_rate, "scale_ups": one.scale_ups}
            for one in verdict.broken
        ],
        **({} if level is None else {"level_that_keeps_it": float(level)}),
    }
