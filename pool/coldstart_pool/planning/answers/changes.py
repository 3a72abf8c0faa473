"""What changes against the current pool, each line with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from coldstart_pool.inputs.offers import Offer
from coldstart_pool.planning.model.exact import Ledger
from coldstart_pool.planning.model.integral import Integral
from coldstart_pool.planning.model.solve import Solved
from coldstart_pool.planning.model.system import NEEDS, Kind, Row


@dataclass(frozen=True)
class Change:
    """Instances of an offer to start (more than 0) or to give back, and why."""

    offer: Offer
    instances: int
    reason: str


def changes(solved: Solved) -> tuple[Change, ...]:
    """In the order of offers; nothing where no current pool was given."""
    problem = solved.problem
    if not problem.held:
        return ()
    ledger = Ledger(Integral(solved.system), solved.counts)
    found = []
    for number, (now, before) in enumerate(zip(solved.counts, problem.held, strict=True)):
        if now > before:
            found.append(Change(problem.offers[number], now - before, _why_started(ledger, number)))
        elif now < before:
            found.append(Change(problem.offers[number], now - before, _why_given_back(ledger, number)))
    return tuple(found)


def _why_started(ledger: Ledger, number: int) -> str:
    if ledger.counts[number] <= ledger.system.lowest[number]:
        return "committed: it is paid for anyway"
    gaps = ledger.opened(number, -1)
    if not gaps:
        return "cheaper than what it replaces"
    return "without one of them: " + "; ".join(_gap(row, missing) for row, missing in gaps[:2])


def _why_given_back(ledger: Ledger, number: int) -> str:
    refusing = ledger.refusing(number, 1)
    if refusing:
        return f"no room in {refusing[0].kind}: {refusing[0].label}"
    price = float(ledger.system.prices[number])
    return f"every need is met without it: saves {price:.2f} USD/h each"


def _gap(row: Row, missing: float) -> str:
    gpus = f"{missing:g} GPUs short"
    if row.kind is Kind.SURVIVAL:
        return f"{row.label} {gpus}"
    if row.kind is Kind.SCENARIO:
        return f"{row.label} {gpus}"
    if row.kind in NEEDS:
        return f"{row.label} {gpus}" + (f" of its {row.kind}" if row.kind is not Kind.COVERAGE else "")
    return f"{row.kind} of {row.label} would not hold"
