"""From demand to groups: what each class, and each union of classes, needs, and which offers can serve it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from coldstart_cli.errors import UsageError
from coldstart_pool.inputs.demand_values import DemandClass, Target
from coldstart_pool.inputs.pool_inputs import PoolInputs
from coldstart_pool.need.counts import counts_in_lead_time
from coldstart_pool.need.families import families
from coldstart_pool.need.needs import Need, needs
from coldstart_pool.need.reading import by_wants, trace_of
from coldstart_pool.need.trace import Trace
from coldstart_pool.planning.policy import Policy
from coldstart_pool.planning.wants import Wants, wants_of

# every subset of so many classes that share machines is a constraint of its own; of more, pairs and the whole
_MOST_SUBSETS = 6


@dataclass(frozen=True)
class Needed:
    """Idle GPUs for one class or a union, where the number comes from, and what is in use at the peak."""

    classes: tuple[str, ...]
    gpus: Fraction
    peak_busy_gpus: int | None = None
    interval: tuple[int, int] | None = None
    replicas: int | None = None

    @property
    def label(self) -> str:
        return self.classes[0] if len(self.classes) == 1 else " + ".join(self.classes)


@dataclass(frozen=True)
class NeededPool:
    """All classes with their wants, and what they need alone and together."""

    wants: tuple[Wants, ...]
    needed: tuple[Needed, ...]
    from_trace: bool


def needed_pool(inputs: PoolInputs, policy: Policy) -> NeededPool:
    """From targets, or from a trace and a lead time."""
    if inputs.demand.trace is None:
        return _of_targets(inputs.demand.targets, inputs)
    if policy.lead_time_seconds is None:
        raise UsageError(
            "the demand is a trace of replicas: its need depends on how long a refill takes",
            hint="pass `--lead-time SECONDS`",
        )
    known = _known_applications(inputs)
    trace = _trace(inputs, known)
    wants = tuple(
        wants_of(entry.name, entry.gpu, entry.gpus_per_replica, known.get(entry.application))
        for entry in trace.classes
    )
    found = needs(trace, policy.lead_time_seconds, policy.service_level)
    return NeededPool(wants, tuple(_of_need(need) for need in found), from_trace=True)


def level_kept(inputs: PoolInputs, policy: Policy, gpus: Mapping[tuple[str, ...], int]) -> Fraction:
    """The share of scale-ups that so many GPUs of each class and union serve at once, where it is least."""
    assert policy.lead_time_seconds is not None
    trace = _trace(inputs, _known_applications(inputs))
    kept = Fraction(1)
    for members in families(trace):
        part = trace.of(members)
        planned = gpus.get(tuple(trace.names[number] for number in members))
        if part.scale_ups and planned is not None:
            counts = counts_in_lead_time(part, policy.lead_time_seconds)
            kept = min(kept, Fraction(int((counts <= planned).sum()), len(counts)))
    return kept


def _trace(inputs: PoolInputs, known: Mapping[str, DemandClass]) -> Trace:
    return trace_of(inputs.demand, by_wants(tuple(known.values())))


def _known_applications(inputs: PoolInputs) -> dict[str, DemandClass]:
    """What is said of applications; with an inventory of snapshots each of them needs its own."""
    known = {entry.application: entry for entry in inputs.classes}
    if not inputs.snapshots:
        return {name: replace(entry, snapshot="") for name, entry in known.items()}
    trace = inputs.demand.trace
    named = {target.application: target.gpu for target in inputs.demand.targets}
    if trace is not None:
        named |= {event.application: event.gpu for event in trace.events}
        named |= {application: gpu for application, gpu, _, _ in trace.running_at_start}
    for application, gpu in named.items():
        if application:
            entry = known.get(application) or DemandClass(application, (gpu,))
            known[application] = replace(entry, snapshot=entry.snapshot or application)
    return known


def _of_need(need: Need) -> Needed:
    return Needed(need.classes, Fraction(need.gpus), need.peak_busy_gpus, need.interval, need.replicas)


def with_wants(pool: NeededPool, changed: Wants) -> NeededPool:
    """The same demand with one class wanting something else; of targets, unions are drawn anew."""
    wants = tuple(changed if entry.name == changed.name else entry for entry in pool.wants)
    if pool.from_trace:
        return replace(pool, wants=wants)
    return _pool_of_targets(wants, {one.classes[0]: one.gpus for one in pool.needed if len(one.classes) == 1})


def _of_targets(targets: Sequence[Target], inputs: PoolInputs) -> NeededPool:
    """Targets of classes that share no machine stand alone; a union of those that do needs their sum."""
    known = _known_applications(inputs)
    wants = []
    amounts: dict[str, Fraction] = {}
    for target in sorted(targets):
        entry = known.get(target.application)
        name = f"{target.application} on {target.gpu}" if target.application else target.gpu
        gang = entry.gpus_per_replica if entry is not None else 1
        wants.append(wants_of(name, target.gpu, gang, entry))
        amounts[name] = target.target_gpus
    return _pool_of_targets(tuple(wants), amounts)


def _pool_of_targets(wants: tuple[Wants, ...], amounts: Mapping[str, Fraction]) -> NeededPool:
    needed = [Needed((name,), gpus) for name, gpus in amounts.items()]
    for members in _unions(wants):
        names = tuple(entry.name for entry in members)
        needed.append(Needed(names, sum((amounts[name] for name in names), Fraction(0))))
    return NeededPool(wants, tuple(needed), from_trace=False)


def _unions(wants: Sequence[Wants]) -> Iterable[tuple[Wants, ...]]:
    """Sets of classes that may compete for a machine: nothing says that they do not all come at once."""
    for part in _competing(wants):
        if len(part) <= _MOST_SUBSETS:
            for size in range(2, len(part) + 1):
                yield from itertools.combinations(part, size)
        else:
            yield from itertools.combinations(part, 2)
            for gpu in sorted({gpu for entry in part for gpu in entry.gpus}):
                users = tuple(entry for entry in part if gpu in entry.gpus)
                if 2 < len(users) < len(part):
                    yield users
            yield tuple(part)


def _competing(wants: Sequence[Wants]) -> list[list[Wants]]:
    """Classes joined by a GPU that both accept."""
    parts: list[list[Wants]] = []
    for entry in wants:
        touching = [part for part in parts if any(set(entry.gpus) & set(other.gpus) for other in part)]
        merged = sorted((other for part in touching for other in part), key=lambda one: one.name)
        parts = [part for part in parts if part not in touching]
        parts.append(sorted([*merged, entry], key=lambda one: one.name))
    return [part for part in parts if len(part) > 1]
