"""From loaded tables and a policy to the problem: numbered offers, groups, caps, domains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.places import Selector, matching
from coldstart_pool.inputs.pool_inputs import PoolInputs
from coldstart_pool.inputs.supply import Availability, availability
from coldstart_pool.planning.groups import Needed, NeededPool
from coldstart_pool.planning.policy import Policy
from coldstart_pool.planning.problem import Cap, CapKind, Domain, Group, Problem, Share, Will
from coldstart_pool.planning.scenarios import JointSupply, counts_when_there, joint_supply
from coldstart_pool.planning.wants import Worth, joined


@dataclass(frozen=True)
class Assembled:
    """The problem, and what of the inputs stayed outside of it."""

    problem: Problem
    pool: NeededPool
    available: Availability
    supply: JointSupply
    unheld: tuple[str, ...]
    """Machines of the current pool and of commitments that fit no usable offer."""
    not_restorable: Mapping[str, int]
    """By class, offers that fit but cannot restore its snapshot."""


def assemble(inputs: PoolInputs, pool: NeededPool, policy: Policy) -> Assembled:
    """The problem of these tables, whatever the order of their rows; useless offers are left out."""
    # below a floor of everything spot counts towards needs, and scenarios say when it is gone
    observations = counts_when_there(inputs.supply) if policy.floor < 1 else inputs.supply.observations
    available = availability(inputs.offers, observations)
    placed = _Placed(inputs.offers)
    held, held_lost = placed.counts((one.selector, one.instances, "current pool") for one in inputs.holdings)
    committed, promised_lost = placed.counts(
        (one.selector, one.instances, "commitment") for one in inputs.commitments
    )
    obtainable = {
        offer.key: count for offer, count in zip(available.offers, available.obtainable, strict=True)
    }
    present = [max(pair) for pair in zip(held, committed, strict=True)]
    worth = Worth(policy, inputs.snapshots)
    usable = {wants.name: worth.of(wants, inputs.offers) for wants in pool.wants}
    useful = {number for part in usable.values() for number in part}
    numbers = [
        number
        for number, offer in enumerate(inputs.offers)
        if present[number] or (number in useful and obtainable.get(offer.key, 0) > 0)
    ]
    chosen = _Chosen(inputs.offers, numbers)
    domains = chosen.domains(inputs, policy)
    # where the loss of any domain must be survived, a constraint says so, and no scenario needs to
    by_hand = () if policy.survive > 0 else domains
    counts = [obtainable.get(offer.key, 0) for offer in chosen.offers]
    supply = joint_supply(chosen.offers, inputs.supply.attempts, by_hand, counts)
    pool_is_known = bool(inputs.holdings)
    problem = Problem(
        chosen.offers,
        tuple(_group(needed, usable, chosen, pool, policy) for needed in pool.needed),
        (*chosen.supply_caps(available), *chosen.quota_caps(inputs)),
        _will(policy, chosen, held if pool_is_known else None),
        domains,
        chosen.shares(policy),
        tuple(held[number] for number in numbers) if pool_is_known else (),
        tuple(committed[number] for number in numbers) if any(committed) else (),
        supply.units,
        supply.scenarios,
    )
    not_restorable = {name: len(found) for name, found in sorted(worth.not_restorable.items())}
    return Assembled(problem, pool, available, supply, (*held_lost, *promised_lost), not_restorable)


def _group(
    needed: Needed,
    usable: Mapping[str, dict[int, Fraction]],
    chosen: _Chosen,
    pool: NeededPool,
    policy: Policy,
) -> Group:
    worth = joined(usable[name] for name in needed.classes)
    members = tuple((chosen.position[number], value) for number, value in worth if number in chosen.position)
    if not pool.from_trace:
        # a stated target is all there is at the peak: it is the part of the pool that may be in use
        utilisation, peak, busy = policy.target_utilisation, needed.gpus, Fraction(0)
    else:
        utilisation = policy.peak_utilisation or Fraction(1)
        peak = busy = Fraction(needed.peak_busy_gpus or 0)
    if utilisation == 1:
        peak = busy = Fraction(0)
    return Group(needed.label, needed.classes, members, needed.gpus, peak, busy)


def _will(policy: Policy, chosen: _Chosen, held: Sequence[int] | None) -> Will:
    shrink = None
    if held is not None:
        gpus = [chosen.all_offers[n].gpus_per_instance * count for n, count in enumerate(held)]
        largest = max((chosen.all_offers[n].gpus_per_instance for n, c in enumerate(held) if c), default=0)
        # at least one machine, or a small pool could never shrink
        shrink = max(math.floor(policy.shrink * sum(gpus)), largest) if policy.shrink else 0
    return Will(
        policy.target_utilisation if policy.peak_utilisation is None else policy.peak_utilisation,
        policy.survive,
        policy.floor,
        policy.missing_price,
        policy.budget,
        policy.churn,
        shrink,
        policy.grow_gpus,
    )


class _Placed:
    """Counts of machines put on the offers that their selectors fit."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = offers

    def counts(self, stated: Iterable[tuple[Selector, int, str]]) -> tuple[list[int], tuple[str, ...]]:
        """Instances by offer; what fits several goes to the first of them, what fits none is named."""
        entries = [entry for entry in stated if entry[1]]
        found = [0] * len(self._offers)
        lost = []
        for (selector, count, what), members in zip(
            entries, matching(self._offers, [entry[0] for entry in entries]), strict=True
        ):
            if members:
                found[min(members, key=lambda number: self._offers[number].key)] += count
            else:
                lost.append(f"{what}: no usable price for {count} of {selector.text}")
        return found, tuple(lost)


class _Chosen:
    """The offers of the problem, and what is said of them in their numbers."""

    def __init__(self, all_offers: Sequence[Offer], numbers: Sequence[int]) -> None:
        ordered = sorted(numbers, key=lambda number: all_offers[number].key)
        self.all_offers = all_offers
        self.offers = tuple(all_offers[number] for number in ordered)
        self.position = {number: place for place, number in enumerate(ordered)}
        self._by_key = {offer.key: place for place, offer in enumerate(self.offers)}

    def supply_caps(self, available: Availability) -> Iterable[Cap]:
        for limit in available.limits:
            pairs = [
                (self._by_key[available.offers[number].key], weight)
                for number, weight in zip(limit.members, limit.weights, strict=True)
                if available.offers[number].key in self._by_key
            ]
            if pairs:
                members, weights = zip(*sorted(pairs), strict=True)
                yield Cap(CapKind.SUPPLY, limit.sentence, members, weights, limit.count)

    def quota_caps(self, inputs: PoolInputs) -> Iterable[Cap]:
        quotas = sorted(inputs.quotas)
        fitting = iter(matching(self.offers, [one for quota in quotas for one in quota.selectors]))
        for quota in quotas:
            members = sorted({number for _ in quota.selectors for number in next(fitting)})
            if not members:
                continue
            left = max(0, math.floor(quota.limit - quota.in_use))
            weights = tuple(_weight(self.offers[number], quota.unit) for number in members)
            yield Cap(CapKind.QUOTA, quota.name, tuple(members), weights, left, quota.unit)

    def domains(self, inputs: PoolInputs, policy: Policy) -> tuple[Domain, ...]:
        """The operator's own where a table names them, else one for each region, zone or provider."""
        if inputs.domains:
            named = []
            for domain in sorted(inputs.domains):
                members = {number for part in matching(self.offers, domain.selectors) for number in part}
                named.append(Domain(domain.name, frozenset(members)))
            return tuple(domain for domain in named if domain.members)
        found: dict[str, set[int]] = {}
        for number, offer in enumerate(self.offers):
            found.setdefault(_domain(offer, policy.domain), set()).add(number)
        return tuple(Domain(label, frozenset(members)) for label, members in sorted(found.items()))

    def shares(self, policy: Policy) -> tuple[Share, ...]:
        found: dict[str, set[int]] = {}
        for number, offer in enumerate(self.offers if policy.largest_share < 1 else ()):
            found.setdefault(offer.provider, set()).add(number)
        return tuple(
            Share(name, frozenset(members), policy.largest_share) for name, members in sorted(found.items())
        )


def _domain(offer: Offer, kind: str) -> str:
    if kind == "provider":
        return offer.provider
    place = (offer.provider, offer.region, offer.zone if kind == "zone" else "")
    return " ".join(part for part in place if part)


def _weight(offer: Offer, unit: str) -> int:
    if unit == "gpus":
        return offer.gpus_per_instance
    if unit == "vcpus" and offer.vcpus:
        return math.ceil(offer.vcpus)
    return 1
