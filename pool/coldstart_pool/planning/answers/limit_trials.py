"""Remedies outside of the plan: more quota, more machines obtained, offers nobody asked for yet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from coldstart_pool.inputs.observations import Observation
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.places import Selector
from coldstart_pool.inputs.pool_inputs import PoolInputs
from coldstart_pool.planning.answers.trial import MOST_OF_A_KIND, PLENTY, Trial, settled
from coldstart_pool.planning.assemble import Assembled, assemble
from coldstart_pool.planning.model.exact import Ledger
from coldstart_pool.planning.model.integral import Integral
from coldstart_pool.planning.model.solve import Solved
from coldstart_pool.planning.model.system import Kind
from coldstart_pool.planning.policy import Policy
from coldstart_pool.planning.problem import CapKind, Problem, weighted
from coldstart_pool.planning.wants import Wants


def limit_trials(solved: Solved, short: Sequence[Wants]) -> Iterator[Trial]:
    """Quotas that are full, those whose shadow price is highest first; machines of which all are taken."""
    problem, duals = solved.problem, solved.relaxed.duals
    ledger = Ledger(Integral(solved.system), solved.counts)
    quotas: list[tuple[float, int]] = []
    offers: set[int] = set()
    for number, row in enumerate(solved.system.rows):
        if row.kind not in {Kind.QUOTA, Kind.SUPPLY} or row.at_most is None:
            continue
        useful = [
            (offer, weight)
            for offer, weight in row.offer_terms
            if any(wants.fits(problem.offers[offer]) for wants in short)
        ]
        full = [offer for offer, weight in useful if ledger.value(number) + weight > row.at_most]
        if row.kind is Kind.QUOTA and full:
            quotas.append((duals[number], row.subject))
        else:
            offers.update(full)
    for _, cap in sorted(quotas)[:MOST_OF_A_KIND]:
        yield _more_quota(problem, cap)
    cheapest = sorted(offers, key=lambda number: (problem.offers[number].price_per_gpu, number))
    for number in cheapest[:MOST_OF_A_KIND]:
        yield _more_of(problem, number)


def _more_quota(problem: Problem, number: int) -> Trial:
    cap = problem.caps[number]

    def with_count(count: int) -> Trial:
        caps = (*problem.caps[:number], replace(cap, count=count), *problem.caps[number + 1 :])
        text = f"raise quota {cap.label} by {count - cap.count} {cap.unit}"
        return Trial("quota", lambda: replace(problem, caps=caps), lambda _solved: text, settle)

    def settle(found: Solved) -> Trial | None:
        used = weighted(cap, found.counts)
        return replace(with_count(used), settle=settled) if used > cap.count else None

    return with_count(cap.count + PLENTY)


def _more_of(problem: Problem, number: int) -> Trial:
    """More of one offer, as if more had been obtained: every observation of it rises with it."""
    name = _name(problem.offers[number])

    def with_more(count: int) -> Trial:
        caps = tuple(
            replace(cap, count=cap.count + count * cap.weights[cap.members.index(number)])
            if cap.kind is CapKind.SUPPLY and number in cap.members
            else cap
            for cap in problem.caps
        )
        text = f"obtain {count} more of {name}"
        return Trial("supply", lambda: replace(problem, caps=caps), lambda _solved: text, settle)

    def settle(found: Solved) -> Trial | None:
        """The most by which any observation of it was passed."""
        over = [
            math.ceil((weighted(cap, found.counts) - cap.count) / cap.weights[cap.members.index(number)])
            for cap in problem.caps
            if cap.kind is CapKind.SUPPLY and number in cap.members
        ]
        most = max(over, default=0)
        return replace(with_more(most), settle=settled) if most > 0 else None

    return with_more(PLENTY)


def unobserved_trials(
    inputs: PoolInputs, assembled: Assembled, policy: Policy, short: Sequence[Wants]
) -> Iterator[Trial]:
    """Offers with a price that nobody has asked for yet, the cheapest first."""
    unseen = [offer for offer in assembled.available.unobserved if any(wants.fits(offer) for wants in short)]
    for offer in sorted(unseen, key=lambda entry: (entry.price_per_gpu, entry.key))[:MOST_OF_A_KIND]:
        yield _observed(inputs, assembled, policy, offer)


def _observed(inputs: PoolInputs, assembled: Assembled, policy: Policy, offer: Offer) -> Trial:
    observed = Observation(Selector(*offer.machine, offer.market), PLENTY, False, ())
    supply = replace(inputs.supply, observations=(*inputs.supply.observations, observed))
    changed = replace(inputs, supply=supply)

    def describe(found: Solved) -> str | None:
        pairs = zip(found.problem.offers, found.counts, strict=True)
        count = next((count for other, count in pairs if other.key == offer.key), 0)
        return f"obtain {count} of {_name(offer)}: nobody has asked for it yet" if count else None

    return Trial("another offer", lambda: assemble(changed, assembled.pool, policy).problem, describe)


def _name(offer: Offer) -> str:
    return f"{offer.place} {offer.instance_type} {offer.market}"
