"""Copies of snapshots that an earlier staging made: found, verified, passed over when they are damaged."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.errors import ColdstartError, DataError
from coldstart_cli.files import atomic_write, remove_tree
from coldstart_snapshot.kept.manifest import Manifest, read_manifest
from coldstart_snapshot.kept.verify import Verification, VerifyPass, is_bulk, verify_for_restore

if TYPE_CHECKING:
    from coldstart_snapshot.kept.inventory import StoredVariant


def verified_copy(
    stored: StoredVariant, run_folder: Path, mode: Verification
) -> tuple[Path, VerifyPass, tuple[str, ...]]:
    """The folder to restore from: the staged copy where there is a sound one, else the stored variant."""
    doubts: tuple[str, ...] = ()
    if (copy := staged_folder(run_folder, stored.manifest)) is not None:
        try:
            return copy, timed_verification(copy, stored.manifest, run_folder, mode, staged=True), ()
        except (DataError, OSError) as error:
            doubts = (f"staged copy is not used: {copy}: {error}",)
    return stored.folder, timed_verification(stored.folder, stored.manifest, run_folder, mode), doubts


def timed_verification(
    folder: Path, manifest: Manifest, run_folder: Path, mode: Verification, *, staged: bool = False
) -> VerifyPass:
    """Verify one copy, and say what that cost."""
    started = time.monotonic()
    read = verify_for_restore(folder, manifest, run_folder, mode, staged=staged)
    bulk_bytes = sum(file.size_bytes for file in manifest.files if read and is_bulk(file.path))
    return VerifyPass(time.monotonic() - started, bulk_bytes)


def staged_folder(run_folder: Path, manifest: Manifest) -> Path | None:
    """Where this very capture was staged to; None where it was not, or where the copy is gone."""
    try:
        folder = Path(
            json.loads(_record_path(run_folder, manifest.name, manifest.variant).read_bytes())["folder"]
        )
        # another capture of the same name and variant has other files
        return folder if read_manifest(folder).files == manifest.files else None
    except (OSError, ValueError, KeyError, TypeError, ColdstartError):
        return None


def remember_staged(run_folder: Path, manifest: Manifest, folder: Path) -> None:
    content = {"folder": str(folder)}
    atomic_write(
        _record_path(run_folder, manifest.name, manifest.variant), json.dumps(content).encode(), mode=0o600
    )


def remove_staged(run_folder: Path, name: str, variant: str) -> None:
    """Free the memory that the staged copy of a variant takes, if there is one."""
    record = _record_path(run_folder, name, variant)
    with suppress(OSError, ValueError, KeyError, TypeError):
        remove_tree(Path(json.loads(record.read_bytes())["folder"]))
    record.unlink(missing_ok=True)


def _record_path(run_folder: Path, name: str, variant: str) -> Path:
    return run_folder / "staged" / name / f"{variant}.json"
