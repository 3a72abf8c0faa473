"""One pack on this host: a sparse copy in the cache, or the store's own file. Never trusted, only read."""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from coldstart_cli.own_folders import open_own_beneath
from coldstart_cli.regular import open_regular
from coldstart_fs.content.page_cache import read_in_memory
from coldstart_fs.content.range_locks import lock_range, unlock_range

_generations = itertools.count(1)
_OPENINGS = 20
_OPENING_PAUSE_SECONDS = 0.005
# other processes verify anew what they have of a file that was touched
_TOUCH_SECONDS = 60.0
# when writing takes longer, somebody else may have written too: all is verified anew
_OWN_SECONDS = 0.005
_WRITE_BYTES = 1 << 20
# of most file systems; a larger one costs a look at what is blank
_BLOCK_BYTES = 4096


class PackFile:
    """An open pack; it stays open for as long as anybody refers to it.

    What was read and verified holds for one `generation`: it ends when somebody else changes the file.
    While it is open nobody may remove it from the cache: that is what the shared flock says.
    """

    def __init__(
        self,
        path: Path,
        *,
        original: bool,
        create: bool = False,
        in_memory: bool = False,
        cache: Path | None = None,
    ) -> None:
        """Open, with `create` for filling; `original` is a file of a store, which is never written.

        From the folder `cache` on no link is followed.
        """
        self.path = path
        self.original = original
        self.writable = create
        self.locking = create
        self.reads_now = True
        """Whether the file system can say what is in memory."""
        self.descriptor = -1
        self._in_memory = in_memory
        self._lock = Lock()
        self._writes = 0
        self.descriptor = (
            open_regular(path) if original else _open_leased(path, cache or path.parent, create=create)
        )
        self._changed_ns = os.fstat(self.descriptor).st_ctime_ns
        self.generation = next(_generations)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def current(self) -> int:
        """The generation that the file is in now; 0 when it has lost its name, and helps nobody else."""
        writes = self._writes
        status = os.fstat(self.descriptor)
        changed_ns = status.st_ctime_ns
        if not status.st_nlink:
            return 0
        # while we write, times run ahead of what we know
        if changed_ns != self._changed_ns and not writes & 1 and writes == self._writes:
            with self._lock:
                if changed_ns != self._changed_ns and writes == self._writes:
                    self._changed_ns = changed_ns
                    self.generation = next(_generations)
        return self.generation

    def read_now(self, offset: int, length: int) -> bytes | bytearray | None:
        """Exactly these bytes, if they are in memory."""
        if self._in_memory:
            part = os.pread(self.descriptor, length, offset)
            return part if len(part) == length else None
        if not self.reads_now:
            return None
        try:
            return read_in_memory(self.descriptor, offset, length)
        except OSError:
            self.reads_now = False
            return None

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes, fewer at the end of the file. Waits for the disk."""
        return os.pread(self.descriptor, length, offset)

    def holds_data(self, offset: int, length: int) -> bool:
        """Whether anything of the range was ever written, as far as the file system tells.

        Blocks that it shares with what stands beside it are asked only where it has none of its own.
        """
        begin = -(-offset // _BLOCK_BYTES) * _BLOCK_BYTES
        end = (offset + length) // _BLOCK_BYTES * _BLOCK_BYTES
        if begin >= end:
            begin, end = offset, offset + length
        try:
            return os.lseek(self.descriptor, begin, os.SEEK_DATA) < end
        except OSError:  # ENXIO: nothing but a hole, or the end
            return False

    def holds_all(self, offset: int, length: int) -> bool:
        """Whether all blocks of the range were written, as far as the file system tells."""
        try:
            begin = os.lseek(self.descriptor, offset, os.SEEK_DATA)
            return begin == offset and os.lseek(self.descriptor, offset, os.SEEK_HOLE) >= offset + length
        except OSError:
            return False

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> int:
        """Put verified bytes at their place; the generation that they are part of. Raises `OSError`."""
        view = memoryview(data)
        while view:
            with self._writing():
                written = os.pwrite(self.descriptor, view[:_WRITE_BYTES], offset)
            offset, view = offset + written, view[written:]
        return self.generation

    def end_at(self, size_bytes: int) -> None:
        """Cut off what stands behind the end of the pack. Raises `OSError`."""
        if os.fstat(self.descriptor).st_size > size_bytes:
            with self._writing():
                os.ftruncate(self.descriptor, size_bytes)

    def sync(self) -> None:
        """Have the disk keep what was written. Raises `OSError`."""
        os.fdatasync(self.descriptor)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Know the times of the file that we make ourselves."""
        with self._lock:
            self._writes += 1
            began = time.monotonic()
            if os.fstat(self.descriptor).st_ctime_ns != self._changed_ns:
                self.generation = next(_generations)
            try:
                yield
            finally:
                self._changed_ns = os.fstat(self.descriptor).st_ctime_ns
                if time.monotonic() - began > _OWN_SECONDS:
                    self.generation = next(_generations)
                self._writes += 1

    def lock(self, offset: int, length: int) -> bool:
        """Take a range for filling it; false when another process has it."""
        if not self.locking:
            return True
        try:
            return lock_range(self.descriptor, offset, length)
        except OSError:  # a file system without such locks: each process fetches for itself
            self.locking = False
            return True

    def unlock(self, offset: int, length: int) -> None:
        if self.locking:
            with suppress(OSError):
                unlock_range(self.descriptor, offset, length)

    def touch(self) -> None:
        """Say that the pack is in use: what was used longest ago is removed first."""
        if self.writable and time.time() - os.fstat(self.descriptor).st_mtime > _TOUCH_SECONDS:
            with self._writing(), suppress(OSError):
                os.utime(self.descriptor)


def _open_leased(path: Path, cache: Path, *, create: bool) -> int:
    flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
    for _ in range(_OPENINGS):
        descriptor = open_own_beneath(cache, path.relative_to(cache), flags)
        try:
            if _lease(descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        time.sleep(_OPENING_PAUSE_SECONDS)  # who removes or mends a file has it for a moment
    raise OSError(f"it is removed again and again: {path}")


def _lease(descriptor: int) -> bool:
    """Keep others from removing the file; false when that is too late."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return os.fstat(descriptor).st_nlink > 0
