"""What is to be planned, in exact numbers: offers in a fixed order, demand, caps, the operator's will."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.offers import SPOT, Offer

Counts = tuple[int, ...]
"""Whole instances of each offer, in the order of `Problem.offers`."""
Members = tuple[int, ...]
ONE = Fraction(1)
# beyond this a number is a slip, and the solver's tolerances mean nothing any more
_LARGEST = 10**12


class CapKind(StrEnum):
    """What keeps an operator from having more of a machine."""

    SUPPLY = "supply"
    QUOTA = "quota"


@dataclass(frozen=True)
class Group:
    """One class of demand, or classes that share machines, and what its arriving scale-ups need."""

    label: str
    classes: tuple[str, ...]
    usable: tuple[tuple[int, Fraction], ...]
    """Offers that can serve every one of these classes or some, with the GPUs that one instance is worth."""
    idle_gpus: Fraction
    """Healthy idle GPUs to hold: the quantile of scale-ups inside a lead time, or a stated target."""
    peak_gpus: Fraction = Fraction(0)
    """GPUs in use at the peak, for the cap on utilisation; 0 for no cap."""
    busy_gpus: Fraction = Fraction(0)
    """Of those, GPUs that replicas hold apart from the buffer."""

    def most_at_peak(self, utilisation: Fraction) -> Fraction:
        """GPUs the buffer must hold for the peak to stay below the utilisation."""
        return max(Fraction(0), self.peak_gpus / utilisation - self.busy_gpus)


@dataclass(frozen=True)
class Cap:
    """At most `count` over some offers, each instance taking its weight; what is already held counts too."""

    kind: CapKind
    label: str
    members: Members
    weights: tuple[int, ...]
    count: int
    unit: str = "instances"


@dataclass(frozen=True)
class Domain:
    """Offers that fail together."""

    label: str
    members: frozenset[int]


@dataclass(frozen=True)
class Share:
    """At most this share of the pool's GPUs in some offers."""

    label: str
    members: frozenset[int]
    most: Fraction


@dataclass(frozen=True)
class Scenario:
    """What one moment, seen over all places together, would leave of each supply unit."""

    label: str
    weight: Fraction
    supply: tuple[Fraction, ...]
    """Of each unit, the share that is there (0 to 1)."""
    dead_domain: int | None = None
    """A domain of which nothing is there, whatever its market."""


@dataclass(frozen=True)
class Will:
    """What the operator decides: levels, prices, limits. All exact; None where no limit is set."""

    utilisation: Fraction = ONE
    """Most of the GPUs in use at the peak."""
    survive: Fraction = Fraction(0)
    """Share of each need that must be left when any one domain is lost."""
    floor: Fraction = ONE
    """Share of each need that must not be spot."""
    scenario_price: Fraction = Fraction(20)
    """US dollars for a GPU-hour that a scenario leaves missing."""
    budget: Fraction | None = None
    """US dollars an hour, commitments included."""
    churn: Fraction = Fraction(1, 20)
    """Price of starting or stopping an instance, as a share of its hourly price."""
    shrink_gpus: int | None = None
    """Most GPUs given back in one interval."""
    grow_gpus: int | None = None
    """Most GPUs added in one interval."""


@dataclass(frozen=True)
class Problem:
    """All of it; tuples run parallel to `offers`, and members are numbers of offers."""

    offers: tuple[Offer, ...]
    groups: tuple[Group, ...]
    caps: tuple[Cap, ...]
    will: Will = field(default_factory=Will)
    domains: tuple[Domain, ...] = ()
    shares: tuple[Share, ...] = ()
    held: Counts = ()
    """Instances of the pool as it is; empty when there is none to be calm about."""
    committed: Counts = ()
    """Instances that are paid for anyway and stay."""
    units: tuple[int | None, ...] = ()
    """For each offer the supply unit whose scenarios it follows; None for what does not vanish."""
    scenarios: tuple[Scenario, ...] = ()

    @cached_property
    def floors(self) -> Counts:
        """The fewest instances of each offer."""
        return self.committed or (0,) * len(self.offers)

    @cached_property
    def current(self) -> Counts:
        """What is there now: held or committed."""
        held = self.held or (0,) * len(self.offers)
        return tuple(max(pair) for pair in zip(held, self.floors, strict=True))

    def is_spot(self, number: int) -> bool:
        return self.offers[number].market == SPOT

    def cost(self, counts: Sequence[int]) -> Fraction:
        """US dollars an hour, commitments included."""
        pairs = zip(self.offers, counts, strict=True)
        return sum((offer.price * count for offer, count in pairs), Fraction(0))

    def gpus(self, counts: Sequence[int]) -> int:
        return sum(offer.gpus_per_instance * count for offer, count in zip(self.offers, counts, strict=True))

    def check(self) -> None:
        """Refuse numbers no model may see: a NaN there makes GLOP 9.15 answer OPTIMAL and buy nothing."""
        for what, number, lowest in self._numbers():
            if not lowest <= number <= _LARGEST:
                raise DataError(f"{what} is out of range: {float(number):g}")
        for offer in self.offers:
            if offer.price <= 0 or offer.gpus_per_instance < 1:
                raise DataError(f"an offer without price or GPUs reached the planner: {offer.instance_type}")
        if len({offer.key for offer in self.offers}) != len(self.offers):
            raise DataError("two offers are the same: merge their rows")
        self._check_commitments()
        self._check_domains()

    def _numbers(self) -> Iterator[tuple[str, Fraction | int, int]]:
        yield from ((f"price of {offer.instance_type}", offer.price, 0) for offer in self.offers)
        for group in self.groups:
            yield f"need of {group.label}", group.idle_gpus, 0
            yield f"peak of {group.label}", group.peak_gpus, 0
            yield f"GPUs in use of {group.label}", group.busy_gpus, 0
            yield from ((f"worth of an instance for {group.label}", worth, 0) for _, worth in group.usable)
        yield from ((f"{cap.kind} of {cap.label}", cap.count, 0) for cap in self.caps)
        yield from ((f"weight in {cap.label}", weight, 1) for cap in self.caps for weight in cap.weights)
        yield from ((f"weight of scenario {entry.label}", entry.weight, 0) for entry in self.scenarios)
        yield from (("a count of the current pool", count, 0) for count in self.held)
        yield from (("a count of the commitments", count, 0) for count in self.committed)
        if self.will.budget is not None:
            yield "budget", self.will.budget, 0

    def _check_commitments(self) -> None:
        for cap in self.caps:
            taken = weighted(cap, self.floors)
            if cap.kind is CapKind.QUOTA and taken > cap.count:
                raise DataError(
                    f"commitments contradict a quota: {cap.label} allows {cap.count} {cap.unit}, "
                    f"{taken} are committed",
                    hint="correct the commitment or the quota",
                )
        paid = self.cost(self.floors)
        if self.will.budget is not None and paid > self.will.budget:
            raise DataError(
                f"commitments contradict the budget: they cost {float(paid):.2f} USD/h, "
                f"the budget is {float(self.will.budget):.2f} USD/h",
                hint="raise `--budget`, which counts commitments",
            )

    def _check_domains(self) -> None:
        if self.will.survive <= 0:
            return
        everything = frozenset(range(len(self.offers)))
        for domain in self.domains:
            if everything and domain.members == everything:
                raise DataError(
                    f"the failure domain {domain.label} holds every offer: nothing could survive its loss",
                    hint="choose smaller domains, or plan without `--survive`",
                )


def weighted(cap: Cap, counts: Sequence[int]) -> int:
    """What these instances take of a cap, in its unit."""
    return sum(weight * counts[number] for number, weight in zip(cap.members, cap.weights, strict=True))
