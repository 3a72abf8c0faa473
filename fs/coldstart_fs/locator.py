"""Where one store keeps the chunks of one image: a sorted table under mmap."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import IO, NoReturn, Self

from coldstart_cli.errors import DataError
from coldstart_fs.gathered import batched_bytes
from coldstart_fs.mapped import check_version, map_file
from coldstart_fs.names import DIGEST_BYTES

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


class Locator:
    """One `.locator` file; its content is checked against the digest in its header when opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = map_file(path, "locator", header_bytes=HEADER_BYTES)
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path) -> Locator:
        return cls(path)

    def _read_header(self) -> None:
        from blake3 import blake3

        magic, version, header_bytes, file_bytes, packs, chunks, digest = HEADER.unpack_from(self._map)
        if magic != MAGIC:
            self._damaged("it does not begin as a locator")
        check_version(self.path, "locator", version, VERSION)
        if header_bytes != HEADER_BYTES:
            self._damaged("wrong header size")
        if file_bytes != len(self._map):
            self._damaged(f"it has {len(self._map)} bytes, its header says {file_bytes}")
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

    @property
    def size_bytes(self) -> int:
        return len(self._map)

    def close(self) -> None:
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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

    def _damaged(self, detail: str) -> NoReturn:
        raise DataError(f"locator is damaged: {self.path}: {detail}", hint="index the image again")


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
