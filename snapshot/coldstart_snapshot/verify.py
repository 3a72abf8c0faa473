"""Sizes and digests of a variant's files: criu 4.2 hangs on short images and restores altered ones."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from coldstart_cli.errors import ColdstartError, DataError, IoFailure
from coldstart_cli.files import atomic_write
from coldstart_snapshot.manifest import MANIFEST_NAME, Manifest, SnapshotFile

_MMAP_FROM_BYTES = 1 << 20


class Verification(StrEnum):
    """When digests are computed: on this copy's first use, each time, or not at all. Sizes always count."""

    FIRST = "first"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True)
class VerifyResult:
    """What a check of one variant found; `problems` name the files."""

    files: int
    size_bytes: int
    problems: tuple[str, ...]


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


def verify_files(folder: Path, manifest: Manifest, *, digests: bool = True) -> None:
    """Raise for the first file that is absent, of another size, altered, or not in the manifest."""
    for problem in _problems(folder, manifest, digests=digests):
        raise DataError(
            f"snapshot {manifest.name} is damaged ({manifest.variant}): {problem}",
            hint=f"coldstart snap remove {manifest.name} --variant {manifest.variant}, then capture again",
        )


def check_files(folder: Path, manifest: Manifest) -> VerifyResult:
    """Check every file and report all that is wrong."""
    problems = tuple(_problems(folder, manifest, digests=True))
    return VerifyResult(len(manifest.files), manifest.size_bytes, problems)


def verify_for_restore(folder: Path, manifest: Manifest, run_folder: Path, mode: Verification) -> bool:
    """Verify as `mode` says; true when digests were computed.

    What was verified is remembered by inode, size and ctime in the run folder, so until the next boot.
    """
    record = run_folder / "verified" / manifest.name / f"{manifest.variant}.json"
    now = _fingerprint(folder, manifest)
    known = mode is Verification.FIRST and _remembered(record) == now
    digests = mode is not Verification.NEVER and not known
    verify_files(folder, manifest, digests=digests)
    if digests:
        remember_verified(folder, manifest, run_folder)
    return digests


def remember_verified(folder: Path, manifest: Manifest, run_folder: Path) -> None:
    """Note that these very files are good; a run folder that cannot be written only costs time."""
    record = run_folder / "verified" / manifest.name / f"{manifest.variant}.json"
    with suppress(ColdstartError):
        atomic_write(record, json.dumps(_fingerprint(folder, manifest)).encode(), mode=0o600)


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


def _problems(folder: Path, manifest: Manifest, *, digests: bool) -> Iterator[str]:
    """Sizes of all files first: they cost nothing."""
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
        if problem := _digest_problem(folder, file):
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
                if path != MANIFEST_NAME:
                    found.append(path)
            elif strict:
                raise DataError(f"snapshot holds something that is no file: {folder / path}")
            else:
                found.append(path)
    return sorted(found)
