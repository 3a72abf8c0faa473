"""File contents of an image, straight from its store: beginnings of many files, or one file whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from coldstart_cli.errors import ColdstartError, DataError
from coldstart_fs.chunk import decode_chunk, verify
from coldstart_fs.index import HOLE, Index, Inode
from coldstart_fs.locator import ChunkLocation, Locator
from coldstart_fs.names import changed_pack_hint, digest_text, pack_key
from coldstart_fs.store import Store

_LARGEST_REQUEST_BYTES = 4 << 20
# reading over a gap costs less than asking again
_LARGEST_GAP_BYTES = 32 << 10
_REQUESTS_AT_ONCE = 8


@dataclass
class _Request:
    """Chunks of one pack that stand close together."""

    pack: bytes
    offset: int
    end: int
    chunks: list[tuple[bytes, ChunkLocation]] = field(default_factory=list)


class Contents:
    """Reads an image's files; every chunk is verified, none is kept."""

    def __init__(self, store: Store, index: Index, locator: Locator) -> None:
        self._store = store
        self._index = index
        self._locator = locator

    def beginnings(
        self, inodes: Iterable[Inode], length: int
    ) -> Iterator[tuple[Inode, bytes | ColdstartError]]:
        """The first bytes of files, at most a chunk's, or why they cannot be had; in no order."""
        wanted: dict[bytes, list[Inode]] = {}
        for inode in inodes:
            digest = self._index.chunk_digest(inode.number, 0) if inode.size else HOLE
            if digest == HOLE:
                yield inode, bytes(min(inode.size, length))
            else:
                wanted.setdefault(digest, []).append(inode)
        for digest, outcome in self._chunks(wanted, length):
            yield from ((inode, outcome) for inode in wanted[digest])

    def blocks(self, inode: Inode) -> Iterator[bytes | bytearray]:
        """A whole file, chunk by chunk; what cannot be had is raised."""
        left = inode.size
        for digest in self._index.chunk_digests(inode.number):
            size_bytes = min(left, self._index.chunk_bytes)
            left -= size_bytes
            if digest == HOLE:
                yield bytes(size_bytes)
                continue
            place = self._place(digest)
            stored = self._store.get_range(pack_key(place.pack), place.offset, place.stored_bytes)
            yield _decoded(digest, place, stored)

    def _chunks(
        self, digests: Iterable[bytes], length: int
    ) -> Iterator[tuple[bytes, bytes | ColdstartError]]:
        places: list[tuple[bytes, ChunkLocation]] = []
        for digest in digests:
            try:
                places.append((digest, self._place(digest)))
            except DataError as error:
                yield digest, error
        places.sort(key=lambda item: (item[1].pack, item[1].offset))
        requests: list[_Request] = []
        for digest, place in places:
            last = requests[-1] if requests else None
            end = place.offset + place.stored_bytes
            if (
                last is None
                or last.pack != place.pack
                or place.offset - last.end > _LARGEST_GAP_BYTES
                or end - last.offset > _LARGEST_REQUEST_BYTES
            ):
                last = _Request(place.pack, place.offset, end)
                requests.append(last)
            last.end = max(last.end, end)
            last.chunks.append((digest, place))
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="contents") as pool:
            for found in pool.map(lambda request: self._answer(request, length), requests):
                yield from found

    def _answer(self, request: _Request, length: int) -> list[tuple[bytes, bytes | ColdstartError]]:
        try:
            stored = self._store.get_range(
                pack_key(request.pack), request.offset, request.end - request.offset
            )
        except ColdstartError as error:
            if len(request.chunks) == 1:
                return [(request.chunks[0][0], error)]
            # a pack that was cut short still has what stands before the cut
            found: list[tuple[bytes, bytes | ColdstartError]] = []
            for digest, place in request.chunks:
                end = place.offset + place.stored_bytes
                found += self._answer(_Request(place.pack, place.offset, end, [(digest, place)]), length)
            return found
        answers: list[tuple[bytes, bytes | ColdstartError]] = []
        for digest, place in request.chunks:
            start = place.offset - request.offset
            try:
                data = _decoded(digest, place, stored[start : start + place.stored_bytes])
                answers.append((digest, bytes(data[:length])))
            except ColdstartError as error:
                answers.append((digest, error))
        return answers

    def _place(self, digest: bytes) -> ChunkLocation:
        place = self._locator.find(digest)
        if place is None:
            raise DataError(f"chunk is not in the store: {digest_text(digest)}", hint="index the image again")
        return place


def _decoded(digest: bytes, place: ChunkLocation, stored: bytes) -> bytes | bytearray:
    try:
        data = decode_chunk(place, stored)
        verify(digest, data)
    except DataError as error:
        error.hint = error.hint or changed_pack_hint(place.pack)
        raise
    return data
