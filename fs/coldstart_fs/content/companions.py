"""What comes along in a request: small files beside a small one, the next chunk of a large one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock

from coldstart_cli.errors import DataError
from coldstart_fs.content.chunks import ChunkMap, FileChunks, PlacedChunk

# what one request brings along, and how large a file may be for that: round trips cost more than these bytes
_WINDOW_BYTES = 192 << 10
_SMALL_BYTES = 64 << 10
_MOST_FILES = 64
# what may lie about unused: a share of what was used, and a beginning
_SHARE = 4
_BEGINNING_BYTES = 4 << 20


class Companions:
    """Keeps what is fetched in vain below a share of what is used. Thread-safe."""

    def __init__(self, chunks: ChunkMap) -> None:
        self.unused = bytearray(chunks.locator.chunk_count)
        """By position in the locator: 1 for what was brought along and nobody has read yet."""
        self.brought_bytes = 0
        self.used_bytes = 0
        self._demanded_bytes = 0
        self.is_wanted: Callable[[], bool] = lambda: True
        """False where the link is long: there much more is brought, in requests of its own (`neighbours`)."""
        self._chunks = chunks
        self._lock = Lock()

    def of(self, number: int, chunk: PlacedChunk) -> list[PlacedChunk]:
        """What to bring along with a chunk of a file: side by side with it in the pack."""
        with self._lock:
            self._demanded_bytes += chunk.end - chunk.offset
            left_bytes = min(self._room_bytes(), _WINDOW_BYTES)
        if left_bytes <= 0 or not self.is_wanted():
            return []
        file = self._chunks.file(number)
        if len(file) > 1:
            return _following(file, chunk)
        if chunk.size_bytes > _SMALL_BYTES:
            return []
        after = self._side(number, chunk, 1, left_bytes)
        left_bytes -= sum(found.end - found.offset for found in after)
        return [*reversed(self._side(number, chunk, -1, left_bytes)), *after]

    def brought(self, chunks: list[PlacedChunk]) -> None:
        """These are on their way though nobody asked for them."""
        with self._lock:
            for chunk in chunks:
                self.unused[chunk.position] = 1
                self.brought_bytes += chunk.end - chunk.offset

    def used(self, chunk: PlacedChunk) -> None:
        """One of them was asked for after all."""
        with self._lock:
            if self.unused[chunk.position]:
                self.unused[chunk.position] = 0
                self.used_bytes += chunk.end - chunk.offset

    def room_bytes(self) -> int:
        """How much more may be brought that nobody has asked for."""
        with self._lock:
            return self._room_bytes()

    def _room_bytes(self) -> int:
        unused_bytes = self.brought_bytes - self.used_bytes
        return _BEGINNING_BYTES + (self._demanded_bytes + self.used_bytes) // _SHARE - unused_bytes

    def _side(self, number: int, start: PlacedChunk, step: int, left_bytes: int) -> list[PlacedChunk]:
        found: list[PlacedChunk] = []
        last = start
        for chunk in self._small_files(number, step):
            touches = chunk.offset == last.end if step > 0 else chunk.end == last.offset
            left_bytes -= chunk.end - chunk.offset
            if chunk.pack != start.pack or not touches or left_bytes < 0:
                break
            found.append(chunk)
            last = chunk
        return found

    def _small_files(self, number: int, step: int) -> Iterator[PlacedChunk]:
        """The chunks of the small files next to a file, in the order of inodes, which is that of packs."""
        index = self._chunks.index
        end = number + step * _MOST_FILES
        for other in range(number + step, max(-1, min(end, index.inode_count)), step):
            inode = index.inode(other)
            if not inode.is_file or not inode.size:
                continue
            if inode.size > min(_SMALL_BYTES, index.chunk_bytes):
                return
            try:
                chunk = self._chunks.file(other)[0]
            except DataError:
                return
            if chunk is not None:
                yield chunk


def _following(file: FileChunks, chunk: PlacedChunk) -> list[PlacedChunk]:
    """The next chunk of a large file: a library is read here and there, and mostly soon beside that."""
    place = file.place_after(chunk)
    found = file[place] if place < len(file) else None
    beside = found is not None and found.pack == chunk.pack and found.offset == chunk.end
    return [found] if found is not None and beside else []
