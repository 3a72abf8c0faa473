"""What each class of demand wants of a machine, and what a machine is worth to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from coldstart_pool.inputs.demand_values import DemandClass
from coldstart_pool.inputs.facts import SnapshotVariant
from coldstart_pool.inputs.offers import STANDBY, Offer
from coldstart_pool.inputs.snapshots import restorable
from coldstart_pool.planning.policy import Policy


@dataclass(frozen=True)
class Wants:
    """One class: GPUs it accepts (the one it is sized for first), where, how many on one host."""

    name: str
    gpus: tuple[str, ...]
    gpus_per_replica: int = 1
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    snapshot: str = ""
    """Empty where restoring does not matter: no inventory was given."""

    @property
    def gpu(self) -> str:
        return self.gpus[0]

    def fits(self, offer: Offer) -> bool:
        """GPU, place and size; restorability apart."""
        return (
            offer.gpu in self.gpus
            and offer.market != STANDBY
            and offer.gpus_per_instance >= self.gpus_per_replica
            and (not self.providers or offer.provider in self.providers)
            and (not self.regions or offer.region in self.regions)
        )


def wants_of(name: str, gpu: str, gpus_per_replica: int, known: DemandClass | None) -> Wants:
    """A class as the demand names it, with what the table of classes adds."""
    if known is None:
        return Wants(name, (gpu,), gpus_per_replica)
    others = tuple(other for other in known.gpus if other != gpu)
    return Wants(name, (gpu, *others), gpus_per_replica, known.providers, known.regions, known.snapshot)


class Worth:
    """GPUs that one instance is worth to a class: whole gangs, times speed, times what comes up healthy."""

    def __init__(self, policy: Policy, snapshots: tuple[SnapshotVariant, ...]) -> None:
        self._policy = policy
        self._snapshots = snapshots
        self.not_restorable: dict[str, set[int]] = {}
        """By class, offers that would fit but whose machines cannot restore its snapshot, or may not."""

    def of(self, wants: Wants, offers: Sequence[Offer]) -> dict[int, Fraction]:
        found = {}
        for number, offer in enumerate(offers):
            if not wants.fits(offer):
                continue
            if wants.snapshot and restorable(self._snapshots, wants.snapshot, offer) is not True:
                self.not_restorable.setdefault(wants.name, set()).add(number)
                continue
            found[number] = self._gpus(wants, offer)
        return found

    def _gpus(self, wants: Wants, offer: Offer) -> Fraction:
        whole = offer.gpus_per_instance // wants.gpus_per_replica * wants.gpus_per_replica
        return whole * self._speed(offer) * self._policy.good_share

    def _speed(self, offer: Offer) -> Fraction:
        """The slowest that was said of it: one GPU can be half as fast on one cloud as on another."""
        stated = (
            speed.share
            for speed in self._policy.speeds
            if speed.provider in {"", offer.provider} and speed.gpu in {"", offer.gpu}
        )
        return min(stated, default=Fraction(1))


def joined(parts: Iterable[dict[int, Fraction]]) -> tuple[tuple[int, Fraction], ...]:
    """What offers are worth to a union of classes: each as little as it is to any class that can use it."""
    least: dict[int, Fraction] = {}
    for part in parts:
        for number, value in part.items():
            least[number] = min(least.get(number, value), value)
    return tuple(sorted(least.items()))
