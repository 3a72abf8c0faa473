"""Small files of one kind that stand together: who waits for one of them soon reads others.

An import reads the modules of a package one after the other, each a round trip. What has the same ending in
the same folder is brought, more with each of them: an import of torch waits for 240 small files, not for 390.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from threading import Lock

from coldstart_fs.content.chunks import PlacedChunk
from coldstart_fs.content.companions import Kind
from coldstart_fs.content.reader import ImageReader
from coldstart_fs.content.workers import Workers
from coldstart_fs.traces.inode_paths import InodePaths

LARGEST_FILE_BYTES = 128 << 10
_THREADS = 2
# as stored, around what was read; twice as much each time that somebody waits in the same folder
_FIRST_BYTES = 96 << 10
_MOST_BYTES = 1 << 20
_MOST_FILES = 1024
# to list a larger one would keep readers waiting; random readers of many files gain nothing either
_LARGEST_FOLDER = 10_000
_MOST_KINDS = 1024
_LONGEST_ENDING_BYTES = 16
_MOST_WAITING = 16


class Folders:
    """`missed` is for the request loop; the rest happens in threads. What fails costs speed only."""

    def __init__(self, reader: ImageReader) -> None:
        self.foreseen_bytes = 0
        self.waiting = 0
        """How many files were waited for whose neighbours have not been seen to."""
        self._reader = reader
        self._companions = reader.bringer.companions
        self._paths = InodePaths(reader.index)
        self._workers = Workers("folders", _THREADS)
        self._last = -1
        self._lock = Lock()
        self._waited: dict[tuple[int, bytes], int] = {}
        """How often somebody waited for a file of that ending in that folder."""
        self._numbers: dict[tuple[int, bytes], list[int]] = {}

    def missed(self, number: int) -> None:
        """Hear that somebody waits for a small file."""
        if number != self._last and self.waiting < _MOST_WAITING:
            self._last = number
            with self._lock:
                self.waiting += 1
            self._workers.attempt(partial(self._see_to, number))

    def _see_to(self, number: int) -> None:
        try:
            self._bring(number)
        finally:
            with self._lock:
                self.waiting -= 1

    def _bring(self, number: int) -> None:
        index = self._reader.index
        with self._lock:
            directory, name = self._paths.place(number)
        if index.inode(directory).size > _LARGEST_FOLDER or self._reader.is_in_place(number):
            return
        ending = _ending(name)
        kind = Kind("folder", ending[:_LONGEST_ENDING_BYTES])
        with self._lock:
            waited = self._waited[directory, ending] = self._waited.get((directory, ending), -1) + 1
        left_bytes = min(_FIRST_BYTES << min(waited, 16), _MOST_BYTES, self._companions.room_bytes(kind))
        if left_bytes <= 0:
            return
        found: dict[int, PlacedChunk] = {}
        for sibling, chunk in self._like(number, directory, ending):
            left_bytes -= chunk.end - chunk.offset
            if left_bytes < 0:
                break
            found[sibling] = chunk
        if found:
            self._companions.brought(found.values(), kind)
            with self._lock:
                self.foreseen_bytes += sum(chunk.size_bytes for chunk in found.values())
            self._reader.prefetch_all((sibling, 0, chunk.size_bytes) for sibling, chunk in found.items())

    def _like(self, number: int, directory: int, ending: bytes) -> Iterator[tuple[int, PlacedChunk]]:
        """Small files with its ending in its folder that are not on this host, the nearest ones first."""
        index = self._reader.index
        own = self._reader.chunks.file(number)[0]
        numbers = self._numbers.get((directory, ending))
        if numbers is None:
            numbers = sorted(
                inode for _, name, inode, _ in index.entries(directory) if _ending(name) == ending
            )
            if len(self._numbers) < _MOST_KINDS:
                self._numbers[directory, ending] = numbers
        place = bisect_left(numbers, number)
        beside = numbers[max(0, place - _MOST_FILES) : place + _MOST_FILES]
        for sibling in sorted(beside, key=lambda inode: abs(inode - number))[1 : _MOST_FILES + 1]:
            inode = index.inode(sibling)
            if inode.is_file and 0 < inode.size <= min(LARGEST_FILE_BYTES, index.chunk_bytes):
                chunk = self._reader.chunks.file(sibling)[0]
                # a pack in the order of imports has elsewhere what comes later
                if (
                    chunk is not None
                    and own is not None
                    and chunk.pack == own.pack
                    and abs(chunk.offset - own.offset) <= _MOST_BYTES
                    and not self._reader.expects(chunk.position)
                ):
                    yield sibling, chunk


def _ending(name: bytes) -> bytes:
    return b"".join(name.rpartition(b".")[1:])
