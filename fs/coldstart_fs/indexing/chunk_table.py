"""Contents on their way into chunks: cut, named, kept once, and placed in packs when their order is known."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import IO

from coldstart_cli.errors import DataError
from coldstart_fs.format.chunk import Piece, chunk_digest, split
from coldstart_fs.format.entry import Entry
from coldstart_fs.format.index import HOLE
from coldstart_fs.format.locator import RECORD, ChunkLocation, write_locator
from coldstart_fs.format.names import DIGEST_BYTES
from coldstart_fs.format.pack import FinishedPack, PackWriter
from coldstart_fs.indexing.progress import Progress
from coldstart_fs.indexing.spool import Spool
from coldstart_fs.stores.held import HeldChunks

Chunk = tuple[bytes, int]
"""Digest and size."""

# what the table says of a chunk, in the lowest bits of its number; what is above them is the place
_SPOOLED, _HELD, _PACKED, _PLACED = range(4)
_KIND, _USED, _SHIFT = 3, 4, 3
_PLACE = Struct("<QIIIHxx")  # offset, stored bytes, size, pack, encoding


class ChunkTable:
    """One table of all chunks, an integer each: where the chunk waits, or where it came to lie.

    `spool` takes new chunks until their order is known; without one they go straight into `packs`, and
    without either they are only counted.
    """

    def __init__(
        self,
        chunk_bytes: int,
        held: HeldChunks,
        progress: Progress,
        *,
        spool: Spool | None,
        packs: PackWriter | None,
    ) -> None:
        self.new_bytes = self.reused_bytes = self.repeated_bytes = self.zero_bytes = 0
        self._chunk_bytes = chunk_bytes
        self._zeros = bytes(chunk_bytes)
        self._held = held
        self._progress = progress
        self._spool = spool
        self._packs = packs
        self._table: dict[bytes, int] = {}
        self._places = bytearray()
        self._pack_numbers: dict[bytes, int] = {}

    # --- while the source is read ---

    def keep(self, entry: Entry, pieces: Iterable[Piece]) -> None:
        """Store one file's content and note its chunks in the entry."""
        digests: list[bytes] = []
        size_bytes = 0
        for chunk in split(pieces, self._chunk_bytes):
            if isinstance(chunk, int):
                digests.append(HOLE * (chunk // self._chunk_bytes))
                size_bytes += chunk
            else:
                digests.append(self._chunk(chunk))
                size_bytes += len(chunk)
        if size_bytes != entry.size:
            raise DataError(f"a file has {size_bytes} bytes instead of {entry.size}")
        # of a single chunk the table's own object, not a copy of it
        entry.chunks = digests[0] if len(digests) == 1 else b"".join(digests)
        self._progress.files += 1
        self._progress.content_bytes += size_bytes

    def _chunk(self, data: bytes | memoryview) -> bytes:
        size_bytes = len(data)
        # views are compared byte by byte: their ends tell most of them apart from zeros
        if not data[0] and not data[-1] and bytes(data) == self._zeros[:size_bytes]:
            return HOLE
        digest = chunk_digest(data)
        if digest in self._table:
            return digest
        if (place := self._held.find(digest, size_bytes)) is not None:
            self._table[digest] = place << _SHIFT | _HELD
        elif self._spool is not None:
            self._table[digest] = self._spool.append(data) << _SHIFT | _SPOOLED
        else:
            self._table[digest] = _PACKED
            if self._packs is not None:
                self._packs.add(digest, data)
        return digest

    # --- when the tree is known ---

    def count(self, order: Iterable[Entry]) -> None:
        """Sum up what the final tree holds; chunks that upper layers hid are not in it."""
        table = self._table
        for entry in order:
            for digest, size_bytes in chunks_of(entry, self._chunk_bytes):
                if digest == HOLE:
                    self.zero_bytes += size_bytes
                    continue
                where = table[digest]
                if where & _USED:
                    self.repeated_bytes += size_bytes
                    continue
                table[digest] = where | _USED
                if where & _KIND == _HELD:
                    self.reused_bytes += size_bytes
                else:
                    self.new_bytes += size_bytes

    def beginning(self, entry: Entry, most_bytes: int) -> bytes | None:
        """What a file begins with that waits for its place; None of one that is elsewhere."""
        if self._spool is None:
            return None
        found = []
        for digest, size_bytes in chunks_of(entry, self._chunk_bytes, 0, most_bytes):
            where = self._table.get(digest, _PLACED)
            if where & _KIND != _SPOOLED:
                return None
            found.append(self._spool.peek(where >> _SHIFT, size_bytes))
        return b"".join(found)

    def lay_out(self, chunks: Iterable[Chunk], image: bytes, *, anew: bool = False) -> Iterator[FinishedPack]:
        """Bring chunks into packs in this order, the last one cut; packs come out as they are finished.

        What the store holds already stays where it is, with `anew` it is written once more, so that
        chunks which are read together lie together.
        """
        assert self._packs is not None
        for digest, size_bytes in chunks:
            where = self._table[digest]
            kind, place = where & _KIND, where >> _SHIFT
            if kind == _SPOOLED:
                assert self._spool is not None
                self._packs.add(digest, self._spool.take(place, size_bytes))
                self._table[digest] = _PACKED
            elif kind == _HELD:
                location = self._held.of_image(image, digest, size_bytes) or self._held.location(place)
                if anew:
                    self._packs.add(digest, self._held.fetch(digest, location))
                    self._table[digest] = _PACKED
                else:
                    self._place(digest, location)
            yield from self._completed()
        self._packs.cut()
        yield from self._completed()

    def _completed(self) -> Iterator[FinishedPack]:
        assert self._packs is not None
        for pack in self._packs.taken():
            for digest, offset, stored_bytes, size_bytes, _, encoding, _ in RECORD.iter_unpack(pack.records):
                self._place(digest, ChunkLocation(pack.digest, offset, stored_bytes, size_bytes, encoding))
            yield pack

    def _place(self, digest: bytes, location: ChunkLocation) -> None:
        pack = self._pack_numbers.setdefault(location.pack, len(self._pack_numbers))
        self._table[digest] = len(self._places) // _PLACE.size << _SHIFT | _PLACED
        self._places += _PLACE.pack(
            location.offset, location.stored_bytes, location.size_bytes, pack, location.encoding
        )

    def write_locator(self, stream: IO[bytes]) -> None:
        """Where all placed chunks are kept."""
        packs = sorted(self._pack_numbers)
        numbers = array("I", bytes(4 * len(packs)))
        for number, pack in enumerate(packs):
            numbers[self._pack_numbers[pack]] = number
        placed = sorted(digest for digest, where in self._table.items() if where & _KIND == _PLACED)
        write_locator(self._records(placed, numbers), stream, packs=packs, chunk_count=len(placed))

    def _records(self, placed: Sequence[bytes], numbers: Sequence[int]) -> Iterator[bytes]:
        for digest in placed:
            offset, stored_bytes, size_bytes, pack, encoding = _PLACE.unpack_from(
                self._places, (self._table[digest] >> _SHIFT) * _PLACE.size
            )
            yield RECORD.pack(digest, offset, stored_bytes, size_bytes, numbers[pack], encoding, 0)


def chunks_of(entry: Entry, chunk_bytes: int, start: int = 0, end: int | None = None) -> Iterator[Chunk]:
    """The chunks of a file that hold its bytes from `start` to `end`, holes included."""
    digests, size = entry.chunks, entry.size
    end = size if end is None else min(end, size)
    for position in range(start - start % chunk_bytes, end, chunk_bytes):
        begin = position // chunk_bytes * DIGEST_BYTES
        yield digests[begin : begin + DIGEST_BYTES], min(chunk_bytes, size - position)
