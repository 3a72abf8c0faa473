"""The snapshots of this host: `STATE/snapshots/NAME/VARIANT`, locked by name, published whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import (
    BusyError,
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    near_matches_hint,
)
from coldstart_cli.files import exclusive_lock, fsync_directory, make_directory, remove_tree
from coldstart_snapshot.kept.manifest import Manifest, NewerManifestError, check_name, read_manifest
from coldstart_snapshot.kept.staged import remove_staged

_STAGING_SUFFIX = ".tmp"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@dataclass(frozen=True)
class StoredVariant:
    """A published variant whose manifest can be read."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True)
class DamagedVariant:
    """A published variant whose manifest cannot be read, and why; `newer` when a later coldstart can."""

    name: str
    variant: str
    folder: Path
    problem: str
    newer: bool = False

    @property
    def hint(self) -> str:
        if self.newer:
            return "install a newer coldstart"
        return f"coldstart snap remove {self.name} --variant {self.variant}"


def snapshots_folder(state_folder: Path) -> Path:
    return state_folder / "snapshots"


def variant_folder(state_folder: Path, name: str, variant: str) -> Path:
    return snapshots_folder(state_folder) / check_name(name) / check_name(variant)


def snapshot_names(state_folder: Path) -> tuple[str, ...]:
    """Names that have at least one published variant."""
    return tuple(
        name for name in _folders(snapshots_folder(state_folder)) if _variant_names(state_folder, name)
    )


def list_variants(state_folder: Path, name: str | None = None) -> tuple[StoredVariant | DamagedVariant, ...]:
    """Every published variant, by name and variant; of one snapshot when `name` is given."""
    names = snapshot_names(state_folder) if name is None else (require_snapshot(state_folder, name),)
    return tuple(
        _load(state_folder, one, variant) for one in names for variant in _variant_names(state_folder, one)
    )


def require_snapshot(state_folder: Path, name: str) -> str:
    """The name, when it has a published variant; refused with the names that are close."""
    check_name(name)
    if not _variant_names(state_folder, name):
        names = snapshot_names(state_folder)
        hint = near_matches_hint(name, names, otherwise="`coldstart snap list` shows what there is")
        raise NotFoundError(f"no such snapshot: {name}", hint=hint)
    return name


def load_variant(state_folder: Path, name: str, variant: str | None = None) -> StoredVariant:
    """One variant by name; without a name the only one there is."""
    variants = select_variants(state_folder, name, variant)
    if len(variants) > 1:
        raise NotFoundError(
            f"snapshot has {len(variants)} variants: {name}: {', '.join(variants)}",
            hint="name one with `--variant`",
        )
    found = _load(state_folder, name, variants[0])
    if isinstance(found, DamagedVariant):
        raise DataError(found.problem, hint=found.hint)
    return found


@contextmanager
def snapshot_lock(
    run_folder: Path, name: str, *, wait_seconds: float = 0.0, shared: bool = False
) -> Iterator[None]:
    """Hold a snapshot's name: shared to restore from it, else to change it."""
    path = run_folder / "locks" / f"snapshot-{check_name(name)}.lock"
    with exclusive_lock(path, wait_seconds=wait_seconds, shared=shared):
        yield


@contextmanager
def staging_folder(state_folder: Path, name: str, variant: str) -> Iterator[Path]:
    """A new folder beside the variant's place, removed unless it was published; the lock must be held.

    What a crashed capture left is removed first.
    """
    parent = make_directory(snapshots_folder(state_folder), mode=0o700) / check_name(name)
    make_directory(parent, mode=0o700)
    remove_leftovers(state_folder, name)
    staging = Path(tempfile.mkdtemp(prefix=f".{check_name(variant)}.", suffix=_STAGING_SUFFIX, dir=parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if not any(parent.iterdir()):
            parent.rmdir()


def remove_leftovers(state_folder: Path, name: str) -> int:
    """Remove unpublished folders of this snapshot; the lock must be held."""
    parent = snapshots_folder(state_folder) / check_name(name)
    count = 0
    if parent.is_dir():
        for entry in list(os.scandir(parent)):
            if is_staging(entry.name):
                shutil.rmtree(entry.path)
                count += 1
    return count


def is_staging(name: str) -> bool:
    """Whether a folder beside variants is one that was never published."""
    return name.startswith(".") and name.endswith(_STAGING_SUFFIX)


def publish(staging: Path, destination: Path) -> bool:
    """Make a complete folder visible by one rename; true when it took the place of an older one.

    The older one is exchanged against the staging folder, so that there is no moment without either.
    """
    for folder, _, _ in os.walk(staging, topdown=False):
        fsync_directory(Path(folder))
    replaced = destination.exists()
    try:
        if replaced:
            _exchange(staging, destination)
        else:
            os.rename(staging, destination)
    except OSError as error:
        raise IoFailure(f"cannot publish snapshot: {destination}: {error.strerror}") from error
    fsync_directory(destination.parent)
    return replaced


def remove_snapshot(
    state_folder: Path, run_folder: Path, name: str, variant: str | None = None, *, wait_seconds: float = 0.0
) -> tuple[str, ...]:
    """Remove one variant or all of them, damaged ones too; returns the variants that are gone."""
    require_snapshot(state_folder, name)
    try:
        with snapshot_lock(run_folder, name, wait_seconds=wait_seconds):
            chosen = select_variants(state_folder, name, variant)
            parent = snapshots_folder(state_folder) / name
            for one in chosen:
                remove_staged(run_folder, name, one)
                # out of sight first: a crash in the middle leaves a leftover, not half a snapshot
                grave = Path(tempfile.mkdtemp(prefix=f".{one}.", suffix=_STAGING_SUFFIX, dir=parent))
                os.rename(parent / one, grave / "removed")
                remove_tree(grave)
            remove_leftovers(state_folder, name)
            if not any(parent.iterdir()):
                parent.rmdir()
            shutil.rmtree(run_folder / "verified" / name, ignore_errors=True)
    except BusyError as error:
        if error.message.startswith("locked by"):
            error.message = f"snapshot is in use: {name} ({error.message})"
        raise
    return chosen


def select_variants(state_folder: Path, name: str, variant: str | None) -> tuple[str, ...]:
    """All variants of a snapshot, damaged ones too, or the one that is named."""
    require_snapshot(state_folder, name)
    present = _variant_names(state_folder, name)
    if variant is None:
        return present
    if check_name(variant) not in present:
        hint = near_matches_hint(variant, present, otherwise=f"it has {', '.join(present)}")
        raise NotFoundError(f"snapshot {name} has no such variant: {variant}", hint=hint)
    return (variant,)


def _load(state_folder: Path, name: str, variant: str) -> StoredVariant | DamagedVariant:
    folder = variant_folder(state_folder, name, variant)
    try:
        manifest = read_manifest(folder)
    except (DataError, NotFoundError) as error:
        newer = isinstance(error, NewerManifestError)
        return DamagedVariant(name, variant, folder, error.message, newer)
    if (manifest.name, manifest.variant) != (name, variant):
        problem = f"snapshot folder was renamed: {folder} holds {manifest.name}/{manifest.variant}"
        return DamagedVariant(name, variant, folder, problem)
    return StoredVariant(folder, manifest)


def _variant_names(state_folder: Path, name: str) -> tuple[str, ...]:
    return _folders(snapshots_folder(state_folder) / name)


def _folders(path: Path) -> tuple[str, ...]:
    try:
        entries = list(os.scandir(path))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except PermissionError as error:
        raise PermissionNeededError(f"cannot read folder: {path}", hint="run with sudo") from error
    return tuple(
        sorted(
            entry.name
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
        )
    )


def _exchange(one: Path, other: Path) -> None:
    import ctypes

    # Python has no renameat2; glibc has it since 2.28
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE)
    )
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
