"""Which chunks make up a file, and where each is: looked up once, then at hand."""

from __future__ import annotations

from threading import Lock

from coldstart_cli.errors import DataError
from coldstart_fs.format.chunk import RAW
from coldstart_fs.format.index import HOLE, ChunkDigests, Index
from coldstart_fs.format.locator import ChunkLocation, Locator
from coldstart_fs.format.names import digest_text

# entries of chunk lists in memory; a file of more is kept alone
_MOST_ENTRIES = 1 << 17


class PlacedChunk:
    """A chunk of an image in a pack; `position` is its place in the locator."""

    __slots__ = ("digest", "end", "location", "offset", "pack", "position", "raw", "size_bytes")

    def __init__(self, position: int, digest: bytes, location: ChunkLocation) -> None:
        self.position = position
        self.digest = digest
        self.location = location
        self.pack = location.pack
        self.offset = location.offset
        self.end = location.offset + location.stored_bytes
        self.size_bytes = location.size_bytes
        self.raw = location.encoding == RAW


class FileChunks:
    """The chunks of one file, in order."""

    __slots__ = ("_chunks", "_digests", "_map", "_number", "chunk_bytes", "size_bytes")

    def __init__(
        self, number: int, size_bytes: int, chunk_bytes: int, digests: ChunkDigests, all_chunks: ChunkMap
    ) -> None:
        self.size_bytes = size_bytes
        self.chunk_bytes = chunk_bytes
        self._number = number
        self._digests = digests
        self._map = all_chunks
        self._chunks: list[PlacedChunk | bool | None] = [False] * len(digests)

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, place: int) -> PlacedChunk | None:
        """One chunk of the file; None for a hole."""
        chunk = self._chunks[place]
        if isinstance(chunk, bool):
            chunk = self._chunks[place] = self._find(place)
        return chunk

    def place_after(self, chunk: PlacedChunk) -> int:
        """The place that follows a chunk which was looked up here."""
        return self._chunks.index(chunk) + 1 if chunk in self._chunks else len(self)

    def _find(self, place: int) -> PlacedChunk | None:
        digest = self._digests[place]
        if digest == HOLE:
            return None
        chunk = self._map.chunk(digest)
        if chunk.size_bytes != min(self.chunk_bytes, self.size_bytes - place * self.chunk_bytes):
            # the kernel would take a short answer for zeros
            raise DataError(
                f"index is damaged: chunks of inode {self._number} do not make {self.size_bytes} bytes"
            )
        return chunk


class ChunkMap:
    """The files of an image as chunks. Thread-safe."""

    def __init__(self, index: Index, locator: Locator) -> None:
        self.index = index
        self.locator = locator
        self._files: dict[int, FileChunks] = {}
        self._entries = 0
        self._packs: dict[bytes, bytes] = {}
        self._lock = Lock()

    def file(self, number: int) -> FileChunks:
        """The chunks of a file; a `DataError` when the index says nonsense."""
        found = self._files.get(number)
        if found is not None:
            return found
        digests = self.index.chunk_digests(number)
        size_bytes = self.index.inode(number).size
        made = FileChunks(number, size_bytes, self.index.chunk_bytes, digests, self)
        with self._lock:
            while self._files and self._entries + len(made) > _MOST_ENTRIES:
                self._entries -= len(self._files.pop(next(iter(self._files))))
            if number not in self._files:
                self._files[number] = made
                self._entries += len(made)
        return made

    def chunk(self, digest: bytes) -> PlacedChunk:
        """The chunk of that name; a `DataError` when the store does not know it."""
        position = self.locator.position(digest)
        if position is None:
            raise DataError(
                f"store does not know where this chunk is: {digest_text(digest)}",
                hint="index the image again",
            )
        return self.at(position, digest)

    def placed(self, position: int) -> PlacedChunk:
        """The chunk at a place of the locator."""
        return self.at(position, self.locator.digest(position))

    def at(self, position: int, digest: bytes) -> PlacedChunk:
        chunk = PlacedChunk(position, digest, self.locator.location(position))
        chunk.pack = self._packs.setdefault(chunk.pack, chunk.pack)
        return chunk

    def close(self) -> None:
        self.index.close()
        self.locator.close()
