"""Requests that a server has read and not answered, where its successor finds them.

Linux sends them again on demand from 6.9 on. Before, what a server had read when it died was lost, and who
waited for it waited for ever. So requests are read into memory that the keeper holds: one place for the one
at hand, and a slot for each that threads work on. An answer that is given twice is dropped by the kernel.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct

from coldstart_fs.fuse.protocol import IN_HEADER, REQUEST_BUFFER_BYTES, Opcode

_SLOT_BYTES = 256
_SLOTS = 1024
_GAPS = Struct("<Q")
_HEADER_BYTES = 4096
_AT_HAND = _HEADER_BYTES
_FIRST_SLOT = _AT_HAND + REQUEST_BUFFER_BYTES
_SIZE_BYTES = _FIRST_SLOT + _SLOTS * _SLOT_BYTES
_LENGTH = Struct("<I")
_NOTHING = bytes(_LENGTH.size)
# nobody waits for these
_UNANSWERED = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT})


def make_journal() -> int:
    """The descriptor of a journal's memory; untouched pages take no memory."""
    descriptor = os.memfd_create("coldstart-requests", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _SIZE_BYTES)
    return descriptor


def _unique(request: bytes) -> int:
    unique: int = IN_HEADER.unpack_from(request)[2]
    return unique


def has_gaps(descriptor: int) -> bool:
    """Whether a server that has died may have had requests that are not in its journal."""
    (gaps,) = _GAPS.unpack(os.pread(descriptor, _GAPS.size, 0))
    return bool(gaps)


class Journal:
    """A journal as its server sees it. Requests are kept by one thread and answered by any."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _SIZE_BYTES)
        self._view = memoryview(self._memory)
        self._at_hand = self._view[_AT_HAND:_FIRST_SLOT]
        self._free: list[int] = []
        self._slots: dict[int, int] = {}
        self._unkept: set[int] = set()

    def inherit(self) -> list[bytes]:
        """What the predecessor left, in no order. It stays in the journal until it is answered."""
        left: dict[int, bytes] = {}
        self._count_gaps()
        for place in range(_FIRST_SLOT, _SIZE_BYTES, _SLOT_BYTES):
            data = self._request_at(place)
            if data:
                unique = _unique(data)
                left[unique], self._slots[unique] = data, place
            else:
                self._free.append(place)
        data = self._request_at(_AT_HAND)
        if data and _unique(data) not in left:
            left[_unique(data)] = data
            self.keep(_unique(data), data)
        self._clear(_AT_HAND)
        return list(left.values())

    def read(self, descriptor: int) -> bytes:
        """The next request. It stays in the journal until the next one is read."""
        return bytes(self._at_hand[: os.readv(descriptor, [self._at_hand])])

    def keep(self, unique: int, data: bytes) -> None:
        """Keep the request at hand until it is answered."""
        if unique in self._slots:
            return
        if not self._free or len(data) > _SLOT_BYTES:
            self._unkept.add(unique)
            self._count_gaps()
            return
        place = self._free.pop()
        # the length comes last: half a request is none
        self._memory[place + _LENGTH.size : place + len(data)] = data[_LENGTH.size :]
        self._memory[place : place + _LENGTH.size] = data[: _LENGTH.size]
        self._slots[unique] = place

    def answered(self, unique: int) -> None:
        """The kernel has the answer; for one that was not kept it does nothing."""
        place = self._slots.pop(unique, None)
        if place is not None:
            self._clear(place)
            self._free.append(place)
        elif unique in self._unkept:
            self._unkept.discard(unique)
            self._count_gaps()

    def _count_gaps(self) -> None:
        self._memory[0 : _GAPS.size] = _GAPS.pack(len(self._unkept))

    def _request_at(self, place: int) -> bytes:
        (length,) = _LENGTH.unpack_from(self._memory, place)
        if not IN_HEADER.size <= length <= (REQUEST_BUFFER_BYTES if place == _AT_HAND else _SLOT_BYTES):
            return b""
        data = self._memory[place : place + length]
        return b"" if IN_HEADER.unpack_from(data)[1] in _UNANSWERED else data

    def _clear(self, place: int) -> None:
        self._memory[place : place + _LENGTH.size] = _NOTHING
