"""Staging: a snapshot is made hot before it is needed, in the page cache or as a copy in memory."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart_cli.config import Config
from coldstart_cli.errors import CannotCreateError, IoFailure, UsageError
from coldstart_cli.files import make_private, remove_tree
from coldstart_cli.own_folders import require_own_folder
from coldstart_host.memory import available_memory
from coldstart_snapshot.containers.roots import read_mounts
from coldstart_snapshot.kept.inventory import StoredVariant, publish, snapshot_lock
from coldstart_snapshot.kept.manifest import MANIFEST_NAME
from coldstart_snapshot.kept.staged import remember_staged, staged_folder, timed_verification
from coldstart_snapshot.kept.verify import Verification, is_bulk, remember_verified, verify_files
from coldstart_snapshot.restoring.page_cache import chunks, cold_bytes, fetch
from coldstart_snapshot.restoring.selection import select_variant

# what a host keeps free beside the copy and the server that will be restored from it
_FLOOR_PART = 0.1
_FLOOR_BYTES = 1 << 30
_COPY_BYTES = 8 << 20
_MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "hugetlbfs")


@dataclass(frozen=True)
class Staged:
    """What is hot now, or would be; `moved_bytes` had to be read or copied for it."""

    name: str
    variant: str
    reason: str
    place: str
    folder: Path
    size_bytes: int
    moved_bytes: int
    available_bytes: int
    seconds: float
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The staging as JSON values."""
        return {
            "name": self.name,
            "variant": self.variant,
            "reason": self.reason,
            "place": self.place,
            "folder": str(self.folder),
            "size_bytes": self.size_bytes,
            "moved_bytes": self.moved_bytes,
            "available_bytes": self.available_bytes,
            "seconds": round(self.seconds, 4),
            "warnings": list(self.warnings),
        }


def stage_snapshot(
    name: str,
    config: Config,
    *,
    variant: str | None = None,
    destination: Path | None = None,
    dry_run: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Staged:
    """Choose the variant that fits, verify it, and make it hot; never at the price of the host's memory.

    With a `destination` it is copied there, and the next restore uses that copy.
    """
    started = time.monotonic()
    selection = select_variant(config.state_folder, name, variant)
    stored = selection.stored
    warnings = list(selection.warnings)
    size_bytes = _stored_bytes(stored)
    with snapshot_lock(config.run_folder, name, shared=True):
        if destination is None:
            place, folder = "page cache", stored.folder
            try:
                moved = _warm(stored, config, size_bytes, dry_run=dry_run, say=say)
            except OSError as error:
                raise IoFailure(f"cannot read snapshot: {folder}: {error.strerror}") from error
        else:
            place, folder = "copy", destination / name / stored.manifest.variant
            if not _is_memory(destination):
                warnings.append(f"folder is on no file system in memory: {destination}")
            moved = _copy(stored, config, folder, size_bytes, dry_run=dry_run, say=say)
    return Staged(
        name,
        stored.manifest.variant,
        selection.reason,
        place,
        folder,
        size_bytes,
        moved,
        available_memory(),
        time.monotonic() - started,
        tuple(warnings),
    )


def _warm(
    stored: StoredVariant, config: Config, size_bytes: int, *, dry_run: bool, say: Callable[[str], None]
) -> int:
    """Every bulk file into the page cache: by their digests where those are due, else without a copy."""
    paths = tuple(stored.folder / file.path for file in stored.manifest.files if is_bulk(file.path))
    cold = cold_bytes(paths)
    # the page cache can be taken back, but what is taken back was warmed for nothing
    _require_memory(cold + size_bytes)
    if dry_run:
        return cold
    say(f"reading {cold / 1e6:.1f} MB")
    timed_verification(stored.folder, stored.manifest, config.run_folder, Verification.FIRST)
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for offset, length in chunks(descriptor):
                fetch(descriptor, offset, length)
        finally:
            os.close(descriptor)
    return cold


def _copy(
    stored: StoredVariant,
    config: Config,
    folder: Path,
    size_bytes: int,
    *,
    dry_run: bool,
    say: Callable[[str], None],
) -> int:
    """Copy the variant, holes kept, and verify what arrived; a copy of this capture that is there stays."""
    manifest = stored.manifest
    if staged_folder(config.run_folder, manifest) == folder:
        timed_verification(folder, manifest, config.run_folder, Verification.FIRST, staged=True)
        return 0
    _require_memory(2 * size_bytes)
    if dry_run:
        return size_bytes
    say(f"copying {size_bytes / 1e6:.1f} MB to {folder}")
    parent = make_private(folder.parent)
    require_own_folder(parent, "snapshot.stage_dir")
    with _temporary(parent) as staging:
        try:
            for path in [*(file.path for file in manifest.files), MANIFEST_NAME]:
                _copy_file(stored.folder / path, staging / path)
        except OSError as error:
            raise CannotCreateError(
                f"cannot copy snapshot to {folder}: {error.strerror}",
                hint=f"make room there, or mount it larger: mount -o remount,size=SIZE {parent.parent}",
            ) from error
        verify_files(staging, manifest)
        publish(staging, folder)
    remember_staged(config.run_folder, manifest, folder)
    remember_verified(folder, manifest, config.run_folder, staged=True)
    return size_bytes


@contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=parent))
    try:
        yield folder
    finally:
        # gone by renaming, or what was there before
        if folder.exists():
            remove_tree(folder)


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(mode=0o700, exist_ok=True)
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(writing, os.fstat(reading).st_size)
            for offset, length in chunks(reading, _COPY_BYTES):
                # shorter than it was, or written in part: the digests will say so
                os.pwrite(writing, os.pread(reading, length, offset), offset)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _stored_bytes(stored: StoredVariant) -> int:
    """What the files take, holes left out."""
    return sum(
        min(file.size_bytes, os.stat(stored.folder / file.path).st_blocks * 512)
        for file in stored.manifest.files
        if (stored.folder / file.path).exists()
    )


def _require_memory(needed_bytes: int) -> None:
    """Refuse what would leave the host, or our cgroup, without its floor."""
    available = available_memory()
    floor = max(_FLOOR_BYTES, int(_FLOOR_PART * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    if needed_bytes + floor > available:
        raise CannotCreateError(
            f"not enough memory to stage: {needed_bytes / 1e6:.0f} MB with the server restored, "
            f"{floor / 1e6:.0f} MB stay free, {available / 1e6:.0f} MB are available",
            hint="free memory first, or restore without staging",
        )


def _is_memory(folder: Path) -> bool:
    """Whether a folder, or the next one above that is there, lies on a file system in memory."""
    place = os.path.realpath(folder)
    points = {mount.point: mount.filesystem for mount in read_mounts(Path("/proc/self/mountinfo"))}
    while place not in points and place != "/":
        place = os.path.dirname(place)
    return points.get(place) in _MEMORY_FILE_SYSTEMS


def configured_destination(given: Path | None, config: Config) -> Path | None:
    """Where to copy to: the option's folder, else the configured one, else nowhere."""
    configured = config.optional_text("snapshot.stage_dir")
    folder = given or (Path(configured) if configured else None)
    if folder is not None and not folder.is_absolute():
        folder = Path(os.path.abspath(folder))
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UsageError(f"not a folder: {folder}")
    return folder
