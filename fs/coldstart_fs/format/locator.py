"""Where one store keeps the chunks of one image: a sorted table, read in place."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import IO

from coldstart_fs.format.gathered import batched_bytes
from coldstart_fs.format.mapped import HeldFile, Mapped
from coldstart_fs.format.names import DIGEST_BYTES

MAGIC = b"CSLOCAT\0"
VERSION = 1
HEADER_BYTES = 96
HEADER = Struct("<8sIIQQQ24x32s")
RECORD = Struct("<32sQIIIHH")


@dataclass(frozen=True, slots=True)
class ChunkLocation:
    """`stored_bytes` at `offset` of a pack decode to `size_bytes` of content."""

    pack: bytes
    offset: int
    stored_bytes: int
    size_bytes: int
    encoding: int


class Locator(HeldFile):
    """One `.locator` file; its content is checked against the digest in its header when opened."""

    _what = "locator"
    _magic = MAGIC
    _version = VERSION
    _header_bytes = HEADER_BYTES

    @classmethod
    def open(cls, path: Path) -> Locator:
        """Verified in memory of our own: what becomes of the file later is of no consequence."""
        return cls(Mapped.copy(path, "locator", header_bytes=HEADER_BYTES), path)

    @classmethod
    def map(cls, path: Path) -> Locator:
        """For who has every locator of a store open at once, and verifies what they lead to."""
        return cls(Mapped.file(path, "locator", header_bytes=HEADER_BYTES), path)

    @classmethod
    def of(cls, content: bytes | bytearray, place: Path | str) -> Locator:
        """A locator that came from `place`."""
        return cls(Mapped.of(content, place, "locator", header_bytes=HEADER_BYTES), place)

    def _read_header(self) -> None:
        from blake3 import blake3

        magic, version, header_bytes, file_bytes, packs, chunks, digest = HEADER.unpack_from(self._map)
        self._check_frame(magic, version, header_bytes, file_bytes)
        if HEADER_BYTES + packs * DIGEST_BYTES + chunks * RECORD.size != file_bytes:
            self._damaged("its tables do not fill it")
        with memoryview(self._map) as view, view[HEADER_BYTES:] as body:
            if blake3(body).digest() != digest:
                self._damaged("its digest does not match")
        self._pack_count = packs
        self._records = HEADER_BYTES + packs * DIGEST_BYTES
        self.chunk_count: int = chunks

    @property
    def packs(self) -> list[bytes]:
        return [self._pack(number) for number in range(self._pack_count)]

    def find(self, digest: bytes) -> ChunkLocation | None:
        """Where the chunk is kept; None when this image has no such chunk."""
        position = self.position(digest)
        return None if position is None else self.location(position)

    def position(self, digest: bytes) -> int | None:
        """The chunk's place in the table."""
        position = bisect_left(range(self.chunk_count), digest, key=self._digest_at)
        if position == self.chunk_count or self._digest_at(position) != digest:
            return None
        return position

    def digest(self, position: int) -> bytes:
        return self._digest_at(position)

    def location(self, position: int) -> ChunkLocation:
        return self._record(position)[1]

    def records(self) -> Iterator[tuple[bytes, ChunkLocation]]:
        """All chunks in order of their digests."""
        for position in range(self.chunk_count):
            yield self._record(position)

    def table(self) -> Iterator[tuple[bytes, int, int, int, int, int, int]]:
        """Digest, offset, stored size, size, pack number, encoding, 0: `records` for those who read all."""
        for record in RECORD.iter_unpack(self._map[self._records :]):
            if record[4] >= self._pack_count:
                self._damaged(f"no pack {record[4]}")
            yield record

    def _digest_at(self, position: int) -> bytes:
        begin = self._records + position * RECORD.size
        return self._map[begin : begin + DIGEST_BYTES]

    def _record(self, position: int) -> tuple[bytes, ChunkLocation]:
        digest, offset, stored_bytes, size_bytes, pack, encoding, _ = RECORD.unpack_from(
            self._map, self._records + position * RECORD.size
        )
        if pack >= self._pack_count:
            self._damaged(f"chunk record {position}: no pack {pack}")
        return digest, ChunkLocation(self._pack(pack), offset, stored_bytes, size_bytes, encoding)

    def _pack(self, number: int) -> bytes:
        begin = HEADER_BYTES + number * DIGEST_BYTES
        return self._map[begin : begin + DIGEST_BYTES]


def write_locator(
    records: Iterable[bytes], stream: IO[bytes], *, packs: Sequence[bytes], chunk_count: int
) -> None:
    """Write a locator to a seekable file; `records` are sorted by digest, with the numbers of `packs`."""
    from blake3 import blake3

    hasher = blake3()
    size_bytes = HEADER_BYTES + len(packs) * DIGEST_BYTES + chunk_count * RECORD.size
    stream.write(bytes(HEADER_BYTES))
    for batch in batched_bytes(chain(packs, records)):
        hasher.update(batch)
        stream.write(batch)
    stream.seek(0)
    stream.write(
        HEADER.pack(MAGIC, VERSION, HEADER_BYTES, size_bytes, len(packs), chunk_count, hasher.digest())
    )


def encode_locator(locations: Mapping[bytes, ChunkLocation], packs: Iterable[bytes]) -> bytes:
    """The bytes of a locator; `packs` in the order they are to be numbered."""
    numbers = {pack: number for number, pack in enumerate(packs)}
    records = (
        RECORD.pack(
            digest,
            place.offset,
            place.stored_bytes,
            place.size_bytes,
            numbers[place.pack],
            place.encoding,
            0,
        )
        for digest, place in sorted(locations.items())
    )
    stream = BytesIO()
    write_locator(records, stream, packs=list(numbers), chunk_count=len(locations))
    return stream.getvalue()
