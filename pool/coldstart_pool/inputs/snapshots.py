"""The inventory of snapshots: a CSV table, or JSON as `coldstart snap show` and `snap list` print it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.encodings import decode, read_bytes
from coldstart_pool.inputs.facts import SnapshotVariant
from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Finding, Severity, TableReport
from coldstart_pool.inputs.gpu_names import UnclearGpuError, canonical_gpu
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.rows import RowReader, UnusableRow
from coldstart_pool.inputs.rules import ReadingRules
from coldstart_pool.inputs.tables import Row, read_table


def read_snapshots(path: Path, rules: ReadingRules) -> tuple[tuple[SnapshotVariant, ...], TableReport]:
    """Which snapshots there are, and for which GPU, driver and CPU level each."""
    content = read_bytes(path)
    if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
        return _read_json(path, content)
    table = read_table(
        path, TableKind.SNAPSHOTS, "snapshot", "gpu|cpu_level", numeric=(), rules=rules, content=content
    )
    rows = RowReader(table, rules)

    def variant(row: Row) -> SnapshotVariant:
        if not (name := row.text("snapshot")):
            raise UnusableRow(Severity.REFUSED, "no snapshot")
        gpu = rows.gpu(row.text("gpu")) if row.text("gpu") else ""
        if row.text("driver") and not gpu:
            raise UnusableRow(Severity.REFUSED, "a driver without a GPU")
        return SnapshotVariant(name, gpu, row.text("driver"), row.text("cpu_level").lower())

    read = list(rows.values(variant))
    return tuple(sorted({entry for _, entry in read})), rows.report({row.line for row, _ in read})


def restorable(variants: tuple[SnapshotVariant, ...], snapshot: str, offer: Offer) -> bool | None:
    """Whether a snapshot can be restored on an offer's machines; None where they are not known well enough.

    GPU and driver must be the same; the host's CPU level must reach the variant's.
    """
    unknown = False
    for variant in variants:
        if variant.snapshot != snapshot or variant.gpu not in {"", offer.gpu}:
            continue
        if (variant.driver and not offer.driver) or (variant.cpu_level and not offer.cpu_level):
            unknown = True
        elif variant.driver in {"", offer.driver} and _reaches(offer.cpu_level, variant.cpu_level):
            return True
    return None if unknown else False


def _reaches(level: str, needed: str) -> bool:
    """PsABI levels are ordered within one architecture: x86-64-v4 reaches x86-64-v3."""
    if not needed or level == needed:
        return True
    have, want = level.rpartition("-v"), needed.rpartition("-v")
    same = (have[0] or level) == (want[0] or needed)
    return same and have[2].isdigit() and (not want[0] or int(have[2]) >= int(want[2]))


def _read_json(path: Path, content: bytes) -> tuple[tuple[SnapshotVariant, ...], TableReport]:
    from blake3 import blake3  # base dependency, but not needed for help

    text, encoding, _ = decode(str(path), content)
    entries = _entries(path, text)
    variants: set[SnapshotVariant] = set()
    findings: list[Finding] = []
    used = 0
    for number, entry in enumerate(entries, 1):
        name = str(entry.get("name", ""))
        try:
            found = _variants(entry)
        except UnclearGpuError as error:
            findings.append(
                Finding(str(path), 0, Severity.REFUSED, str(error), f"snapshot {number} `{name}`")
            )
            continue
        except ValueError as error:
            findings.append(
                Finding(str(path), 0, Severity.REFUSED, str(error), f"snapshot {number} `{name}`")
            )
            continue
        used += 1
        variants.update(found)
    digest = "blake3:" + blake3(content).hexdigest()
    decisions = (("encoding", encoding), ("form", "JSON of `coldstart snap`"))
    report = TableReport(
        str(path), digest, len(entries), used, tuple(sorted(findings)), TableKind.SNAPSHOTS, 0, decisions
    )
    return tuple(sorted(variants)), report


def _entries(path: Path, text: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON: {error}") from error
    documents = document if isinstance(document, list) else [document]
    entries: list[dict[str, Any]] = []
    for one in documents:
        schema = one.get("schema") if isinstance(one, dict) else None
        if schema == "coldstart.snap.show":
            entries.append(one)
        elif schema == "coldstart.snap.list" and isinstance(one.get("snapshots"), list):
            entries += [entry for entry in one["snapshots"] if isinstance(entry, dict)]
        else:
            raise DataError(
                f"{path}: no JSON of `coldstart snap show` or `snap list`: schema is {schema!r}",
                hint="coldstart snap show NAME --json",
            )
    return entries


def _variants(entry: dict[str, Any]) -> list[SnapshotVariant]:
    """One variant for each kind of GPU; the list has no GPU names, only whether there are GPUs."""
    name, cpu, gpu = entry.get("name"), entry.get("cpu"), entry.get("gpu")
    if not isinstance(name, str) or not name:
        raise ValueError("a snapshot without a name")
    if entry.get("problem"):
        raise ValueError("the snapshot is damaged")
    level = cpu.get("level") if isinstance(cpu, dict) else entry.get("cpu_level")
    level = level.lower() if isinstance(level, str) else ""
    if gpu is None or gpu is False:
        return [SnapshotVariant(name, "", "", level)]
    if not isinstance(gpu, dict):
        raise ValueError("`snap list` does not say which GPUs it needs: use `snap show NAME --json`")  # noqa: TRY004
    devices = gpu.get("devices")
    names = (
        {one.get("name") for one in devices if isinstance(one, dict)} if isinstance(devices, list) else set()
    )
    if not names:
        raise ValueError("its manifest names no GPU")
    driver = gpu.get("driver_version")
    return [
        SnapshotVariant(name, canonical_gpu(str(one)), driver if isinstance(driver, str) else "", level)
        for one in sorted(map(str, names))
    ]
