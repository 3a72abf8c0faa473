"""Which variant of a snapshot this host restores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import DataError
from coldstart_host.cpu import CpuFacts, read_cpu_facts
from coldstart_snapshot.cpu.variants import choose_variant
from coldstart_snapshot.kept.inventory import (
    DamagedVariant,
    StoredVariant,
    list_variants,
    load_variant,
    require_snapshot,
)


@dataclass(frozen=True)
class Selection:
    """The variant that fits best, why, and what deserves a warning."""

    stored: StoredVariant
    reason: str
    warnings: tuple[str, ...]


def select_variant(
    state_folder: Path, name: str, variant: str | None = None, host: CpuFacts | None = None
) -> Selection:
    """Choose by what this CPU, or `host`, has; refused with what the nearest variant lacks."""
    require_snapshot(state_folder, name)
    cpu = host or read_cpu_facts()
    candidates, warnings = _candidates(state_folder, name, variant)
    choice = choose_variant(
        [(stored.manifest.variant, stored.manifest.cpu) for stored in candidates],
        cpu,
        required={stored.manifest.variant: stored.manifest.required_flags for stored in candidates},
        caps={stored.manifest.variant: stored.manifest.caps for stored in candidates},
        snapshot=name,
    )
    stored = next(stored for stored in candidates if stored.manifest.variant == choice.name)
    return Selection(stored, choice.reason, (*warnings, *choice.warnings))


def _candidates(
    state_folder: Path, name: str, variant: str | None
) -> tuple[list[StoredVariant], tuple[str, ...]]:
    """The variants that can be read; damaged ones are warned of unless none is left."""
    if variant is not None:
        return [load_variant(state_folder, name, variant)], ()
    found = list_variants(state_folder, name)
    stored = [entry for entry in found if isinstance(entry, StoredVariant)]
    damaged = [entry for entry in found if isinstance(entry, DamagedVariant)]
    if not stored:
        # what a newer coldstart can read must not be removed on our advice
        entry = next((entry for entry in damaged if entry.newer), damaged[0])
        hint = entry.hint if entry.newer else f"coldstart snap remove {name}, then capture again"
        raise DataError(entry.problem, hint=hint)
    return stored, tuple(entry.problem for entry in damaged)
