"""All tables of a plan together: which files, and what they hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from coldstart_pool.inputs.demand_values import Demand, DemandClass
from coldstart_pool.inputs.facts import Commitment, Domain, Holding, PaidPrice, QuotaGroup, SnapshotVariant
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Finding, TableReport
from coldstart_pool.inputs.observations import ObservedSupply
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.rules import ReadingRules


@dataclass(frozen=True)
class TableFiles:
    """The files of each table, in the order given, and the rules to read them by."""

    files: tuple[tuple[TableKind, Path], ...]
    rules: ReadingRules = field(default_factory=ReadingRules)
    skip_invalid: bool = False

    def of(self, kind: TableKind) -> tuple[Path, ...]:
        return tuple(path for one, path in self.files if one is kind)


@dataclass(frozen=True)
class PoolInputs:
    """What the tables hold. Offers carry what was paid instead of the list price, where that is known."""

    offers: tuple[Offer, ...] = ()
    supply: ObservedSupply = field(default_factory=ObservedSupply)
    demand: Demand = field(default_factory=Demand)
    classes: tuple[DemandClass, ...] = ()
    holdings: tuple[Holding, ...] = ()
    quotas: tuple[QuotaGroup, ...] = ()
    commitments: tuple[Commitment, ...] = ()
    domains: tuple[Domain, ...] = ()
    snapshots: tuple[SnapshotVariant, ...] = ()
    paid: tuple[PaidPrice, ...] = ()
    reports: tuple[TableReport, ...] = ()
    """One for each file."""
    contradictions: tuple[Finding, ...] = ()
    """What the tables say against each other."""
