"""A whole image into the cache, for use without its store: verified where it is there, else fetched."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import IoFailure
from coldstart_fs.content.chunks import PlacedChunk
from coldstart_fs.content.pace import Pace
from coldstart_fs.content.pack_file import PackFile
from coldstart_fs.content.prefetch import LARGEST_BYTES
from coldstart_fs.content.reader import ImageReader, open_reader
from coldstart_fs.content.room import CacheLimits
from coldstart_fs.format.locator import RECORD
from coldstart_fs.format.pack import pack_end
from coldstart_fs.indexing.progress import Progress
from coldstart_fs.stores.copies import Tell
from coldstart_fs.stores.references import ResolvedImage, resolve_image
from coldstart_fs.stores.store import Store
from coldstart_fs.tiers.packs import TieredPacks

# what others have fetched meanwhile is looked at once more
_ROUNDS = 3
_REQUEST_SECONDS = 600.0
_SMALLEST_REQUEST_BYTES = 256 << 10
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class PullReport:
    """What a pull did. Bytes are those of chunks as packs have them.

    `whole_packs` are those that the cache has from end to end, each compared with its digest.
    """

    name: str
    digest: bytes
    packs: int
    whole_packs: int
    needed_bytes: int
    fetched_bytes: int
    in_place: bool
    seconds: float


def pull_image(
    name: str,
    store: Store,
    cache: Path,
    *,
    tiers: TieredPacks | None = None,
    limits: CacheLimits | None = None,
    bytes_per_second: float | None = None,
    progress: Progress | None = None,
    dry_run: bool = False,
    tell: Tell = lambda _: None,
) -> PullReport:
    """Bring everything of NAME, NAME@blake3:HEX or blake3:HEX into the cache, and have the disk keep it.

    Interrupted, it goes on where it was when it is run again. An image of a folder of this host is read in
    place and needs no pull. `dry_run` goes by what files seem to hold, unverified.
    """
    started = time.monotonic()
    progress = progress or Progress()
    image = resolve_image(store, name, cache=cache, tell=tell)
    reader = open_reader(store, image.digest, cache, packs=tiers, limits=limits, log=tell, tell=tell)
    try:
        return _Pull(reader, image, progress, started).run(bytes_per_second, dry_run=dry_run)
    finally:
        reader.close()


class _Pull:
    def __init__(self, reader: ImageReader, image: ResolvedImage, progress: Progress, started: float) -> None:
        self._reader = reader
        self._image = image
        self._progress = progress
        self._started = started
        self._packs = _by_pack(reader)
        self._seen: dict[bytes, tuple[PackFile, int]] = {}
        """Each pack's open copy, and its generation when this pull met it."""

    def run(self, bytes_per_second: float | None, *, dry_run: bool) -> PullReport:
        needed_bytes = sum(chunk.end - chunk.offset for chunks in self._packs.values() for chunk in chunks)
        in_place = any(_original(self._reader, pack) for pack in self._packs)
        fetched_bytes = whole_packs = 0
        if dry_run and not in_place:
            fetched_bytes = sum(_missing_bytes(self._reader, chunks) for chunks in self._packs.values())
        elif not in_place:
            self._bring(bytes_per_second)
            whole_packs = self._finish()
            fetched_bytes = self._reader.bringer.counters.fetched_bytes
        return PullReport(
            name=self._image.name,
            digest=self._image.digest,
            packs=len(self._packs),
            whole_packs=whole_packs,
            needed_bytes=needed_bytes,
            fetched_bytes=fetched_bytes,
            in_place=in_place,
            seconds=time.monotonic() - self._started,
        )

    def _bring(self, bytes_per_second: float | None) -> None:
        most_bytes = LARGEST_BYTES
        if bytes_per_second is not None:
            self._reader.bringer.pace = Pace(bytes_per_second)
            most_bytes = max(_SMALLEST_REQUEST_BYTES, min(int(bytes_per_second), LARGEST_BYTES))
        for number in range(_ROUNDS):
            missing = [chunk for chunks in self._packs.values() for chunk in self._unverified(chunks)]
            for chunk in missing:  # the cache is to have it
                self._reader.forget(chunk)
            if not missing:
                return
            self._progress(f"pulling {self._image.name}" if not number else f"verifying {self._image.name}")
            self._progress.expect(sum(chunk.size_bytes for chunk in missing))
            done = self._reader.prefetcher.bring(
                missing,
                on_landed=self._progress.advance,
                request_seconds=_REQUEST_SECONDS,
                most_bytes=most_bytes,
            )
            self._reader.settle()
            if done.failure is not None:
                done.failure.add(f"{done.failed_bytes} bytes are missing; run the pull again to go on")
                raise done.failure
            self._check_cache()
        raise IoFailure(f"cache does not keep what is put into it: {self._reader.cache.folder}")

    def _unverified(self, chunks: list[PlacedChunk]) -> list[PlacedChunk]:
        """What the pack's copy has not been seen to hold since this pull opened it.

        Others who fill it end one generation after the other; generations only grow.
        """
        pack = chunks[0].pack
        file = self._reader.cache.open(pack)
        generation = 0 if file is None else file.current()
        if file is None or not generation:
            return chunks
        if pack not in self._seen or self._seen[pack][0] is not file:
            self._seen[pack] = (file, generation)
        verified, oldest = self._reader.bringer.verified, self._seen[pack][1]
        return [chunk for chunk in chunks if verified[chunk.position] < oldest]

    def _check_cache(self) -> None:
        if (failure := self._reader.cache.failure) is not None:
            raise IoFailure(
                f"cache cannot keep the image: {failure}",
                hint=self._reader.cache.remedy
                or "make room on its disk, or change cache.quota_bytes and cache.free_bytes",
            )

    def _finish(self) -> int:
        """Complete and compare what can be, and have the disk keep all of it; how many packs are whole."""
        self._progress(f"verifying packs of {self._image.name}")
        self._progress.expect(sum(chunks[-1].end for chunks in self._packs.values()))
        whole = 0
        for pack, chunks in self._packs.items():
            file = self._reader.cache.open(pack)
            if file is None:
                raise IoFailure(f"copy of a pack is gone: {self._reader.cache.path(pack)}")
            try:
                whole += _is_whole(file, pack, chunks)
                file.sync()
            except OSError as error:
                raise IoFailure(f"cannot write `{file.path}`: {error.strerror}") from error
            self._progress.advance(chunks[-1].end)
        return whole


def _by_pack(reader: ImageReader) -> dict[bytes, list[PlacedChunk]]:
    """The chunks of each pack, in order of offset."""
    locator = reader.chunks.locator
    packs: dict[bytes, list[PlacedChunk]] = {pack: [] for pack in locator.packs}
    for position, (digest, location) in enumerate(locator.records()):
        packs[location.pack].append(PlacedChunk(position, digest, location))
    for chunks in packs.values():
        chunks.sort(key=lambda chunk: chunk.offset)
    return {pack: chunks for pack, chunks in packs.items() if chunks}


def _original(reader: ImageReader, pack: bytes) -> bool:
    file = reader.cache.open(pack)
    return file is not None and file.original


def _missing_bytes(reader: ImageReader, chunks: list[PlacedChunk]) -> int:
    file = reader.cache.open(chunks[0].pack)
    return sum(
        chunk.end - chunk.offset
        for chunk in chunks
        if file is None or not file.holds_data(chunk.offset, chunk.end - chunk.offset)
    )


def _is_whole(file: PackFile, pack: bytes, chunks: list[PlacedChunk]) -> bool:
    """Whether the image has all chunks of the pack: its end follows from them, and its digest tells."""
    from blake3 import blake3

    body_bytes = 0
    for chunk in chunks:
        if chunk.offset != body_bytes:
            return False
        body_bytes = chunk.end
    hasher = blake3()
    for offset in range(0, body_bytes, _BLOCK_BYTES):
        hasher.update(file.read(offset, min(_BLOCK_BYTES, body_bytes - offset)))
    end = pack_end(body_bytes, b"".join(map(_record, chunks)))
    if hasher.update(end).digest() != pack:
        return False  # other images have more in it
    if file.writable and file.read(body_bytes, len(end) + 1) != end:
        file.write(body_bytes, end)
        file.end_at(body_bytes + len(end))
    return True


def _record(chunk: PlacedChunk) -> bytes:
    place = chunk.location
    return RECORD.pack(chunk.digest, place.offset, place.stored_bytes, place.size_bytes, 0, place.encoding, 0)
