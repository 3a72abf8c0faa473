"""Which hosts of a fleet have a variant of a snapshot, from files with their CPU facts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart_cli.errors import ColdstartError, DataError, UnavailableError
from coldstart_cli.regular import read_input
from coldstart_host.cpu import CpuFacts, cpu_facts_from_text
from coldstart_snapshot.cpu.variants import Choice, NoVariantFitsError, choose_variant, is_proven
from coldstart_snapshot.kept.inventory import StoredVariant
from coldstart_snapshot.kept.manifest import Manifest

_LARGEST_BYTES = 64 << 20
_UNTOLD = "cannot tell from /proc/cpuinfo"
_ASK = "use `coldstart doctor --json` for its XSAVE sizes"


@dataclass(frozen=True)
class FleetHost:
    """One host; XSAVE sizes are `derived` where its file is the text of /proc/cpuinfo."""

    name: str
    file: Path
    cpu: CpuFacts
    derived: bool


@dataclass(frozen=True)
class FleetAnswer:
    """What one host would restore of one snapshot, or what it lacks and what to build for it."""

    host: FleetHost
    snapshot: str
    variant: str | None
    reason: str
    missing_flags: tuple[str, ...] = ()
    build: str | None = None
    warnings: tuple[str, ...] = ()
    unsure: bool = False
    """A variant fits by its flags, and by its XSAVE sizes nobody can tell."""

    def document(self) -> dict[str, Any]:
        return {
            "host": self.host.name,
            "file": str(self.host.file),
            "brand": self.host.cpu.brand,
            "cpu_level": self.host.cpu.level,
            "snapshot": self.snapshot,
            "variant": self.variant,
            "reason": self.reason,
            "missing_flags": list(self.missing_flags),
            "build": self.build,
            "warnings": list(self.warnings),
            "xsave_derived": self.host.derived,
            "unsure": self.unsure,
        }


def read_hosts(paths: Iterable[Path]) -> tuple[FleetHost, ...]:
    """Hosts from `doctor --json` documents and /proc/cpuinfo texts; of a folder every file in it."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(entry for entry in path.iterdir() if entry.is_file()) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"folder has no files with host facts: {path}", hint="coldstart doctor --json")
        files += inside
    return tuple(_read_host(file) for file in files)


def _read_host(path: Path) -> FleetHost:
    text = read_input(path, "file with host facts", _LARGEST_BYTES).decode("utf-8", "replace")
    if not text.lstrip().startswith("{"):
        try:
            return FleetHost(path.stem, path, cpu_facts_from_text(text), derived=True)
        except ColdstartError as error:
            hint = "write it by `coldstart doctor --json`, or copy the host's /proc/cpuinfo"
            raise DataError(f"not a file with host facts: {path}", hint=hint) from error
    try:
        document = json.loads(text)
        schema, table = document["schema"], document["cpu"]
        cpu = CpuFacts.from_dict(table) if schema == "coldstart.doctor" else None
    except DataError as error:
        error.message = f"not a file with host facts: {path}: {error.message}"
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"not a document of `coldstart doctor --json`: {path}: {type(error).__name__}: {error}"
        ) from error
    if cpu is None:
        raise DataError(f"not a document of `coldstart doctor --json`: {path}: its schema is {schema!r}")
    name = document.get("host")
    return FleetHost(name if isinstance(name, str) and name else path.stem, path, cpu, derived=False)


def answers_for(hosts: Sequence[FleetHost], variants: Sequence[StoredVariant]) -> tuple[FleetAnswer, ...]:
    """For every host and every snapshot: the variant a restore there would take."""
    names = sorted({variant.manifest.name for variant in variants})
    by_name = {name: [variant for variant in variants if variant.manifest.name == name] for name in names}
    return tuple(_answer(host, name, by_name[name]) for host in hosts for name in names)


def _answer(host: FleetHost, name: str, variants: Sequence[StoredVariant]) -> FleetAnswer:
    manifests = [variant.manifest for variant in variants]
    try:
        choice = _choose(host, name, manifests)
        by_flags_alone = [manifest for manifest in manifests if is_proven(manifest.caps)]
        if host.derived and all(manifest.variant != choice.name for manifest in by_flags_alone):
            try:
                surely = _choose(host, name, by_flags_alone)
            except UnavailableError:
                reason = f"{_UNTOLD} whether {choice.name} fits: its flags do; {_ASK}"
                return FleetAnswer(host, name, None, reason, unsure=True)
            doubt = f"{_UNTOLD} whether {choice.name} fits too; {_ASK}"
            return FleetAnswer(host, name, surely.name, surely.reason, warnings=(*surely.warnings, doubt))
    except NoVariantFitsError as error:
        return FleetAnswer(host, name, None, error.message, error.missing_flags, error.hint)
    return FleetAnswer(host, name, choice.name, choice.reason, warnings=choice.warnings)


def _choose(host: FleetHost, name: str, manifests: Sequence[Manifest]) -> Choice:
    return choose_variant(
        [(manifest.variant, manifest.cpu) for manifest in manifests],
        host.cpu,
        required={manifest.variant: manifest.required_flags for manifest in manifests},
        caps={manifest.variant: manifest.caps for manifest in manifests},
        snapshot=name,
        sizes_known=not host.derived,
    )
