"""What tables say against each other: names that fit nothing, domains that are everything, broken limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from coldstart_cli.errors import near_matches_hint
from coldstart_pool.inputs.facts import QuotaGroup
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Finding, Severity
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.places import Selector, matching
from coldstart_pool.inputs.pool_inputs import PoolInputs, TableFiles


def contradictions(inputs: PoolInputs, tables: TableFiles) -> Iterator[Finding]:
    """Findings about the tables together; those about offers only where there are any."""
    yield from _snapshots(inputs, tables)
    if not inputs.offers:
        return
    yield from _unpriced_demand(inputs, tables)
    yield from _domains(inputs, tables)
    yield from _quotas(inputs, tables)
    yield from _commitments(inputs, tables)
    # these may speak of machines that a refused row would have priced: nothing is lost by them
    held = [(one.selector, (one.line,)) for one in inputs.holdings]
    yield from _strangers(inputs, tables, TableKind.CURRENT, held, "no price row for machines in the pool")
    paid = [(one.selector, one.lines) for one in inputs.paid]
    yield from _strangers(
        inputs, tables, TableKind.PAID, paid, "no price row for machines that were paid for"
    )
    seen = [(one.selector, one.lines) for one in inputs.supply.observations]
    yield from _strangers(inputs, tables, TableKind.SUPPLY, seen, "no price row for observed machines")


def quota_weight(quota: QuotaGroup, offer: Offer) -> Fraction | None:
    """What one instance takes of a quota; None where the price table does not say its virtual CPUs."""
    if quota.unit == "instances":
        return Fraction(1)
    return Fraction(offer.gpus_per_instance) if quota.unit == "gpus" else offer.vcpus


def members(offers: Sequence[Offer], selectors: Sequence[Selector]) -> tuple[int, ...]:
    """Numbers of the offers that fit any of the selectors, each once."""
    return tuple(sorted({number for numbers in matching(offers, selectors) for number in numbers}))


def _name(tables: TableFiles, kind: TableKind) -> str:
    return ", ".join(str(path) for path in tables.of(kind)) or kind.value


def _finding(
    tables: TableFiles,
    kind: TableKind,
    lines: Iterable[int],
    severity: Severity,
    reason: str,
    detail: str = "",
) -> Iterator[Finding]:
    # with several files of one table a line number alone would point into the wrong one
    known = lines if len(tables.of(kind)) == 1 else (0,)
    for line in known:
        yield Finding(_name(tables, kind), line, severity, reason, detail)


def _strangers(
    inputs: PoolInputs,
    tables: TableFiles,
    kind: TableKind,
    entries: Sequence[tuple[Selector, Sequence[int]]],
    reason: str,
) -> Iterator[Finding]:
    fitting = matching(inputs.offers, [selector for selector, _ in entries])
    for (selector, lines), numbers in zip(entries, fitting, strict=True):
        if not numbers:
            yield from _finding(tables, kind, lines, Severity.NOTED, reason, selector.text)


def _unpriced_demand(inputs: PoolInputs, tables: TableFiles) -> Iterator[Finding]:
    trace = inputs.demand.trace
    wanted = {target.gpu for target in inputs.demand.targets}
    wanted |= {event.gpu for event in trace.events} if trace else set()
    priced = {offer.gpu for offer in inputs.offers}
    accepted = {gpu: set(entry.gpus) for entry in inputs.classes for gpu in entry.gpus[:1]}
    for gpu in sorted(wanted - priced):
        if not accepted.get(gpu, set()) & priced:
            hint = near_matches_hint(gpu, priced) or ""
            reason = f"no usable price row offers {gpu}"
            yield from _finding(tables, TableKind.DEMAND, (0,), Severity.QUESTIONED, reason, hint)


def _domains(inputs: PoolInputs, tables: TableFiles) -> Iterator[Finding]:
    for domain in inputs.domains:
        covered = members(inputs.offers, domain.selectors)
        if not covered:
            reason = f"domain `{domain.name}` fits no offer"
            yield from _finding(tables, TableKind.DOMAINS, domain.lines, Severity.QUESTIONED, reason)
        elif len(covered) == len(inputs.offers):
            reason = f"domain `{domain.name}` is everything: its loss leaves nothing to plan"
            yield from _finding(tables, TableKind.DOMAINS, domain.lines, Severity.INVALID, reason)


def _quotas(inputs: PoolInputs, tables: TableFiles) -> Iterator[Finding]:
    for quota in inputs.quotas:
        covered = members(inputs.offers, quota.selectors)
        if not covered:
            reason = f"quota `{quota.name}` fits no offer"
            yield from _finding(tables, TableKind.QUOTA, quota.lines, Severity.QUESTIONED, reason)
        elif any(quota_weight(quota, inputs.offers[number]) is None for number in covered):
            reason = f"quota `{quota.name}` counts vCPUs, and the price table does not say how many there are"
            yield from _finding(tables, TableKind.QUOTA, quota.lines, Severity.REFUSED, reason)


def _commitments(inputs: PoolInputs, tables: TableFiles) -> Iterator[Finding]:
    """A commitment that no price row has, or that a quota forbids, cannot be kept by any plan."""
    fitting = matching(inputs.offers, [entry.selector for entry in inputs.commitments])
    for entry, numbers in zip(inputs.commitments, fitting, strict=True):
        kind = TableKind.PAID if entry.source.endswith("unused reservation") else TableKind.COMMITMENTS
        if not numbers:
            reason = "no price row for a commitment"
            yield from _finding(tables, kind, entry.lines, Severity.REFUSED, reason, entry.selector.text)
            continue
        for quota in inputs.quotas:
            if not set(numbers) <= set(members(inputs.offers, quota.selectors)):
                continue
            weights = [quota_weight(quota, inputs.offers[number]) for number in numbers]
            least = min((weight for weight in weights if weight is not None), default=Fraction(0))
            if least * entry.instances > quota.limit:
                reason = (
                    f"a commitment to {entry.instances} instances is more than quota `{quota.name}` allows"
                )
                detail = f"{float(quota.limit):g} {quota.unit}"
                yield from _finding(tables, kind, entry.lines, Severity.INVALID, reason, detail)


def _snapshots(inputs: PoolInputs, tables: TableFiles) -> Iterator[Finding]:
    known = {variant.snapshot for variant in inputs.snapshots}
    for entry in inputs.classes if known else ():
        name = entry.snapshot or entry.application
        if name not in known:
            reason = f"no snapshot `{name}`: no machine is warm for {entry.application}"
            hint = near_matches_hint(name, known) or ""
            yield from _finding(tables, TableKind.CLASSES, (0,), Severity.QUESTIONED, reason, hint)
