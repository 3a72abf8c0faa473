"""How much the cache may take of its disk: what was used longest ago goes, never what a mount has open."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

# the format's version is part of the path: two versions of coldstart never read each other's files
PACKS = "packs-v2"
_SMALLEST_FLOOR_SHARE = 20
_LARGEST_FLOOR_BYTES = 10 << 30
# other processes fill the same disk: what was measured holds for so long, and for so much
_MEASURED_SECONDS = 5.0
_MEASURED_BYTES = 256 << 20
# what is removed beyond the need, as a share of the limit, so that not every chunk costs a file
_SLACK_SHARE = 16


@dataclass(frozen=True)
class CacheLimits:
    """`quota_bytes` of the cache at most (None: no limit); `free_bytes` of its disk are left to others.

    Without `free_bytes` that is a twentieth of the disk, 10 GiB at most.
    """

    quota_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True)
class CopyOnDisk:
    """A file of the cache: the blocks it takes, and when it was used last."""

    path: Path
    size_bytes: int
    used: float


class CacheRoom:
    """Thread-safe; each process that fills a cache has one, and they agree by leases alone."""

    def __init__(self, folder: Path, limits: CacheLimits, log: Callable[[str], None]) -> None:
        self._folder = folder
        self._limits = limits
        self._log = log
        self._left_bytes = 0
        self._until = 0.0
        self._refusal: str | None = None
        self._measuring = Lock()
        self._lock = Lock()

    def take(self, size_bytes: int) -> str | None:
        """None when so much may be written; else why not."""
        with self._lock:
            if time.monotonic() < self._until and (self._refusal or self._left_bytes >= size_bytes):
                self._left_bytes -= size_bytes
                return self._refusal
        if not self._measuring.acquire(blocking=False):
            return self._refusal
        try:
            left_bytes = self._measured(size_bytes)
            with self._lock:
                self._left_bytes = min(left_bytes, _MEASURED_BYTES) - size_bytes
                self._until = time.monotonic() + _MEASURED_SECONDS
                self._refusal = None if left_bytes >= size_bytes else self._reason()
            return self._refusal
        finally:
            self._measuring.release()

    def spare_bytes(self) -> int:
        """What may be written with nothing removed for it. Raises `OSError`."""
        left_bytes = free_bytes(self._folder) - self._floor()
        if self._limits.quota_bytes is not None:
            used_bytes = sum(copy.size_bytes for copy in copies_of(self._folder))
            left_bytes = min(left_bytes, self._limits.quota_bytes - used_bytes)
        return max(0, left_bytes)

    def measure_again(self) -> None:
        """The disk was full before it should have been."""
        self._until = 0.0

    def _measured(self, size_bytes: int) -> int:
        """How much may be written, after what is not needed made room for it."""
        copies = copies_of(self._folder)
        used_bytes = sum(copy.size_bytes for copy in copies)
        left_bytes = self._left(used_bytes)
        if left_bytes >= size_bytes:
            return left_bytes
        wanted = size_bytes + min(self._smallest_limit() // _SLACK_SHARE, _MEASURED_BYTES)
        freed = remove_unused(copies, wanted - left_bytes)
        if freed:
            self._log(f"cache made room by removing what was used longest ago: {freed} bytes of {used_bytes}")
        return self._left(used_bytes - freed)

    def _left(self, used_bytes: int) -> int:
        floor = self._floor()
        # with nothing to stay free, writing finds out what there is
        left_bytes = free_bytes(self._folder) - floor if floor else _MEASURED_BYTES
        if self._limits.quota_bytes is not None:
            left_bytes = min(left_bytes, self._limits.quota_bytes - used_bytes)
        return left_bytes

    def _floor(self) -> int:
        if self._limits.free_bytes is not None:
            return self._limits.free_bytes
        return min(_disk_bytes(self._folder) // _SMALLEST_FLOOR_SHARE, _LARGEST_FLOOR_BYTES)

    def _smallest_limit(self) -> int:
        disk_bytes = _disk_bytes(self._folder)
        quota_bytes = self._limits.quota_bytes
        return disk_bytes if quota_bytes is None else min(quota_bytes, disk_bytes)

    def _reason(self) -> str:
        quota_bytes = self._limits.quota_bytes
        if quota_bytes is not None and free_bytes(self._folder) > self._floor():
            return f"its quota of {quota_bytes} bytes is reached, and mounts use all of it"
        return f"its disk is full but for the {self._floor()} bytes that stay free, and mounts use all of it"


def copies_of(folder: Path) -> list[CopyOnDisk]:
    """What the cache has of packs, what was used longest ago first."""
    found = []
    for entry in _files(folder / PACKS):
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            found.append(CopyOnDisk(Path(entry.path), status.st_blocks * 512, status.st_mtime))
    return sorted(found, key=lambda copy: copy.used)


def remove_unused(copies: list[CopyOnDisk], size_bytes: int) -> int:
    """Remove copies that no mount has open, in their order, until so much is free; how much it was."""
    freed = 0
    for copy in copies:
        if freed >= size_bytes:
            break
        if remove_copy(copy.path):
            freed += copy.size_bytes
    return freed


def remove_copy(path: Path) -> bool:
    """Remove a pack's copy unless somebody has it open, or that cannot be told."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
            return False
        os.unlink(path)  # who opens it now finds, once it has its lease, that the file has no name any more
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def free_bytes(folder: Path) -> int:
    """What the disk under the cache can take, for this user."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _disk_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_blocks * status.f_frsize


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    if folder.is_symlink():
        return
    with suppress(OSError), os.scandir(folder) as folders:
        for entry in folders:
            if not entry.is_dir(follow_symlinks=False):
                continue
            with suppress(OSError), os.scandir(entry.path) as files:
                yield from (file for file in files if file.name.endswith(".pack"))
