"""File contents of an image, straight from its store: beginnings of many files, or one file whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from coldstart_cli.errors import ColdstartError, DataError
from coldstart_fs.content.chunks import ChunkMap, PlacedChunk
from coldstart_fs.content.fetch import Content, Fetched, Run, fetch_run, runs_of
from coldstart_fs.content.packs import StorePacks
from coldstart_fs.format.index import HOLE, Index, Inode
from coldstart_fs.format.locator import Locator
from coldstart_fs.stores.store import Store

_LARGEST_REQUEST_BYTES = 4 << 20
# reading over a gap costs less than asking again
_LARGEST_GAP_BYTES = 32 << 10
_REQUESTS_AT_ONCE = 8


class Contents:
    """Reads an image's files; every chunk is verified, none is kept."""

    def __init__(self, store: Store, index: Index, locator: Locator) -> None:
        self._packs = StorePacks(store)
        self._index = index
        self._map = ChunkMap(index, locator)

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

    def blocks(self, inode: Inode) -> Iterator[Content]:
        """A whole file, chunk by chunk; what cannot be had is raised."""
        left = inode.size
        for digest in self._index.chunk_digests(inode.number):
            size_bytes = min(left, self._index.chunk_bytes)
            left -= size_bytes
            if digest == HOLE:
                yield bytes(size_bytes)
                continue
            chunk = self._map.chunk(digest)
            data = self._fetch(Run(chunk.pack, chunk.offset, chunk.end, [chunk])).outcomes[chunk.position]
            if isinstance(data, ColdstartError):
                raise data
            yield data

    def _chunks(
        self, digests: Iterable[bytes], length: int
    ) -> Iterator[tuple[bytes, bytes | ColdstartError]]:
        chunks: list[PlacedChunk] = []
        for digest in digests:
            try:
                chunks.append(self._map.chunk(digest))
            except DataError as error:
                yield digest, error
        chunks.sort(key=lambda chunk: (chunk.pack, chunk.offset))
        runs = runs_of(chunks, largest_bytes=_LARGEST_REQUEST_BYTES, gap_bytes=_LARGEST_GAP_BYTES)
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="contents") as pool:
            for run, fetched in zip(runs, pool.map(self._fetch, runs), strict=True):
                for chunk in run.chunks:
                    data = fetched.outcomes[chunk.position]
                    yield chunk.digest, data if isinstance(data, ColdstartError) else bytes(data[:length])

    def _fetch(self, run: Run) -> Fetched:
        return fetch_run(self._packs, run, deadline=math.inf)
