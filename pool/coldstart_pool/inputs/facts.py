"""What is known of the operator's own fleet: machines held, quota, commitments, domains, snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from coldstart_pool.inputs.places import Selector


@dataclass(frozen=True, order=True)
class Holding:
    """Machines in the pool now: `instances` idle ones and `busy` ones beside them."""

    selector: Selector
    instances: int
    busy: int
    line: int


@dataclass(frozen=True, order=True)
class QuotaGroup:
    """At most `limit` of `unit` (`gpus`, `instances` or `vcpus`) over all offers that fit a selector.

    Selectors that state no market fit offers of every market: a provider's spot quota states `spot`.
    """

    name: str
    unit: str
    limit: Fraction
    in_use: Fraction
    selectors: tuple[Selector, ...]
    lines: tuple[int, ...]


@dataclass(frozen=True, order=True)
class Commitment:
    """At least `instances` are paid for, used or not; their price is sunk."""

    selector: Selector
    instances: int
    source: str
    lines: tuple[int, ...]


@dataclass(frozen=True, order=True)
class Domain:
    """A set of offers that can be lost together."""

    name: str
    selectors: tuple[Selector, ...]
    lines: tuple[int, ...]


@dataclass(frozen=True, order=True)
class PaidPrice:
    """US dollars that one instance and hour cost by contract, from the newest charge period."""

    selector: Selector
    price: Fraction
    lines: tuple[int, ...]


@dataclass(frozen=True, order=True)
class SnapshotVariant:
    """A snapshot is there for this GPU, driver and CPU level; an empty field is not bound to any."""

    snapshot: str
    gpu: str
    driver: str
    cpu_level: str


@dataclass(frozen=True, order=True)
class MachineFacts:
    """Driver and CPU level of the machines that fit."""

    selector: Selector
    driver: str
    cpu_level: str
    line: int
