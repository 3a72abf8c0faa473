"""A map of a set of files: which chunks, and which holes, each of them is made of, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

from coldstart_cli.errors import DataError
from coldstart_fs.format.names import DIGEST_BYTES

MAGIC = b"CSFILES\0"
VERSION = 1
HEADER = Struct("<8sIIQQ32s")
RECORD = Struct("<32sI")
HOLE = bytes(DIGEST_BYTES)
"""In the place of a digest: zero bytes, which no chunk is stored for."""


@dataclass(frozen=True)
class MappedChunk:
    """A piece of a file; its digest is `HOLE` where the file has zeros."""

    digest: bytes
    offset: int
    size_bytes: int

    @property
    def is_hole(self) -> bool:
        return self.digest == HOLE


@dataclass(frozen=True)
class MappedFile:
    path: str
    size_bytes: int
    first_chunk: int
    chunk_count: int


class FileMap:
    """Files and their chunks. Nothing in it is trusted: what it leads to is compared with digests."""

    def __init__(self, files: Sequence[MappedFile], table: bytes | bytearray) -> None:
        self.files = tuple(files)
        self._table = table
        self._by_path = {file.path: file for file in files}

    @property
    def chunk_count(self) -> int:
        return len(self._table) // RECORD.size

    def file(self, path: str) -> MappedFile | None:
        return self._by_path.get(path)

    def chunks(self, file: MappedFile) -> Iterator[MappedChunk]:
        """A file's chunks, from its beginning to its end."""
        offset = 0
        for number in range(file.first_chunk, file.first_chunk + file.chunk_count):
            digest, size_bytes = RECORD.unpack_from(self._table, number * RECORD.size)
            yield MappedChunk(digest, offset, size_bytes)
            offset += size_bytes

    def encode(self) -> bytes:
        from blake3 import blake3

        names = json.dumps([[file.path, file.size_bytes, file.chunk_count] for file in self.files]).encode()
        body = names + bytes(self._table)
        return (
            HEADER.pack(MAGIC, VERSION, len(names), len(body), self.chunk_count, blake3(body).digest()) + body
        )

    @classmethod
    def decode(cls, content: bytes, place: str) -> FileMap:
        """A map that came from `place`; a `DataError` says what is wrong with it."""
        try:
            return cls._decode(content, place)
        except DataError:
            raise
        except Exception as error:  # struct, json, recursion, types: all the same to who reads it
            raise DataError(f"map of files is damaged: {place}: {error}") from error

    @classmethod
    def _decode(cls, content: bytes, place: str) -> FileMap:
        from blake3 import blake3

        if len(content) < HEADER.size:
            raise ValueError("it is shorter than its header")
        magic, version, names_bytes, body_bytes, chunk_count, digest = HEADER.unpack_from(content)
        body = content[HEADER.size :]
        if magic != MAGIC:
            raise ValueError("it is no map of files")
        if version > VERSION:
            raise DataError(
                f"map of files has version {version}, this coldstart reads version {VERSION}: {place}",
                hint="install a newer coldstart",
            )
        if len(body) != body_bytes or names_bytes + chunk_count * RECORD.size != body_bytes:
            raise ValueError("it is cut short")
        if blake3(body).digest() != digest:
            raise ValueError("its digest does not match")
        return cls(_files(json.loads(body[:names_bytes])), body[names_bytes:]).checked(chunk_count)

    def checked(self, chunk_count: int) -> FileMap:
        """Itself, when its tables fit each other."""
        if sum(file.chunk_count for file in self.files) != chunk_count or len(self._by_path) != len(
            self.files
        ):
            raise ValueError("its tables do not fit each other")
        for file in self.files:
            if sum(chunk.size_bytes for chunk in self.chunks(file)) != file.size_bytes:
                raise ValueError(f"chunks do not make up the file: {file.path}")
        return self


class MapWriter:
    """Collects a map, file by file."""

    def __init__(self) -> None:
        self._files: list[MappedFile] = []
        self._table = bytearray()

    def add(self, path: str, chunks: Sequence[tuple[bytes, int]]) -> None:
        first = len(self._table) // RECORD.size
        for digest, size_bytes in chunks:
            self._table += RECORD.pack(digest, size_bytes)
        size = sum(size_bytes for _, size_bytes in chunks)
        self._files.append(MappedFile(path, size, first, len(chunks)))

    def finish(self) -> FileMap:
        return FileMap(self._files, self._table)


def _files(rows: list[list[object]]) -> list[MappedFile]:
    found, first = [], 0
    for path, size_bytes, count in rows:
        if not isinstance(path, str) or type(size_bytes) is not int or type(count) is not int or count < 0:
            raise ValueError(f"not a file: {path!r}")
        found.append(MappedFile(path, size_bytes, first, count))
        first += count
    return found
