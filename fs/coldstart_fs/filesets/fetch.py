"""Bringing a set of files from a store: in parallel, every chunk verified, holes left out, gone on with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from coldstart_cli.errors import CannotCreateError, DataError, IoFailure, NotFoundError
from coldstart_cli.files import make_directory
from coldstart_fs.format.chunk import chunk_digest, decode_chunk, verify
from coldstart_fs.format.file_map import FileMap, MappedFile
from coldstart_fs.format.locator import ChunkLocation, Locator
from coldstart_fs.format.names import pack_key
from coldstart_fs.stores.parallel import run_parallel
from coldstart_fs.stores.store import Store

_AT_ONCE = 8
_LARGEST_RUN_BYTES = 4 << 20
_SPARE_BYTES = 64 << 20


@dataclass
class BroughtFiles:
    """What came over the wire, what was there from an earlier try, and what needs no bytes."""

    fetched_bytes: int = 0
    stored_bytes: int = 0
    kept_bytes: int = 0
    hole_bytes: int = 0


@dataclass
class _Run:
    """Chunks side by side in one pack, each with the places that it is to be written to."""

    pack: bytes
    offset: int
    end: int
    chunks: list[tuple[bytes, ChunkLocation]] = field(default_factory=list)


class FileFetch:
    """Files of one set on their way into a folder of ours, which nobody else changes."""

    def __init__(
        self,
        store: Store,
        files: FileMap,
        locator: Locator,
        folder: Path,
        *,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.report = BroughtFiles()
        self._store = store
        self._map = files
        self._locator = locator
        self._folder = folder
        self._on_bytes = on_bytes
        self._places: dict[bytes, list[tuple[str, int]]] = {}
        self._lock = threading.Lock()

    def bring(self, paths: Iterable[str]) -> None:
        """Fetch these files whole and put them on the disk; what an earlier try left right is kept."""
        files = [self._file(path) for path in paths]
        missing = [chunk for file in files for chunk in self._prepare(file)]
        self._require_room(sum(place.size_bytes for _, place in missing))
        for _ in run_parallel(self._fetch, _runs(missing), workers=_AT_ONCE):
            pass
        for file in files:
            self._sync(file.path)

    def _file(self, path: str) -> MappedFile:
        file = self._map.file(path)
        if file is None:
            raise DataError(f"map of files lacks a file: {path}")
        return file

    def _prepare(self, file: MappedFile) -> Iterator[tuple[bytes, ChunkLocation]]:
        """The chunks that the file lacks, each once for all files; the file has its length afterwards."""
        make_directory((self._folder / file.path).parent, mode=0o700)
        with self._open(file.path, os.O_CREAT) as stream:
            descriptor = stream.fileno()
            has_content = os.fstat(descriptor).st_blocks > 0
            os.ftruncate(descriptor, file.size_bytes)
            for chunk in self._map.chunks(file):
                if chunk.is_hole:
                    self.report.hole_bytes += chunk.size_bytes
                    self._on_bytes(chunk.size_bytes)
                    if has_content:
                        self._clear(descriptor, chunk.offset, chunk.size_bytes)
                    continue
                if has_content and self._is_there(descriptor, chunk.digest, chunk.offset, chunk.size_bytes):
                    self.report.kept_bytes += chunk.size_bytes
                    self._on_bytes(chunk.size_bytes)
                    continue
                place = self._locator.find(chunk.digest)
                if place is None or place.size_bytes != chunk.size_bytes:
                    raise DataError(f"locator lacks a chunk of {file.path}: {chunk.digest.hex()}")
                waiting = self._places.setdefault(chunk.digest, [])
                waiting.append((file.path, chunk.offset))
                if len(waiting) == 1:
                    yield chunk.digest, place

    def _is_there(self, descriptor: int, digest: bytes, offset: int, size_bytes: int) -> bool:
        data = os.pread(descriptor, size_bytes, offset)
        return bool(data.strip(b"\0")) and chunk_digest(data) == digest

    def _clear(self, descriptor: int, offset: int, size_bytes: int) -> None:
        if os.pread(descriptor, size_bytes, offset).strip(b"\0"):
            os.pwrite(descriptor, bytes(size_bytes), offset)

    def _fetch(self, run: _Run) -> None:
        try:
            stored = memoryview(self._store.get_range(pack_key(run.pack), run.offset, run.end - run.offset))
        except NotFoundError as error:
            raise DataError(
                f"pack is not in the store: {error.message}", hint="copy the snapshot again"
            ) from error
        for digest, place in run.chunks:
            begin = place.offset - run.offset
            data = decode_chunk(place, stored[begin : begin + place.stored_bytes])
            try:
                verify(digest, data)
            except DataError as error:
                error.add(f"pack {run.pack.hex()} of {self._store.url}")
                raise
            with self._lock:
                places = self._places.pop(digest)
                self.report.fetched_bytes += len(data)
                self.report.stored_bytes += place.stored_bytes
            for path, offset in places:
                with self._open(path) as stream:
                    _write_all(stream.fileno(), data, offset)
                self._on_bytes(len(data))

    def _open(self, path: str, flags: int = 0) -> _File:
        return _File(self._folder / path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags)

    def _sync(self, path: str) -> None:
        with self._open(path) as stream:
            os.fsync(stream.fileno())

    def _require_room(self, size_bytes: int) -> None:
        found = os.statvfs(self._folder)
        free = found.f_bavail * found.f_frsize
        if free < size_bytes + _SPARE_BYTES:
            raise CannotCreateError(
                f"not enough room: {size_bytes} bytes are to come, {free} are free: {self._folder}",
                hint="free some space, or remove snapshots: coldstart snap gc",
            )


class _File:
    """A descriptor whose errors name the file."""

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise self._failure(error) from error

    def fileno(self) -> int:
        return self._descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        os.close(self._descriptor)
        if isinstance(error, OSError):
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> IoFailure:
        return IoFailure(f"cannot write `{self._path}`: {error.strerror}")


def _runs(chunks: Iterable[tuple[bytes, ChunkLocation]]) -> Iterator[_Run]:
    """Requests that bring the chunks in their order; neighbours in a pack share one."""
    run: _Run | None = None
    for digest, place in chunks:
        end = place.offset + place.stored_bytes
        if (
            run is None
            or run.pack != place.pack
            or run.end != place.offset
            or end - run.offset > _LARGEST_RUN_BYTES
        ):
            if run is not None:
                yield run
            run = _Run(place.pack, place.offset, place.offset)
        run.chunks.append((digest, place))
        run.end = end
    if run is not None:
        yield run


def _write_all(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
