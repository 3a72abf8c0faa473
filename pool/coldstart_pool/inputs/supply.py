"""What was really obtainable, as limits on offers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coldstart_pool.inputs.observations import Observation
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.places import matching


@dataclass(frozen=True)
class Limit:
    """At most `count` of `unit` over some offers, given by their numbers."""

    members: tuple[int, ...]
    weights: tuple[int, ...]
    count: int
    sentence: str


@dataclass(frozen=True)
class Availability:
    """Offers with at least one observation, the limits on them, and how many had none."""

    offers: tuple[Offer, ...]
    limits: tuple[Limit, ...]
    obtainable: tuple[int, ...]
    unobserved: tuple[Offer, ...]
    unmatched_lines: tuple[int, ...]
    """Lines of observations that fit no offer."""


def availability(offers: Sequence[Offer], observations: Iterable[Observation]) -> Availability:
    """Join offers with observations; one without any counts as not available."""
    observed = list(observations)
    fitting = matching(offers, [observation.selector for observation in observed])
    seen = sorted({number for members in fitting for number in members})
    renumbered = {number: new for new, number in enumerate(seen)}
    kept = tuple(offers[number] for number in seen)
    limits = [
        _limit(kept, tuple(renumbered[number] for number in members), observation)
        for observation, members in zip(observed, fitting, strict=True)
        if members
    ]
    alone = _alone(kept, limits)
    limits += _shared_by_markets(kept, alone)
    return Availability(
        kept,
        tuple(limits),
        tuple(alone),
        tuple(offer for number, offer in enumerate(offers) if number not in renumbered),
        tuple(
            sorted(
                line
                for entry, members in zip(observed, fitting, strict=True)
                if not members
                for line in entry.lines
            )
        ),
    )


def _limit(offers: Sequence[Offer], members: tuple[int, ...], observation: Observation) -> Limit:
    weights = tuple(offers[number].gpus_per_instance if observation.of_gpus else 1 for number in members)
    provider, region, zone, _, gpu, _, market = observation.selector
    what = gpu if observation.of_gpus else offers[members[0]].instance_type
    place = " ".join(part for part in (provider, region, zone) if part)
    unit = "GPUs" if observation.of_gpus else "instances"
    label = f"{place} {what}" + (f" {market}" if market else "")
    return Limit(members, weights, observation.count, f"{label}: {observation.count} {unit} were obtainable")


def _alone(offers: Sequence[Offer], limits: Iterable[Limit]) -> list[int]:
    """The most instances of each offer when nothing else is taken."""
    most = [-1] * len(offers)
    for limit in limits:
        for number, weight in zip(limit.members, limit.weights, strict=True):
            count = limit.count // weight
            most[number] = count if most[number] < 0 else min(most[number], count)
    return most


def _shared_by_markets(offers: Sequence[Offer], alone: Sequence[int]) -> list[Limit]:
    """Spot and on-demand are the same machines: together no more than the larger observation of the two."""
    machines: dict[tuple[object, ...], list[int]] = {}
    for number, offer in enumerate(offers):
        machines.setdefault(offer.machine, []).append(number)
    limits = []
    for members in machines.values():
        if len(members) > 1:
            count = max(alone[number] for number in members)
            offer = offers[members[0]]
            sentence = (
                f"{offer.place} {offer.instance_type}: {count} instances were obtainable, "
                "spot and on-demand together"
            )
            limits.append(Limit(tuple(members), (1,) * len(members), count, sentence))
    return limits
