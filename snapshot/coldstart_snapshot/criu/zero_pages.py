"""Zero pages of criu's pages images become holes: their content stays, what is read and stored shrinks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import IoFailure

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WINDOW_BYTES = 1 << 20
_ZEROS = bytes(_WINDOW_BYTES)
# a hole costs 0.1 ms on ext4, and a file of many reads slowly
_LEAST_HOLE_BYTES = 64 << 10
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


@dataclass(frozen=True)
class PagesFacts:
    """What the pages images of a variant hold: all bytes, those in zero pages, and what they take on disk."""

    size_bytes: int
    zero_bytes: int
    allocated_bytes: int

    @property
    def nonzero_bytes(self) -> int:
        return self.size_bytes - self.zero_bytes


def punch_zero_pages(images: Path) -> PagesFacts:
    """Make holes of the zero pages; where the file system has none, they are only counted.

    `fallocate --dig-holes` does the same and drops what it read from the page cache, which the digests
    that follow need.
    """
    size_bytes = zero_bytes = allocated_bytes = 0
    for path in pages_images(images):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size_bytes += os.fstat(descriptor).st_size
            zero_bytes += _punch(descriptor)
            allocated_bytes += os.fstat(descriptor).st_blocks * 512
        except OSError as error:
            raise IoFailure(f"cannot look for zero pages: {path}: {error.strerror}") from error
        finally:
            os.close(descriptor)
    return PagesFacts(size_bytes, zero_bytes, allocated_bytes)


def pages_images(images: Path) -> tuple[Path, ...]:
    """Criu's images of memory, by name."""
    return tuple(sorted(images.glob("pages-*.img")))


def _punch(descriptor: int) -> int:
    runs = list(_zero_runs(descriptor))
    for start, end in runs:
        if end - start >= _LEAST_HOLE_BYTES:
            _punch_hole(descriptor, start, end - start)
    return sum(end - start for start, end in runs)


def _zero_runs(descriptor: int) -> Iterator[tuple[int, int]]:
    """Ranges of whole zero pages, joined where they touch."""
    window = bytearray(_WINDOW_BYTES)
    offset = begin = end = 0
    while length := os.preadv(descriptor, [window], offset):
        for start, stop in _zero_ranges(window, 0, length):
            if offset + start != end:
                if end > begin:
                    yield begin, end
                begin = offset + start
            end = offset + stop
        offset += length
    if end > begin:
        yield begin, end


def _zero_ranges(window: bytearray, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Halves of halves: a range that begins with something else than zeros costs one comparison."""
    length = end - start
    # the one comparison of a part that makes no copy of it
    if window.startswith(_ZEROS if length == _WINDOW_BYTES else _ZEROS[:length], start, end):
        yield start, end
    elif length > _PAGE_BYTES:
        middle = start + max(_PAGE_BYTES, length // 2 // _PAGE_BYTES * _PAGE_BYTES)
        yield from _zero_ranges(window, start, middle)
        yield from _zero_ranges(window, middle, end)


def _punch_hole(descriptor: int, offset: int, length: int) -> None:
    import ctypes  # 5 ms, and a restore needs none of it

    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_int64(offset), ctypes.c_int64(length))
    if libc.fallocate64(descriptor, _KEEP_SIZE | _PUNCH_HOLE, *arguments) != 0:
        number = ctypes.get_errno()
        # NFS before 4.2 and others have no holes: the pages are stored as they are
        if number not in {errno.EOPNOTSUPP, errno.ENOSYS}:
            raise OSError(number, os.strerror(number))
