"""What of a file the page cache holds, and getting more of it there."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

_PAGE_BYTES = mmap.PAGESIZE
_CACHESTAT = 451  # on every architecture; Linux 6.5
_CHUNK_BYTES = 8 << 20
_STEP_BYTES = 128 << 10


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recent"))


def resident_bytes(descriptor: int, offset: int = 0, length: int | None = None) -> int:
    """How many bytes of a range, or of the whole file, are in the page cache."""
    if length is None:
        length = os.fstat(descriptor).st_size - offset
    if length <= 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    wanted, found = _Range(offset, length), _CacheStat()
    if libc.syscall(_CACHESTAT, descriptor, ctypes.byref(wanted), ctypes.byref(found), 0) == 0:
        return min(length, int(found.cache) * _PAGE_BYTES)
    number = ctypes.get_errno()
    if number not in {errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP}:
        raise OSError(number, os.strerror(number))
    return _mincore(libc, descriptor, offset, length)


def _mincore(libc: ctypes.CDLL, descriptor: int, offset: int, length: int) -> int:
    begin = offset // _PAGE_BYTES * _PAGE_BYTES
    span = offset + length - begin
    pages = (ctypes.c_ubyte * -(-span // _PAGE_BYTES))()
    # a private writable mapping, of which ctypes can take the address; nothing is written
    with mmap.mmap(descriptor, span, flags=mmap.MAP_PRIVATE, offset=begin) as content:
        first = ctypes.c_char.from_buffer(content)
        try:
            if libc.mincore(ctypes.byref(first), ctypes.c_size_t(span), pages) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            del first
    return min(length, sum(page & 1 for page in bytes(pages)) * _PAGE_BYTES)


def data_ranges(descriptor: int) -> Iterator[tuple[int, int]]:
    """Begin and end of what is stored, holes left out."""
    size_bytes = os.fstat(descriptor).st_size
    end = 0
    while end < size_bytes:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, end


def chunks(descriptor: int, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Offset and length of pieces of what is stored, in order."""
    for begin, end in data_ranges(descriptor):
        for offset in range(begin, end, chunk_bytes):
            yield offset, min(chunk_bytes, end - offset)


def fetch(descriptor: int, offset: int, length: int) -> None:
    """Read a range into the page cache, without a copy, and return when it is there."""
    end = offset + length
    # of one request the kernel begins no more than the device's read-ahead (Linux 6.18), 128 KiB as a rule
    for place in range(offset, end, _STEP_BYTES):
        os.posix_fadvise(descriptor, place, min(_STEP_BYTES, end - place), os.POSIX_FADV_WILLNEED)
    # and it only begins: the last byte of the range waits for what was begun
    os.pread(descriptor, 1, end - 1)


def cold_bytes(paths: tuple[Path, ...]) -> int:
    """Stored bytes of these files that the page cache lacks."""
    missing = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            stored = sum(end - begin for begin, end in data_ranges(descriptor))
            missing += max(0, stored - resident_bytes(descriptor))
        finally:
            os.close(descriptor)
    return missing
