"""Looking through the cache for damage: every chunk that a known image has in it is read and compared."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import ColdstartError, DataError
from coldstart_cli.own_folders import files_beneath
from coldstart_cli.regular import open_own, open_regular
from coldstart_fs.content.bringing import is_blank, is_torn
from coldstart_fs.content.cache import PackCache
from coldstart_fs.content.chunks import PlacedChunk
from coldstart_fs.content.fetch import Run, decoded_chunk, runs_of
from coldstart_fs.content.range_locks import lock_range
from coldstart_fs.content.room import copies_of
from coldstart_fs.content.sweep import sweep
from coldstart_fs.format.chunk import chunk_digest
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import digest_text, parse_digest
from coldstart_fs.indexing.progress import Progress

_READ_BYTES = 4 << 20
_FILLING_SECONDS = 20.0
_PAUSE_SECONDS = 0.01
_INDEXES = "images-v1"
_LOCATORS = "locators-v1"


@dataclass(frozen=True)
class CacheDamage:
    """Something in the cache that is not what it should be.

    `action`: `removed` (it is fetched again when it is needed), `in_use` (mounts have it open, and heal it
    when they read it), or `found` (a dry run, or a cache that cannot be written).
    """

    file: str
    what: str
    action: str


@dataclass(frozen=True)
class CacheScrub:
    """`unknown_bytes` are of packs that no image in the cache describes: they may be right or wrong."""

    packs: int
    verified_bytes: int
    unknown_bytes: int
    damage: tuple[CacheDamage, ...]
    removed_orphans: tuple[str, ...]


def scrub_cache(
    folder: Path, *, images: Iterable[bytes] | None = None, progress: Progress, dry_run: bool = False
) -> CacheScrub:
    """Compare what the cache has, of these images or of all, with its digests; put damage aside."""
    damage = list(_indexes(folder, dry_run=dry_run))
    wanted = None if images is None else set(images)
    known: dict[bytes, dict[int, PlacedChunk]] = {}
    for path in files_beneath(folder, f"{_LOCATORS}/*/*.locator"):
        with suppress(ValueError):
            if wanted is not None and bytes.fromhex(path.stem) not in wanted:
                continue
        try:
            with Locator.open(path) as locator:
                _add(known, locator)
        except ColdstartError as error:
            damage.append(_remove(path, error.message, dry_run=dry_run))
    cache = PackCache(folder)
    copies = copies_of(folder) if folder.exists() else []
    progress("verifying the cache")
    progress.expect(sum(copy.size_bytes for copy in copies))
    packs = verified_bytes = unknown_bytes = 0
    for copy in copies:
        chunks = sorted(known.get(_pack_of(copy.path), {}).values(), key=lambda chunk: chunk.offset)
        if chunks:
            packs += 1
            seen = _Copy(copy.path, cache, dry_run=dry_run)
            verified_bytes += seen.verify(chunks)
            damage += seen.damage
        elif wanted is None:
            unknown_bytes += copy.size_bytes
        progress.advance(copy.size_bytes)
    orphans = sweep(folder, dry_run=dry_run) if wanted is None else []
    return CacheScrub(packs, verified_bytes, unknown_bytes, tuple(damage), tuple(map(str, orphans)))


def _add(known: dict[bytes, dict[int, PlacedChunk]], locator: Locator) -> None:
    for digest, place in locator.records():
        # two stores may keep different packs; one pack is the same everywhere
        known.setdefault(place.pack, {}).setdefault(place.offset, PlacedChunk(0, digest, place))


def _pack_of(path: Path) -> bytes:
    with suppress(ValueError):
        return bytes.fromhex(path.stem)
    return b""


class _Copy:
    """The copy of one pack, looked through without a lock: who fills it meanwhile puts right bytes there."""

    def __init__(self, path: Path, cache: PackCache, *, dry_run: bool) -> None:
        self.damage: list[CacheDamage] = []
        self._path = path
        self._cache = cache
        self._dry_run = dry_run

    def verify(self, chunks: list[PlacedChunk]) -> int:
        """How many bytes are right; what is wrong is put aside, and noted."""
        verified_bytes = 0
        try:
            descriptor = open_own(self._path, os.O_RDONLY)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # removed a moment ago
                self.damage.append(CacheDamage(str(self._path), f"cannot be read: {error.strerror}", "found"))
            return 0
        try:
            for run in runs_of(chunks, largest_bytes=_READ_BYTES):
                verified_bytes += self._verify_run(descriptor, run)
        finally:
            os.close(descriptor)
        return verified_bytes

    def _verify_run(self, descriptor: int, run: Run) -> int:
        try:
            if os.lseek(descriptor, run.offset, os.SEEK_DATA) >= run.end:
                return 0
        except OSError:  # nothing but a hole up to the end
            return 0
        try:
            stored = memoryview(os.pread(descriptor, run.length, run.offset))
        except OSError as error:
            what = f"cannot be read at byte {run.offset}: {error.strerror}"
            self.damage.append(CacheDamage(str(self._path), what, "found"))
            return 0
        verified_bytes = 0
        for chunk in run.chunks:
            part = stored[chunk.offset - run.offset : chunk.end - run.offset]
            if is_blank(part):
                continue
            if not _is_right(chunk, part):
                # it may be that somebody is just filling it
                part = memoryview(self._settled(chunk))
                if is_blank(part):
                    continue
                if not _is_right(chunk, part):
                    self._damaged(chunk, part)
                    continue
            verified_bytes += len(part)
        return verified_bytes

    def _settled(self, chunk: PlacedChunk) -> bytes:
        """A chunk as it is while nobody fills it; empty when that takes too long."""
        length = chunk.end - chunk.offset
        until = time.monotonic() + _FILLING_SECONDS
        try:
            with open(open_own(self._path, os.O_RDWR), "r+b", buffering=0) as stream:
                while not lock_range(stream.fileno(), chunk.offset, length):
                    if time.monotonic() > until:
                        return b""
                    time.sleep(_PAUSE_SECONDS)
                return os.pread(stream.fileno(), length, chunk.offset)
        except OSError:  # a cache that cannot be written is not being filled
            pass
        with suppress(OSError), open(open_regular(self._path), "rb") as stream:
            return os.pread(stream.fileno(), length, chunk.offset)
        return b""

    def _damaged(self, chunk: PlacedChunk, stored: memoryview) -> None:
        torn = is_torn(chunk, stored)
        state = "not whole: whoever wrote it was killed, or the host lost power" if torn else "damaged"
        what = f"{digest_text(chunk.digest)}, {len(stored)} bytes at {chunk.offset}, is {state}"
        action = "found"
        if not self._dry_run:
            if not torn:
                self._cache.put_aside(chunk, bytes(stored))
            action = self._blank(chunk.offset, chunk.end - chunk.offset)
        self.damage.append(CacheDamage(str(self._path), what, action))

    def _blank(self, offset: int, length: int) -> str:
        """Make damage a hole, unless a mount has the file open and would take zeros for what it verified."""
        try:
            descriptor = open_own(self._path, os.O_RDWR)
        except OSError:
            return "found"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(descriptor, bytes(length), offset)
        except BlockingIOError:
            return "in_use"
        except OSError:
            return "found"
        finally:
            os.close(descriptor)
        return "removed"


def _is_right(chunk: PlacedChunk, stored: memoryview) -> bool:
    try:
        decoded_chunk(chunk, stored)
    except DataError:
        return False
    return True


def _indexes(folder: Path, *, dry_run: bool) -> Iterator[CacheDamage]:
    """Copies of indexes that are not what their names say."""
    for path in files_beneath(folder, f"{_INDEXES}/*.index"):
        try:
            expected = parse_digest(f"blake3:{path.stem}")
            found = chunk_digest(_content(path))
        except (OSError, ColdstartError) as error:
            yield CacheDamage(str(path), f"cannot be used: {error}", "found")
            continue
        if found != expected:
            yield _remove(path, f"its digest is {digest_text(found)}", dry_run=dry_run)


def _content(path: Path) -> bytes:
    with open(open_regular(path), "rb") as stream:
        return stream.read()


def _remove(path: Path, what: str, *, dry_run: bool) -> CacheDamage:
    """A copy that is fetched again when it is needed."""
    if dry_run:
        return CacheDamage(str(path), what, "found")
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return CacheDamage(str(path), what, "found")
    return CacheDamage(str(path), what, "removed")
