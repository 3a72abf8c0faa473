"""Writing many small pieces to one file with few system calls and without copying them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from coldstart_cli.errors import IoFailure

_FULL_BYTES = 1 << 20
_MOST_PIECES = 1000  # the kernel takes 1024 at a time


class GatheredWriter:
    """A new file that grows at its end. Pieces may not change: they are kept as they are until written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._held_bytes = 0
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _failure(path, error) from error

    def write(self, piece: bytes | bytearray | memoryview) -> int:
        """Append one piece; the offset that it has in the file."""
        offset = self.size_bytes
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        self.size_bytes += len(piece)
        if self._held_bytes >= _FULL_BYTES or len(self._pieces) >= _MOST_PIECES:
            self.flush()
        return offset

    def flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        left, self._held_bytes = self._held_bytes, 0
        try:
            while left:
                written = os.writev(self._descriptor, pieces)
                left -= written
                if left:
                    pieces = _after(pieces, written)
        except OSError as error:
            raise _failure(self.path, error) from error

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Let go of the file, whatever was not flushed with it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _failure(path: Path, error: OSError) -> IoFailure:
    # the scratch folder goes with the failure: what is full is the disk of the folder above
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    return IoFailure(
        f"cannot write `{path}`: {error.strerror}", hint=f"df -h {path.parent.parent}" if full else None
    )


def _after(
    pieces: list[bytes | bytearray | memoryview], written: int
) -> list[bytes | bytearray | memoryview]:
    """What is left of pieces when only some bytes were taken."""
    for number, piece in enumerate(pieces):
        if written < len(piece):
            return [memoryview(piece)[written:], *pieces[number + 1 :]]
        written -= len(piece)
    return []


def batched_bytes(parts: Iterable[bytes | bytearray]) -> Iterator[bytes | bytearray]:
    """The same bytes in pieces of about a megabyte."""
    held = bytearray()
    for part in parts:
        held += part
        if len(held) >= _FULL_BYTES:
            yield held
            held = bytearray()
    yield held
