"""A snapshot's variants: one name per CPU instruction set, and the choice of the one that fits a host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coldstart_cli.errors import UnavailableError
from coldstart_host.cpu import CpuFacts
from coldstart_snapshot.cpu.match import CpuProblem, compare, required_flags

if TYPE_CHECKING:
    from coldstart_snapshot.cpu.caps import CapProof

_HASH_DIGITS = 8


@dataclass(frozen=True)
class Choice:
    """The variant to restore, why it was taken, and what deserves a warning."""

    name: str
    reason: str
    warnings: tuple[str, ...] = ()


class NoVariantFitsError(UnavailableError):
    """Nothing in a snapshot may run on a host: `nearest` lacks `missing_flags` there."""

    def __init__(self, message: str, *, hint: str, nearest: str, missing_flags: tuple[str, ...]) -> None:
        super().__init__(message, hint=hint)
        self.nearest = nearest
        self.missing_flags = missing_flags


def variant_name(facts: CpuFacts, caps: CapProof | None = None) -> str:
    """`x86-64-v4.xsave2688.1a2b3c4d`: equal for hosts that can exchange snapshots, else different.

    A proven level needs no XSAVE size: `x86-64-v3.1a2b3c4d`. One that could not be proven has a name of its
    own too: it must not take the place of a variant that uses all of the CPU.
    """
    flags = sorted(required_flags(facts, caps))
    if caps is not None and caps.proven:
        return f"{caps.level}.{_digest([facts.architecture, caps.level, flags])}"
    sizes = [facts.xsave_bytes, facts.xsave_max_bytes, facts.xfeatures_mask]
    identity = [facts.architecture, facts.vendor, flags, sizes]
    parts = [facts.level, f"xsave{facts.xsave_bytes}"] if facts.xsave_bytes else [facts.level]
    if caps is not None:
        parts.append("unproven")
        identity.append(caps.level)
    return ".".join([*parts, _digest(identity)])


def _digest(identity: Sequence[object]) -> str:
    import hashlib  # with OpenSSL behind it

    content = json.dumps(identity, separators=(",", ":")).encode()
    return hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]


def choose_variant(
    candidates: Sequence[tuple[str, CpuFacts]],
    host: CpuFacts,
    *,
    required: Mapping[str, Sequence[str]] | None = None,
    caps: Mapping[str, CapProof | None] | None = None,
    snapshot: str = "NAME",
    sizes_known: bool = True,
) -> Choice:
    """The best variant that fits `host`, or an error that says what the nearest one lacks.

    `required` holds, by variant, the flags a manifest lists as required, `caps` how it was held to a level;
    without them every flag that programs can see counts, and the XSAVE sizes where those of `host` are known.
    """
    if not candidates:
        raise UnavailableError("the snapshot has no variants", hint="coldstart snap create")
    judged = [
        _judge(name, facts, host, (required or {}).get(name), (caps or {}).get(name), sizes_known)
        for name, facts in candidates
    ]
    fitting = [entry for entry in judged if not entry.blocking]
    if not fitting:
        raise _none_fits(judged, host, snapshot)
    best = max(fitting, key=lambda entry: entry.rank(host))
    count = len(candidates)
    reason = f"{best.label}, the best of {len(fitting)} that fit this CPU, of {count} variants"
    if len(fitting) == 1:
        only = f"{best.label}, the only one of {count} variants that fits"
        reason = only if count > 1 else f"{best.label}, it fits this CPU"
    return Choice(best.name, reason, tuple(problem.message for problem in best.problems))


@dataclass(frozen=True)
class _Judged:
    name: str
    facts: CpuFacts
    needed: tuple[str, ...]
    caps: CapProof | None
    problems: tuple[CpuProblem, ...]

    @property
    def blocking(self) -> tuple[CpuProblem, ...]:
        return tuple(problem for problem in self.problems if problem.blocking)

    @property
    def label(self) -> str:
        if self.caps is None:
            return f"{self.facts.level} as its CPU had it"
        return (
            f"held to {self.caps.level}" if self.caps.proven else f"not proven to keep to {self.caps.level}"
        )

    def rank(self, host: CpuFacts) -> tuple[bool, bool, int, str]:
        # what was never capped before what was capped in vain, and the CPU's own vendor first:
        # libraries choose code by vendor, at the same level too
        vain = self.caps is not None and not self.caps.proven
        return not vain, self._is_kin(host), len(self.needed), self.name

    def _is_kin(self, host: CpuFacts) -> bool:
        return self.facts.vendor == host.vendor


def _judge(
    name: str,
    facts: CpuFacts,
    host: CpuFacts,
    required: Sequence[str] | None,
    caps: CapProof | None,
    sizes_known: bool,
) -> _Judged:
    needed = required_flags(facts, caps) if required is None else tuple(required)
    flags_decide = is_proven(caps) or not sizes_known
    return _Judged(name, facts, needed, caps, compare(facts, host, needed, capped=flags_decide))


def is_proven(caps: CapProof | None) -> bool:
    """Whether a variant's flags alone decide where it runs, and no XSAVE size."""
    return caps is not None and caps.proven


def level_for(host: CpuFacts) -> str | None:
    """The highest level whose variants, built anywhere, run on this host."""
    from coldstart_host.cpu_levels import LEVELS, level_flags

    flags = set(host.flags)
    fitting = [level for level in LEVELS if level_flags(level) <= flags]
    return fitting[-1] if host.architecture == "x86_64" and fitting else None


def what_to_build(host: CpuFacts, snapshot: str) -> str:
    """The command that builds a variant for this host."""
    if (level := level_for(host)) is not None:
        return f"coldstart snap create {snapshot} --spec SPEC --cpu-level {level}"
    return f"run `coldstart snap create {snapshot}` on a host like this one: it builds {variant_name(host)}"


def _none_fits(judged: Sequence[_Judged], host: CpuFacts, snapshot: str) -> NoVariantFitsError:
    nearest = min(judged, key=lambda entry: (_distance(entry.problems), entry.name))
    details = "; ".join(problem.message for problem in nearest.blocking)
    which = "the only variant is" if len(judged) == 1 else f"of {len(judged)} variants the nearest is"
    return NoVariantFitsError(
        f"no variant fits this CPU: {which} {nearest.name}: {details}",
        hint=what_to_build(host, snapshot),
        nearest=nearest.name,
        missing_flags=tuple(flag for problem in nearest.blocking for flag in problem.flags),
    )


def _distance(problems: Sequence[CpuProblem]) -> tuple[bool, int, int]:
    blocking = [problem for problem in problems if problem.blocking]
    foreign = any(problem.kind == "architecture" for problem in blocking)
    return foreign, sum(len(problem.flags) for problem in blocking), len(blocking)
