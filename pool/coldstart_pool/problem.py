"""What is to be solved, in exact numbers, and the check of an integer answer against every constraint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from coldstart_pool.offers import Offer
from coldstart_pool.supply import Limit

Counts = tuple[int, ...]


@dataclass(frozen=True)
class Need:
    """GPUs to hold of one class: the target divided by the peak utilisation, rounded up."""

    gpu: str
    target_gpus: Fraction
    required_gpus: int


@dataclass(frozen=True)
class Problem:
    """Offers in their fixed order, limits on them by number, a need for each class, a share for providers."""

    offers: tuple[Offer, ...]
    limits: tuple[Limit, ...]
    needs: tuple[Need, ...]
    largest_share: Fraction

    @cached_property
    def members(self) -> dict[str, tuple[int, ...]]:
        """Offer numbers by class."""
        found: dict[str, list[int]] = {need.gpu: [] for need in self.needs}
        for number, offer in enumerate(self.offers):
            found[offer.gpu].append(number)
        return {gpu: tuple(numbers) for gpu, numbers in found.items()}

    @cached_property
    def ceilings(self) -> dict[str, int]:
        """The most GPUs to hold of a class: a machine may overshoot, but none is bought to dilute a share."""
        return {
            need.gpu: need.required_gpus
            + max((self.offers[number].gpus_per_instance for number in self.members[need.gpu]), default=1)
            - 1
            for need in self.needs
        }

    @cached_property
    def limits_of(self) -> tuple[tuple[tuple[Limit, int], ...], ...]:
        """For each offer its limits, each with the weight of one instance."""
        found: list[list[tuple[Limit, int]]] = [[] for _ in self.offers]
        for limit in self.limits:
            for number, weight in zip(limit.members, limit.weights, strict=True):
                found[number].append((limit, weight))
        return tuple(tuple(limits) for limits in found)

    def gpus(self, counts: Sequence[int]) -> dict[str, int]:
        """Planned GPUs by class."""
        return {
            gpu: sum(self.offers[number].gpus_per_instance * counts[number] for number in numbers)
            for gpu, numbers in self.members.items()
        }

    def missing(self, counts: Sequence[int]) -> dict[str, int]:
        planned = self.gpus(counts)
        return {need.gpu: max(0, need.required_gpus - planned[need.gpu]) for need in self.needs}

    def cost(self, counts: Sequence[int]) -> Fraction:
        return sum(
            (offer.price * count for offer, count in zip(self.offers, counts, strict=True)), Fraction(0)
        )

    def by_provider(self, counts: Sequence[int]) -> dict[str, int]:
        """Planned GPUs by provider."""
        held: dict[str, int] = {}
        for offer, count in zip(self.offers, counts, strict=True):
            held[offer.provider] = held.get(offer.provider, 0) + offer.gpus_per_instance * count
        return held

    def taken(self, limit: Limit, counts: Sequence[int]) -> int:
        return sum(
            weight * counts[number] for number, weight in zip(limit.members, limit.weights, strict=True)
        )

    def violations(self, counts: Sequence[int]) -> list[str]:
        """Every broken constraint but coverage, in exact arithmetic."""
        broken = [f"negative count of {self.offers[n].instance_type}" for n, c in enumerate(counts) if c < 0]
        broken += [limit.sentence for limit in self.limits if self.taken(limit, counts) > limit.count]
        broken += [
            f"{planned} GPUs of {gpu} are more than one machine above the need"
            for gpu, planned in self.gpus(counts).items()
            if planned > self.ceilings[gpu]
        ]
        return broken + self.share_violations(counts)

    def share_violations(self, counts: Sequence[int]) -> list[str]:
        held = self.by_provider(counts)
        total = sum(held.values())
        return [
            f"{provider} holds {gpus} of {total} GPUs"
            for provider, gpus in held.items()
            if gpus > self.largest_share * total
        ]
