"""Where new chunks wait until the whole tree is known and with it their order in the packs."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from coldstart_cli.errors import IoFailure
from coldstart_fs.format.gathered import GatheredWriter

_LONGEST_AHEAD_BYTES = 1 << 20
_KEEP_SIZE_PUNCH_HOLE = 0x03
_RELEASE_BYTES = 32 << 20


class Spool:
    """Chunks back to back in one file: first only written, then only read, each at most once.

    What was read is given back to the file system, so that spool and packs together take little more
    than the packs; a file system that cannot do it holds both until the spool goes.
    """

    def __init__(self, scratch: Path) -> None:
        self._writer = GatheredWriter(scratch / "spool")
        self._window: bytes = b""
        self._begin = self._next = 0
        self._ahead_bytes = 0
        self._used: list[tuple[int, int]] = []
        self._unreleased_bytes = 0
        self._can_release = True

    @property
    def size_bytes(self) -> int:
        return self._writer.size_bytes

    def append(self, chunk: bytes | memoryview) -> int:
        """Keep one chunk; its offset."""
        return self._writer.write(chunk)

    def finish(self) -> None:
        """Nothing is appended any more."""
        self._writer.flush()

    def peek(self, offset: int, length: int) -> bytes:
        """One chunk that nobody has taken yet."""
        return self._read(offset, length, length)

    def take(self, offset: int, length: int) -> memoryview:
        """One chunk, which is not needed here any more."""
        start = offset - self._begin
        if start < 0 or start + length > len(self._window):
            # neighbours are read together while they are asked for one after the other
            self._ahead_bytes = (
                min(2 * self._ahead_bytes + length, _LONGEST_AHEAD_BYTES) if (offset == self._next) else 0
            )
            self._window = self._read(offset, max(length, self._ahead_bytes), length)
            self._begin, start = offset, 0
        self._next = offset + length
        self._use(offset, length)
        return memoryview(self._window)[start : start + length]

    def _read(self, offset: int, length: int, needed: int) -> bytes:
        try:
            data = os.pread(self._writer.fileno(), length, offset)
        except OSError as error:
            raise IoFailure(f"cannot read `{self._writer.path}`: {error.strerror}") from error
        if len(data) < needed:
            raise IoFailure(f"cannot read `{self._writer.path}`: it was cut short by somebody else")
        return data

    def _use(self, offset: int, length: int) -> None:
        if self._used and self._used[-1][1] == offset:
            self._used[-1] = self._used[-1][0], offset + length
        else:
            self._used.append((offset, offset + length))
        self._unreleased_bytes += length
        if self._unreleased_bytes >= _RELEASE_BYTES:
            self._release()

    def _release(self) -> None:
        # each hole's ends lie inside of blocks: joined ranges give whole blocks back
        joined: list[tuple[int, int]] = []
        for begin, end in sorted(self._used):
            if joined and joined[-1][1] == begin:
                joined[-1] = joined[-1][0], end
            else:
                joined.append((begin, end))
        self._used, self._unreleased_bytes = [], 0
        for begin, end in joined:
            if self._can_release:
                self._can_release = _punch(self._writer.fileno(), begin, end - begin)

    def close(self) -> None:
        self._writer.close()


def _punch(descriptor: int, offset: int, length: int) -> bool:
    """Whether a range of a file was given back; Python has no call for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.fallocate(descriptor, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(length))
    return int(result) == 0
