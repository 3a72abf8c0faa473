"""What is kept of snapshots: in a store the newest versions of a variant, on a host whole ones."""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError, UsageError
from coldstart_cli.files import exclusive_lock
from coldstart_snapshot.capturing.journal import read_record
from coldstart_snapshot.distribution.distribute import SnapshotStore, StoredObject, StoredVersion, hold_image
from coldstart_snapshot.distribution.receive import fetch_lock, is_part
from coldstart_snapshot.kept.inventory import (
    DamagedVariant,
    is_staging,
    list_variants,
    snapshot_lock,
    snapshots_folder,
)

DEFAULT_KEEP = 3


@dataclass(frozen=True)
class Leftover:
    """A folder of this host that no capture and no fetch is at work in."""

    path: Path
    size_bytes: int
    kind: str


@dataclass(frozen=True)
class HeldImage:
    """An image of a shared store that a snapshot of this host needs; `problem`: why it is not leased."""

    image: str
    store: str
    problem: str | None


@dataclass(frozen=True)
class StoreRetention:
    """What a run found in a store: names beyond the number to keep, and data that nothing needs."""

    kept: tuple[StoredVersion, ...]
    dropped: tuple[StoredVersion, ...]
    removed: tuple[StoredObject, ...]
    condemned: tuple[StoredObject, ...]


def collect_store(
    store: SnapshotStore,
    config: Config,
    *,
    keep: int,
    grace_seconds: float,
    dry_run: bool,
    tell: Callable[[str], None] = lambda _: None,
) -> StoreRetention:
    """Drop versions beyond the newest `keep` of each variant, then what none needs, after the grace time.

    A version that somebody leases stays. A name that cannot be read ends the run before anything changes.
    """
    if keep < 1:
        raise UsageError(f"at least one version of each variant is kept: {keep}", hint="--keep 1")
    by_variant: dict[tuple[str, str], list[StoredVersion]] = defaultdict(list)
    for version in store.versions():
        by_variant[version.name, version.variant].append(version)
    leased = store.leased()
    kept: list[StoredVersion] = []
    dropped: list[StoredVersion] = []
    for versions in by_variant.values():
        for number, version in enumerate(reversed(versions)):
            (kept if number < keep or version.digest in leased else dropped).append(version)
    removed, condemned = store.collect(
        dropped,
        grace_seconds=grace_seconds,
        dry_run=dry_run,
        wait_seconds=config.number("lock_wait_seconds"),
        tell=tell,
    )
    return StoreRetention(tuple(kept), tuple(dropped), tuple(removed), tuple(condemned))


def collect_host(config: Config, *, grace_seconds: float, dry_run: bool) -> tuple[Leftover, ...]:
    """Remove what killed captures left, and interrupted fetches that nobody went on with for the grace time.

    A name that a capture, a restore or a fetch holds is left alone.
    """
    found: list[Leftover] = []
    parent = snapshots_folder(config.state_folder)
    with suppress(FileNotFoundError):
        for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                found += _of_name(Path(entry.path), config, grace_seconds, dry_run)
    return tuple(found)


def hold_images(config: Config, *, dry_run: bool) -> tuple[HeldImage, ...]:
    """Lease the images that snapshots of this host need in stores that it shares with others."""
    needed: set[tuple[str, str]] = set()
    for variant in list_variants(config.state_folder):
        root = None if isinstance(variant, DamagedVariant) else variant.manifest.root
        if root is not None and root.image is not None:
            stores = {root.store, config.optional_text("store")} - {None}
            needed |= {(root.image, str(store)) for store in stores}
    held = []
    for image, store in sorted(needed):
        try:
            if hold_image(store, image, dry_run=dry_run):
                held.append(HeldImage(image, store, None))
        except ColdstartError as error:
            held.append(HeldImage(image, store, error.message))
    return tuple(held)


def _of_name(folder: Path, config: Config, grace_seconds: float, dry_run: bool) -> list[Leftover]:
    found = []
    with suppress(BusyError), snapshot_lock(config.run_folder, folder.name):
        record = read_record(config.run_folder, folder.name)
        # what a killed capture left is needed until its server was put right
        if record is None or not record.is_open:
            staging = [path for path in _below(folder) if is_staging(path.name)]
            found += [Leftover(path, _size(path), "capture") for path in staging]
            _remove(found, dry_run)
    parts: list[Leftover] = []
    with suppress(BusyError), exclusive_lock(fetch_lock(config, folder.name)):
        oldest = time.time() - grace_seconds
        begun = [path for path in _below(folder) if is_part(path.name)]
        parts += [Leftover(path, _size(path), "fetch") for path in begun if _newest(path) <= oldest]
        _remove(parts, dry_run)
    if not dry_run:
        with suppress(OSError, BusyError), snapshot_lock(config.run_folder, folder.name):
            folder.rmdir()  # only where nothing is left
    return [*found, *parts]


def _remove(leftovers: list[Leftover], dry_run: bool) -> None:
    for leftover in () if dry_run else leftovers:
        shutil.rmtree(leftover.path)


def _below(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))


def _size(folder: Path) -> int:
    """What it takes of the disk."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def _newest(folder: Path) -> float:
    """When something in it was last written."""
    newest = os.lstat(folder).st_mtime
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                newest = max(newest, os.lstat(os.path.join(parent, name)).st_mtime)
    return newest
