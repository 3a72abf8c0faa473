"""Sizes and digests of a variant's files: criu 4.2 hangs on short images and restores altered ones."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from coldstart_cli.errors import ColdstartError, ConfigError, DataError, IoFailure, PermissionNeededError
from coldstart_cli.files import atomic_write
from coldstart_snapshot.kept.manifest import MANIFEST_NAME, ORIGIN_NAME, Manifest, SnapshotFile
from coldstart_snapshot.kept.privacy import exposed_entries, require_private

UPPER_NAME = "upper.tar"

_MMAP_FROM_BYTES = 1 << 20


class Verification(StrEnum):
    """When the digests of bulk files are computed: on this copy's first use, each time, or not at all.

    Sizes are looked at each time, and so are the digests of small files: criu's metadata, the bundle.
    """

    FIRST = "first"
    ALWAYS = "always"
    NEVER = "never"


def parse_verification(text: str, source: str) -> Verification:
    if text not in set(Verification):
        raise ConfigError(
            f"wrong value of snapshot.verify, {source}: {text}",
            hint=f"it must be one of {', '.join(Verification)}",
        )
    return Verification(text)


@dataclass(frozen=True)
class VerifyResult:
    """What a check of one variant found; `problems` name the files."""

    files: int
    size_bytes: int
    problems: tuple[str, ...]


@dataclass(frozen=True)
class VerifyPass:
    """What verification cost before a restore; `bulk_bytes` were read for their digests."""

    seconds: float
    bulk_bytes: int

    @property
    def bytes_per_second(self) -> float | None:
        return self.bulk_bytes / self.seconds if self.bulk_bytes and self.seconds else None


def digest_files(folder: Path) -> tuple[SnapshotFile, ...]:
    """Size and digest of every file of a variant but the manifest; each is on the disk afterwards."""
    found = []
    for path in _regular_files(folder):
        descriptor = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, 0o600)
            os.fsync(descriptor)
            size_bytes = os.fstat(descriptor).st_size
            found.append(SnapshotFile(path, size_bytes, _digest(descriptor, size_bytes)))
        finally:
            os.close(descriptor)
    return tuple(found)


def verify_files(folder: Path, manifest: Manifest, *, digests: bool = True, bulk: bool = True) -> None:
    """Raise for the first file that is absent, open to others, of another size, altered, or not listed.

    Without `bulk` only the digests of small files are computed.
    """
    for problem in _problems(folder, manifest, digests=digests, bulk=bulk):
        raise DataError(
            f"snapshot {manifest.name} is damaged ({manifest.variant}): {problem}",
            hint=f"coldstart snap remove {manifest.name} --variant {manifest.variant}, then capture again",
        )


def verify_some(folder: Path, manifest: Manifest, paths: Collection[str]) -> None:
    """The same for these files alone, digests included."""
    for file in manifest.files:
        if file.path in paths and (problem := _size_problem(folder, file) or _digest_problem(folder, file)):
            raise DataError(f"snapshot {manifest.name} is damaged ({manifest.variant}): {problem}")


def check_files(folder: Path, manifest: Manifest) -> VerifyResult:
    """Check every file and report all that is wrong."""
    problems = tuple(_problems(folder, manifest, digests=True))
    return VerifyResult(len(manifest.files), manifest.size_bytes, problems)


def check_stored(folder: Path, manifest: Manifest, state_folder: Path) -> VerifyResult:
    """The same of a stored variant, with the folders it lies in: what a restore would refuse."""
    result = check_files(folder, manifest)
    try:
        require_private(folder, state_folder)
    except PermissionNeededError as error:
        return replace(result, problems=(error.message, *result.problems))
    return result


def verify_for_restore(
    folder: Path, manifest: Manifest, run_folder: Path, mode: Verification, *, staged: bool = False
) -> bool:
    """Verify as `mode` says; true when the digests of bulk files were computed, which warms the page cache.

    What was verified is remembered by inode, size and ctime in the run folder, so until the next boot; of a
    `staged` copy apart from the variant itself.
    """
    record = _record_path(run_folder, manifest, staged)
    now = _fingerprint(folder, manifest)
    known = mode is Verification.FIRST and _remembered(record) == now
    digests = mode is not Verification.NEVER and not known
    verify_files(folder, manifest, bulk=digests)
    if digests:
        remember_verified(folder, manifest, run_folder, staged=staged)
    return digests


def remember_verified(folder: Path, manifest: Manifest, run_folder: Path, *, staged: bool = False) -> None:
    """Note that these very files are good; a run folder that cannot be written only costs time."""
    record = _record_path(run_folder, manifest, staged)
    with suppress(ColdstartError):
        atomic_write(record, json.dumps(_fingerprint(folder, manifest)).encode(), mode=0o600)


def _record_path(run_folder: Path, manifest: Manifest, staged: bool) -> Path:
    # a variant's name ends in a digest: no other variant is called like that
    name = f"{manifest.variant}.staged.json" if staged else f"{manifest.variant}.json"
    return run_folder / "verified" / manifest.name / name


def _remembered(record: Path) -> object:
    try:
        return json.loads(record.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _fingerprint(folder: Path, manifest: Manifest) -> list[list[object]]:
    found: list[list[object]] = []
    for file in manifest.files:
        try:
            status = os.lstat(folder / file.path)
        except OSError:
            continue
        stamp = [status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns]
        found.append([file.path, file.digest, *stamp])
    return found


def is_bulk(path: str) -> bool:
    """Whether a file of a variant may be of any size: memory, and the writable layer."""
    return path == UPPER_NAME or fnmatchcase(path, "images/pages-*.img")


def _problems(folder: Path, manifest: Manifest, *, digests: bool, bulk: bool = True) -> Iterator[str]:
    """Owners, modes and sizes of all files first: they cost nothing."""
    yield from exposed_entries(folder)
    sound = []
    for file in manifest.files:
        if problem := _size_problem(folder, file):
            yield problem
        else:
            sound.append(file)
    listed = {file.path for file in manifest.files}
    for path in _regular_files(folder, strict=False):
        if path not in listed:
            yield f"file is not in the manifest: {path}"
    for file in sound if digests else ():
        if (bulk or not is_bulk(file.path)) and (problem := _digest_problem(folder, file)):
            yield problem


def _size_problem(folder: Path, file: SnapshotFile) -> str | None:
    try:
        status = os.lstat(folder / file.path)
    except OSError:
        return f"file is missing: {file.path}"
    if not stat.S_ISREG(status.st_mode):
        return f"not a regular file: {file.path}"
    if status.st_size != file.size_bytes:
        return f"file has {status.st_size} bytes instead of {file.size_bytes}: {file.path}"
    return None


def _digest_problem(folder: Path, file: SnapshotFile) -> str | None:
    try:
        descriptor = os.open(folder / file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return f"file cannot be read: {file.path}: {error.strerror}"
    try:
        altered = _digest(descriptor, file.size_bytes) != file.digest
    finally:
        os.close(descriptor)
    return f"file was altered: {file.path}" if altered else None


def _digest(descriptor: int, size_bytes: int) -> str:
    from blake3 import blake3

    hasher = blake3(max_threads=blake3.AUTO)
    try:
        if size_bytes >= _MMAP_FROM_BYTES:
            hasher.update_mmap(f"/proc/self/fd/{descriptor}")
        else:
            with os.fdopen(os.dup(descriptor), "rb") as stream:
                stream.seek(0)
                hasher.update(stream.read())
    except OSError as error:
        raise IoFailure(f"cannot read snapshot file: {error.strerror}") from error
    return f"blake3:{hasher.hexdigest()}"


def _regular_files(folder: Path, *, strict: bool = True) -> list[str]:
    """Every file below, relative, sorted; anything that is neither file nor folder is refused when strict."""
    found = []
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        for entry in os.scandir(folder / prefix):
            path = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{path}/")
            elif entry.is_file(follow_symlinks=False):
                if path not in {MANIFEST_NAME, ORIGIN_NAME}:
                    found.append(path)
            elif strict:
                raise DataError(f"snapshot holds something that is no file: {folder / path}")
            else:
                found.append(path)
    return sorted(found)
