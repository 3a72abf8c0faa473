"""The small tables about the operator's own fleet: machines held, quota, commitments, domains, classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from datetime import UTC
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from coldstart_pool.inputs.demand_values import DemandClass
from coldstart_pool.inputs.facts import Commitment, Domain, Holding, MachineFacts, QuotaGroup
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Severity, TableReport
from coldstart_pool.inputs.places import Selector
from coldstart_pool.inputs.rows import RowReader, UnusableRow
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.tables import Row, read_table
from coldstart_pool.inputs.times import Clock, age_days

T = TypeVar("T")
_QUOTA_UNITS = {
    **dict.fromkeys(("", "gpu", "gpus", "accelerators"), "gpus"),
    **dict.fromkeys(("instance", "instances", "machines", "vms", "hosts"), "instances"),
    **dict.fromkeys(("vcpu", "vcpus", "cpu", "cpus", "cores"), "vcpus"),
}


def read_holdings(path: Path, rules: ReadingRules) -> tuple[tuple[Holding, ...], TableReport]:
    """Machines in the pool now."""
    rows = _open(path, TableKind.CURRENT, rules, "provider", "instance_type|gpu", "instances|busy")

    def holding(row: Row) -> Holding:
        selector = _machine(rows, row)
        idle, busy = (rows.machines(row, field, selector) for field in ("instances", "busy"))
        return Holding(selector, idle, busy, row.line)

    held = _distinct(rows, holding, lambda one: one.selector, lambda one: (one.instances, one.busy))
    return tuple(sorted(held)), rows.report({one.line for one in held} | _repeats(rows))


def read_commitments(path: Path, rules: ReadingRules) -> tuple[tuple[Commitment, ...], TableReport]:
    """Machines that are paid for; what has ended is refused."""
    rows = _open(path, TableKind.COMMITMENTS, rules, "provider", "instance_type|gpu", "instances")
    clock = Clock((row.text("until") for row in rows.table.rows), rules.time_zone or UTC, dates=True)

    def commitment(row: Row) -> Commitment:
        if (until := row.text("until")) and age_days(clock.seconds(until), rules.now) > 0:
            raise UnusableRow(Severity.REFUSED, "the commitment has ended", f"`{until}`")
        selector = _machine(rows, row)
        if (count := rows.machines(row, "instances", selector)) == 0:
            raise UnusableRow(Severity.INVALID, "a commitment to nothing")
        return Commitment(selector, count, f"{path}:{row.line}", (row.line,))

    found = _distinct(rows, commitment, lambda one: one.selector, lambda one: one.instances)
    return tuple(sorted(found)), rows.report({line for one in found for line in one.lines} | _repeats(rows))


def read_quotas(path: Path, rules: ReadingRules) -> tuple[tuple[QuotaGroup, ...], TableReport]:
    """Quotas by group: rows of one group name share one limit, a row without a group is one of its own."""
    rows = _open(path, TableKind.QUOTA, rules, "provider", "limit", numeric=("limit", "in_use"))

    in_brackets = (_QUOTA_UNITS.get(word) for word in rows.table.unit("limit").brackets)
    headed = next(filter(None, in_brackets), None)

    def quota(row: Row) -> tuple[str, str, Fraction, Fraction, Selector, int]:
        unit = _QUOTA_UNITS.get(row.text("unit").lower().rstrip("."))
        if headed and row.text("unit") and unit != headed:
            raise UnusableRow(
                Severity.REFUSED,
                f"the heading counts {headed}, the row something else",
                f"`{row.text('unit')}`",
            )
        unit = headed or unit
        if unit is None:
            raise UnusableRow(
                Severity.REFUSED, "a quota counts gpus, instances or vcpus", f"`{row.text('unit')}`"
            )
        limit = rows.number(row, "limit")
        if limit is None:
            raise UnusableRow(Severity.INVALID, "no limit")
        in_use = rows.number(row, "in_use") or Fraction(0)
        if in_use > limit:
            rows.doubt(row.line, "more is in use than the quota allows")
        selector = rows.selector(row, needs_machine=False)
        if not selector.provider:
            raise UnusableRow(Severity.REFUSED, "no provider")
        return row.text("group") or f"{selector.text} {unit}", unit, limit, in_use, selector, row.line

    read = _distinct(rows, quota, lambda one: (one[0], one[4]), lambda one: one[1:4])
    groups: dict[str, list[tuple[str, str, Fraction, Fraction, Selector, int]]] = {}
    for entry in read:
        first = groups.setdefault(entry[0], [entry])[0]
        if entry[1:4] != first[1:4]:
            rows.find(
                entry[5], Severity.INVALID, f"quota group `{entry[0]}` has another limit in line {first[5]}"
            )
        elif entry is not first:
            groups[entry[0]].append(entry)
    found = tuple(
        QuotaGroup(
            name,
            *members[0][1:4],
            tuple(sorted(member[4] for member in members)),
            tuple(sorted(member[5] for member in members)),
        )
        for name, members in sorted(groups.items())
    )
    return found, rows.report({line for group in found for line in group.lines} | _repeats(rows))


def read_domains(path: Path, rules: ReadingRules) -> tuple[tuple[Domain, ...], TableReport]:
    """Failure domains: all rows of one label together."""
    rows = _open(path, TableKind.DOMAINS, rules, "domain", "provider|region|zone|instance_type|gpu")
    found: dict[str, list[tuple[Selector, int]]] = {}

    def member(row: Row) -> tuple[str, Selector]:
        if not (name := row.text("domain")):
            raise UnusableRow(Severity.REFUSED, "no domain")
        selector = rows.selector(row, needs_machine=False)
        if not any(selector):
            raise UnusableRow(
                Severity.INVALID, "a domain that is everything: its loss leaves nothing to plan"
            )
        return name, selector

    for row, (name, selector) in rows.values(member):
        found.setdefault(name, []).append((selector, row.line))
    domains = tuple(
        Domain(name, tuple(sorted({one for one, _ in members})), tuple(line for _, line in members))
        for name, members in sorted(found.items())
    )
    return domains, rows.report({line for domain in domains for line in domain.lines})


def read_classes(path: Path, rules: ReadingRules) -> tuple[tuple[DemandClass, ...], TableReport]:
    """What each application needs; lists in a cell are separated by `;`, `|`, `,` or `+`."""
    rows = _open(path, TableKind.CLASSES, rules, "application", "gpu", numeric=("service_rate",))

    def demand_class(row: Row) -> tuple[DemandClass, int]:
        if not (name := row.text("application")):
            raise UnusableRow(Severity.REFUSED, "no application")
        gpus = (rows.gpu(row.text("gpu")), *(rows.gpu(one) for one in _listed(row.text("accepts"))))
        if len(set(gpus)) < len(gpus):
            raise UnusableRow(Severity.INVALID, "a GPU is named twice", " ".join(gpus))
        if (count := rows.count(row, "gpus_per_replica", 1)) == 0:
            raise UnusableRow(Severity.INVALID, "a replica without GPUs")
        if (rate := rows.number(row, "service_rate")) == 0:
            raise UnusableRow(Severity.INVALID, "a replica that serves nothing")
        providers, regions = (
            tuple(sorted(one.lower() for one in _listed(row.text(field))))
            for field in ("providers", "regions")
        )
        entry = DemandClass(name, gpus, count, providers, regions, rate, row.text("snapshot"))
        return entry, row.line

    read = _distinct(rows, demand_class, lambda one: one[0].application, lambda one: one[0])
    found = tuple(sorted(entry for entry, _ in read))
    return found, rows.report({line for _, line in read} | _repeats(rows))


def read_machines(path: Path, rules: ReadingRules) -> tuple[tuple[MachineFacts, ...], TableReport]:
    """Driver and CPU level of machines; they decide which snapshots a machine can restore."""
    rows = _open(path, TableKind.MACHINES, rules, "provider|instance_type|gpu", "driver|cpu_level")

    def facts(row: Row) -> MachineFacts:
        selector = rows.selector(row, needs_machine=False)
        driver, level = row.text("driver"), row.text("cpu_level").lower()
        if not any(selector) or not (driver or level):
            raise UnusableRow(Severity.REFUSED, "neither a driver nor a CPU level of a machine")
        return MachineFacts(selector, driver, level, row.line)

    found = _distinct(rows, facts, lambda one: one.selector, lambda one: (one.driver, one.cpu_level))
    return tuple(sorted(found)), rows.report({one.line for one in found} | _repeats(rows))


def _machine(rows: RowReader, row: Row) -> Selector:
    """A selector that names a kind of machine: a count of machines says nothing about bare GPUs."""
    selector = rows.selector(row)
    if not selector.names_machine:
        raise UnusableRow(Severity.REFUSED, "machines are counted: name `instance_type` or `gpu_count`")
    return selector


def _open(
    path: Path, kind: TableKind, rules: ReadingRules, *needed: str, numeric: tuple[str, ...] = ()
) -> RowReader:
    return RowReader(read_table(path, kind, *needed, numeric=numeric, rules=rules), rules)


def _distinct(
    rows: RowReader, read: Callable[[Row], T], key: Callable[[T], Hashable], value: Callable[[T], object]
) -> list[T]:
    """Values by key; equal ones are merged and noted, others contradict each other and stop the run."""
    found: dict[Hashable, tuple[T, int]] = {}
    contradicted: set[Hashable] = set()
    for row, entry in rows.values(read):
        first, line = found.setdefault(key(entry), (entry, row.line))
        if first is entry:
            continue
        if value(first) == value(entry):
            rows.find(row.line, Severity.NOTED, _REPEATS, f"line {line}")
            continue
        for this, other in ((row.line, line), (line, row.line)):
            rows.find(this, Severity.INVALID, "contradicts another line", f"line {other}")
        contradicted.add(key(entry))
    return [entry for one, (entry, _) in found.items() if one not in contradicted]


_REPEATS = "repeats an earlier row"


def _repeats(rows: RowReader) -> set[int]:
    return {finding.line for finding in rows.findings if finding.reason == _REPEATS}


def _listed(text: str) -> list[str]:
    """The entries of a cell; spaces belong to GPU names, so they separate nothing."""
    return [part.strip() for part in re.split(r"[;|,+]", text) if part.strip()]
