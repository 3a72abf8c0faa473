"""A snapshot's variants: one name per CPU instruction set, and the choice of the one that fits a host."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coldstart_cli.errors import UnavailableError
from coldstart_host.cpu import CpuFacts
from coldstart_snapshot.cpu_match import CpuProblem, compare, required_flags

_HASH_DIGITS = 8


@dataclass(frozen=True)
class Choice:
    """The variant to restore, why it was taken, and what deserves a warning."""

    name: str
    reason: str
    warnings: tuple[str, ...] = ()


def variant_name(facts: CpuFacts, required: Sequence[str] | None = None) -> str:
    """`x86-64-v4.xsave11008.1a2b3c4d`: equal for hosts that can exchange snapshots, else different."""
    flags = required_flags(facts) if required is None else tuple(required)
    sizes = [facts.xsave_bytes, facts.xsave_max_bytes, facts.xfeatures_mask]
    identity = [facts.architecture, facts.vendor, sorted(flags), sizes]
    digest = hashlib.sha256(json.dumps(identity, separators=(",", ":")).encode()).hexdigest()
    parts = [facts.level, f"xsave{facts.xsave_bytes}"] if facts.xsave_bytes else [facts.level]
    return ".".join([*parts, digest[:_HASH_DIGITS]])


def choose_variant(
    candidates: Sequence[tuple[str, CpuFacts]],
    host: CpuFacts,
    *,
    required: Mapping[str, Sequence[str]] | None = None,
) -> Choice:
    """The best variant that fits `host`, or an error that says what the nearest one lacks.

    `required` holds, by variant, the flags a manifest lists as required; without it every flag that
    programs can see counts.
    """
    if not candidates:
        raise UnavailableError("the snapshot has no variants", hint="coldstart snap create")
    needed = {name: tuple((required or {}).get(name, required_flags(facts))) for name, facts in candidates}
    judged = [(name, facts, compare(facts, host, needed[name])) for name, facts in candidates]
    fitting = [entry for entry in judged if not any(problem.blocking for problem in entry[2])]
    if not fitting:
        raise _none_fits(judged, host)
    # the CPU's own vendor first: libraries choose code by vendor, at the same level too
    name, facts, problems = max(
        fitting, key=lambda entry: (entry[1].vendor == host.vendor, len(needed[entry[0]]), entry[0])
    )
    count = len(candidates)
    reason = f"{facts.level}, the best of {len(fitting)} that fit this CPU, of {count} variants"
    if len(fitting) == 1:
        reason = (
            f"{facts.level}, the only one of {count} variants that fits" if count > 1 else "it fits this CPU"
        )
    return Choice(name, reason, tuple(problem.message for problem in problems))


def _none_fits(
    judged: Sequence[tuple[str, CpuFacts, tuple[CpuProblem, ...]]], host: CpuFacts
) -> UnavailableError:
    name, _, problems = min(judged, key=lambda entry: (_distance(entry[2]), entry[0]))
    details = "; ".join(problem.message for problem in problems if problem.blocking)
    which = "the only variant is" if len(judged) == 1 else f"of {len(judged)} variants the nearest is"
    return UnavailableError(
        f"no variant fits this CPU: {which} {name}: {details}",
        hint=f"run `coldstart snap create` on a host like this one: it builds variant {variant_name(host)}",
    )


def _distance(problems: Sequence[CpuProblem]) -> tuple[bool, int, int]:
    blocking = [problem for problem in problems if problem.blocking]
    foreign = any(problem.kind == "architecture" for problem in blocking)
    return foreign, sum(len(problem.flags) for problem in blocking), len(blocking)
