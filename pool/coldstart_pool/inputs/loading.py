"""All tables of a plan: each read, joined with the others, and what they say against each other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from coldstart_cli.errors import ColdstartError, DataError
from coldstart_pool.inputs import fleet_tables
from coldstart_pool.inputs.contradictions import contradictions
from coldstart_pool.inputs.demand_tables import read_demand, refuse_bad_demand
from coldstart_pool.inputs.demand_values import Demand, DemandTrace
from coldstart_pool.inputs.facts import MachineFacts, PaidPrice
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Finding, Severity, TableReport
from coldstart_pool.inputs.observations import Attempt, Observation, ObservedSupply
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.paid import read_paid
from coldstart_pool.inputs.places import Selector, matching
from coldstart_pool.inputs.pool_inputs import PoolInputs, TableFiles
from coldstart_pool.inputs.prices import load_offers
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.snapshots import read_snapshots
from coldstart_pool.inputs.supply_tables import read_supply

T = TypeVar("T")
_SHOWN = 10


@dataclass(frozen=True)
class ReadTables:
    """What could be read, and the tables that could not, with why."""

    inputs: PoolInputs
    unreadable: tuple[tuple[TableKind, Path, ColdstartError], ...] = ()


def load_tables(tables: TableFiles) -> PoolInputs:
    """Everything the tables hold; refused where one cannot be read, holds invalid rows, or bad demand."""
    read = read_tables(tables)
    for _, _, error in read.unreadable:
        raise error
    inputs = read.inputs
    findings = [finding for report in inputs.reports for finding in report.findings]
    for report in inputs.reports:
        if report.table == TableKind.DEMAND:
            refuse_bad_demand(report, inputs.demand)
    invalid = [one for one in (*findings, *inputs.contradictions) if one.severity is Severity.INVALID]
    if invalid and not tables.skip_invalid:
        shown = "; ".join(finding.sentence() for finding in invalid[:_SHOWN])
        more = f"; and {len(invalid) - _SHOWN} more" if len(invalid) > _SHOWN else ""
        raise DataError(
            shown + more, hint="correct these lines, or pass `--skip-invalid` to go on without them"
        )
    return inputs


def read_tables(tables: TableFiles) -> ReadTables:
    """Read every table, however bad the others are."""
    with _no_collection():
        return _read_tables(tables)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Rows make no cycles, and looking for some takes more than half of the time of a long table."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_tables(tables: TableFiles) -> ReadTables:
    files = _Files(tables)
    classes = files.read(TableKind.CLASSES, fleet_tables.read_classes)
    prices = files.read(TableKind.PRICES, load_offers)
    paid = files.read(TableKind.PAID, read_paid)
    machines = files.read(TableKind.MACHINES, fleet_tables.read_machines)
    supply = files.read(TableKind.SUPPLY, read_supply)
    known_classes = tuple(entry for _, entries in classes for entry in entries)
    demand = files.read(TableKind.DEMAND, lambda path, rules: read_demand(path, rules, known_classes))
    offers = _one_of_each(files, prices)
    paid_prices = tuple(price for _, one in paid for price in one.prices)
    offers = _with_paid(files, offers, paid_prices)
    offers = _with_facts(offers, [facts for _, entries in machines for facts in entries])
    inputs = PoolInputs(
        offers=tuple(offers),
        supply=_joined_supply(one for _, one in supply),
        demand=_joined_demand(files, demand),
        classes=known_classes,
        holdings=_all(files.read(TableKind.CURRENT, fleet_tables.read_holdings)),
        quotas=_all(files.read(TableKind.QUOTA, fleet_tables.read_quotas)),
        commitments=tuple(
            sorted(
                (
                    *(entry for _, one in paid for entry in one.commitments),
                    *_all(files.read(TableKind.COMMITMENTS, fleet_tables.read_commitments)),
                )
            )
        ),
        domains=_all(files.read(TableKind.DOMAINS, fleet_tables.read_domains)),
        snapshots=_all(files.read(TableKind.SNAPSHOTS, read_snapshots)),
        paid=paid_prices,
        reports=tuple(files.reports),
    )
    found = tuple(sorted((*files.findings, *contradictions(inputs, tables))))
    return ReadTables(replace(inputs, contradictions=found), tuple(files.unreadable))


@dataclass
class _Files:
    tables: TableFiles
    reports: list[TableReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unreadable: list[tuple[TableKind, Path, ColdstartError]] = field(default_factory=list)

    def read(
        self, kind: TableKind, read: Callable[[Path, ReadingRules], tuple[T, TableReport]]
    ) -> list[tuple[Path, T]]:
        found = []
        for path in self.tables.of(kind):
            try:
                value, report = read(path, self.tables.rules)
            except ColdstartError as error:
                self.unreadable.append((kind, path, error))
            else:
                self.reports.append(report)
                found.append((path, value))
        return found


def _all(read: list[tuple[Path, tuple[T, ...]]]) -> tuple[T, ...]:
    return tuple(entry for _, entries in read for entry in entries)


def _one_of_each(files: _Files, read: list[tuple[Path, tuple[Offer, ...]]]) -> list[Offer]:
    """Offers of several files; one that two files price differently is questioned."""
    if len(read) == 1:
        return list(read[0][1])
    by_key: dict[tuple[object, ...], list[tuple[Path, Offer]]] = {}
    for path, offers in read:
        for offer in offers:
            by_key.setdefault(offer.key, []).append((path, offer))
    kept = []
    for members in by_key.values():
        dearest = max((offer for _, offer in members), key=lambda offer: offer.price)
        if dearest.price > min(offer.price for _, offer in members):
            reason = f"another price of an offer than in {members[0][0]}"
            detail = f"{dearest.place} {dearest.instance_type} {dearest.market}"
            files.findings.append(Finding(str(members[-1][0]), 0, Severity.QUESTIONED, reason, detail))
            if not files.tables.rules.accept_suspicious:
                continue
        kept.append(dearest)
    return sorted(kept, key=lambda offer: offer.key)


def _with_paid(files: _Files, offers: list[Offer], paid: Iterable[PaidPrice]) -> list[Offer]:
    """The contracted price instead of the list price; the one that says most about the place wins."""
    prices = sorted(paid, key=lambda price: sum(map(bool, price.selector)))
    changed = dict(enumerate(offers))
    for price, numbers in zip(prices, matching(offers, [one.selector for one in prices]), strict=True):
        for number in numbers:
            changed[number] = replace(offers[number], price=price.price)
    count = sum(changed[number].price != offer.price for number, offer in enumerate(offers))
    if count:
        reason = f"{count} offers have their contracted price instead of the list price"
        files.findings.append(Finding(str(files.tables.of(TableKind.PAID)[0]), 0, Severity.NOTED, reason))
    return list(changed.values())


def _with_facts(offers: list[Offer], facts: list[MachineFacts]) -> list[Offer]:
    changed = list(offers)
    ordered = sorted(facts, key=lambda one: sum(map(bool, one.selector)))
    for one, numbers in zip(ordered, matching(offers, [entry.selector for entry in ordered]), strict=True):
        for number in numbers:
            offer = changed[number]
            changed[number] = replace(
                offer, driver=one.driver or offer.driver, cpu_level=one.cpu_level or offer.cpu_level
            )
    return changed


def _joined_supply(read: Iterable[ObservedSupply]) -> ObservedSupply:
    """Of one selector in several files the smallest count."""
    found: dict[Selector, Observation] = {}
    attempts: list[Attempt] = []
    for supply in read:
        attempts += supply.attempts
        for one in supply.observations:
            known = found.get(one.selector)
            if known is None or one.count < known.count:
                found[one.selector] = one
    return ObservedSupply(tuple(sorted(found.values())), tuple(sorted(attempts, key=attrgetter("order"))))


def _joined_demand(files: _Files, read: list[tuple[Path, Demand]]) -> Demand:
    """Targets of all files, or one trace of all of them; the two cannot be added."""
    targets = [target for _, demand in read for target in demand.targets]
    traces = [(path, demand.trace) for path, demand in read if demand.trace is not None]
    if targets and traces:
        reason = "targets in one demand table and a trace in another cannot be added"
        files.findings.append(Finding(str(traces[0][0]), 0, Severity.INVALID, reason))
        return Demand()
    seen: set[tuple[str, str]] = set()
    for target in targets:
        if (target.application, target.gpu) in seen:
            reason = f"two demand tables have targets of {target.application or target.gpu}"
            files.findings.append(Finding(str(read[-1][0]), 0, Severity.INVALID, reason))
        seen.add((target.application, target.gpu))
    return Demand(tuple(sorted(targets)), _joined_trace(files, traces))


def _joined_trace(files: _Files, traces: list[tuple[Path, DemandTrace]]) -> DemandTrace | None:
    if not traces:
        return None
    _, first = traces[0]
    for path, trace in traces[1:]:
        shared = {entry[0] for entry in first.running_at_start} & {
            entry[0] for entry in trace.running_at_start
        }
        reason = ""
        if trace.since_1970 != first.since_1970:
            reason = f"times count from another start than in {traces[0][0]}"
        elif shared:
            # counts at the start of a second file are no rises, and its first rise would be lost
            reason = f"samples of {min(shared)} are in two tables: join them into one"
        if reason:
            files.findings.append(Finding(str(path), 0, Severity.INVALID, reason))
        first = replace(
            first,
            events=tuple(sorted((*first.events, *trace.events), key=attrgetter("order"))),
            first_seconds=min(first.first_seconds, trace.first_seconds),
            last_seconds=max(first.last_seconds, trace.last_seconds),
            has_stops=first.has_stops and trace.has_stops,
            running_at_start=tuple(sorted((*first.running_at_start, *trace.running_at_start))),
            sampled_every_seconds=max(
                filter(None, (first.sampled_every_seconds, trace.sampled_every_seconds)), default=None
            ),
        )
    return first
