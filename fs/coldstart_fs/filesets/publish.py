"""Sending a set of files to a store: cut into chunks, those that the store lacks in packs, then the map."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import DataError, IoFailure
from coldstart_fs.filesets.keys import map_key
from coldstart_fs.format.chunk import Compression, chunk_digest
from coldstart_fs.format.file_map import HOLE, FileMap, MapWriter
from coldstart_fs.format.locator import RECORD, ChunkLocation, encode_locator
from coldstart_fs.format.names import locator_key
from coldstart_fs.format.pack import FinishedPack, PackWriter
from coldstart_fs.stores.held import HeldChunks
from coldstart_fs.stores.publish import publish_changed, publish_packs
from coldstart_fs.stores.store import Store


@dataclass(frozen=True)
class FileToSend:
    """`path` is the file's name in the set, `source` the file; `sizes` are those of its chunks in order."""

    path: str
    source: Path
    size_bytes: int
    sizes: Iterable[int]


@dataclass
class SentFiles:
    """What a publication found: zeros are stored nowhere, what is held was in the store before."""

    size_bytes: int = 0
    hole_bytes: int = 0
    held_bytes: int = 0
    new_bytes: int = 0
    sent_bytes: int = 0
    chunks: int = 0


def publish_files(
    store: Store,
    scratch: Path,
    identity: bytes,
    files: Iterable[FileToSend],
    *,
    compression: Compression | None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> SentFiles:
    """Publish packs, locator and map of a set; `identity` is the digest that the set is kept under.

    The order of `files` is that of the chunks in the packs, and so that in which they come back.
    """
    with HeldChunks.open(store, scratch) as held:
        sending = _Sending(scratch, held, compression, on_bytes)
        try:
            report = publish_packs(store, sending.packs(files), lambda _: None)
        finally:
            sending.close()
        locator = encode_locator(sending.locations(), sending.used_packs())
    sending.report.sent_bytes = report.sent_bytes
    publish_changed(store, locator_key(identity), _write(scratch / "locator", locator))
    publish_changed(store, map_key(identity), _write(scratch / "map", sending.map().encode()))
    return sending.report


class _Sending:
    def __init__(
        self,
        scratch: Path,
        held: HeldChunks,
        compression: Compression | None,
        on_bytes: Callable[[int], None],
    ) -> None:
        self.report = SentFiles()
        self._writer = PackWriter(scratch, compression=compression)
        self._held = held
        self._on_bytes = on_bytes
        self._map = MapWriter()
        self._known: dict[bytes, ChunkLocation | None] = {}

    def packs(self, files: Iterable[FileToSend]) -> Iterator[FinishedPack]:
        """Packs as they become full; the files are read as far as somebody asks for packs."""
        for file in files:
            chunks: list[tuple[bytes, int]] = []
            for data in _pieces(file):
                chunks.append((self._take(data), len(data)))
                yield from self._finished()
            self._map.add(file.path, chunks)
        self._writer.cut()
        yield from self._finished()

    def _take(self, data: bytes) -> bytes:
        self.report.size_bytes += len(data)
        self.report.chunks += 1
        self._on_bytes(len(data))
        if not data.strip(b"\0"):
            self.report.hole_bytes += len(data)
            return HOLE
        digest = chunk_digest(data)
        if digest in self._known:
            self.report.held_bytes += len(data)
            return digest
        number = self._held.find(digest, len(data))
        if number is None:
            self.report.new_bytes += len(data)
            self._known[digest] = None
            self._writer.add(digest, data)
        else:
            self.report.held_bytes += len(data)
            self._known[digest] = self._held.location(number)
        return digest

    def _finished(self) -> Iterator[FinishedPack]:
        for pack in self._writer.taken():
            for digest, offset, stored, size, _, encoding, _ in RECORD.iter_unpack(pack.records):
                self._known[digest] = ChunkLocation(pack.digest, offset, stored, size, encoding)
            yield pack

    def locations(self) -> dict[bytes, ChunkLocation]:
        return {digest: place for digest, place in self._known.items() if place is not None}

    def used_packs(self) -> list[bytes]:
        return sorted({place.pack for place in self.locations().values()})

    def map(self) -> FileMap:
        return self._map.finish()

    def close(self) -> None:
        self._writer.close()


def _pieces(file: FileToSend) -> Iterator[bytes]:
    """The file in pieces of the given sizes; one that is not as long as they say is refused."""
    try:
        descriptor = os.open(file.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            if os.fstat(stream.fileno()).st_size != file.size_bytes:
                raise DataError(f"file changed while it was read: {file.source}")
            for size_bytes in file.sizes:
                data = stream.read(size_bytes)
                if len(data) != size_bytes:
                    raise DataError(f"file changed while it was read: {file.source}")
                yield data
            if stream.read(1):
                raise DataError(f"file changed while it was read: {file.source}")
    except OSError as error:
        raise IoFailure(f"cannot read `{file.source}`: {error.strerror}") from error


def _write(path: Path, content: bytes) -> Path:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise IoFailure(f"cannot write `{path}`: {error.strerror}") from error
    return path
