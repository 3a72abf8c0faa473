"""Why a class is short, in sentences an operator can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from coldstart_cli.errors import near_matches_hint
from coldstart_pool.model import relaxation
from coldstart_pool.offers import Offer
from coldstart_pool.problem import Counts, Problem
from coldstart_pool.supply import Availability


def binding_limits(
    problem: Problem, counts: Counts, offers: Sequence[Offer], available: Availability
) -> Mapping[str, tuple[str, ...]]:
    """For each class that is short, the sentences that say what binds."""
    short = {gpu: missing for gpu, missing in problem.missing(counts).items() if missing}
    if not short:
        return {}
    unshared = relaxation(replace(problem, largest_share=Fraction(1)))
    share_binds = unshared.shortfall < sum(short.values()) - 1e-6
    return {
        gpu: (
            *_supply_sentences(problem, counts, gpu),
            *(_share_sentences(problem, counts) if share_binds else ()),
            *_price_sentences(gpu, offers, available),
            *_target_sentence(problem, counts, gpu),
        )
        for gpu in short
    }


def _supply_sentences(problem: Problem, counts: Counts, gpu: str) -> list[str]:
    members = set(problem.members[gpu])
    found: dict[frozenset[int], str] = {}
    for limit in problem.limits:
        own = members.intersection(limit.members)
        if not own:
            continue
        smallest = min(
            weight for number, weight in zip(limit.members, limit.weights, strict=True) if number in own
        )
        if problem.taken(limit, counts) + smallest > limit.count:
            # a limit over both markets says more than the one over each of them
            found = {other: text for other, text in found.items() if not other < frozenset(limit.members)}
            found.setdefault(frozenset(limit.members), f"supply: {limit.sentence}, all of them planned")
    return sorted(found.values())


def _share_sentences(problem: Problem, counts: Counts) -> list[str]:
    held = {provider: gpus for provider, gpus in problem.by_provider(counts).items() if gpus}
    total = sum(held.values())
    share = float(problem.largest_share)
    if not total:
        return [f"share: no mix of whole machines keeps every provider at or below {share:.0%} of the pool"]
    return [
        f"share: {provider} holds {gpus} of {total} GPUs, and one machine more would pass {share:.0%}"
        for provider, gpus in sorted(held.items())
        if _at_share(problem, provider, gpus, total)
    ] or [f"share: no other mix of whole machines keeps every provider at or below {share:.0%}"]


def _at_share(problem: Problem, provider: str, gpus: int, total: int) -> bool:
    sizes = [offer.gpus_per_instance for offer in problem.offers if offer.provider == provider]
    return gpus + min(sizes) > problem.largest_share * (total + min(sizes))


def _price_sentences(gpu: str, offers: Sequence[Offer], available: Availability) -> list[str]:
    priced = [offer for offer in offers if offer.gpu == gpu]
    if not priced:
        hint = near_matches_hint(gpu, {offer.gpu for offer in offers})
        return [f"price: no usable price row offers {gpu}" + (f"; {hint}" if hint else "")]
    unobserved = sum(offer.gpu == gpu for offer in available.unobserved)
    none_obtained = sum(
        offer.gpu == gpu and not count
        for offer, count in zip(available.offers, available.obtainable, strict=True)
    )
    sentences = []
    if unobserved:
        sentences.append(f"supply: {unobserved} of {len(priced)} {gpu} offers were never observed")
    if none_obtained:
        sentences.append(f"supply: of {none_obtained} of {len(priced)} {gpu} offers nothing was obtainable")
    return sentences


def _target_sentence(problem: Problem, counts: Counts, gpu: str) -> list[str]:
    planned = problem.gpus(counts)[gpu]
    target = next(need.target_gpus for need in problem.needs if need.gpu == gpu)
    if planned < target:
        return []
    return [
        f"utilisation: the target of {float(target):g} GPUs itself is met, only the reserve above it is not"
    ]
