"""Chunks from the store: neighbours in one request, every chunk verified before anybody sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from coldstart_cli.errors import ColdstartError, DataError, NotFoundError
from coldstart_fs.cache import ChunkCache
from coldstart_fs.chunk import decode_chunk, verify
from coldstart_fs.locator import ChunkLocation, Locator
from coldstart_fs.names import changed_pack_hint, digest_text, pack_key
from coldstart_fs.page_cache import read_at
from coldstart_fs.store import Store

_LARGEST_REQUEST_BYTES = 4 << 20
_OPEN_PACKS = 256
Chunk = bytes | bytearray


class Loaded(NamedTuple):
    """A chunk, or why it cannot be had."""

    outcome: Chunk | Exception
    from_cache: bool = False


@dataclass(frozen=True)
class Run:
    """Chunks that stand side by side in a pack."""

    pack: bytes
    offset: int
    length: int
    chunks: tuple[tuple[bytes, ChunkLocation], ...]


class _OpenPack:
    """Open for as long as anybody uses it, be it evicted or not."""

    __slots__ = ("descriptor",)

    def __init__(self, path: Path) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class ChunkSource:
    """Chunks of one image, through the cache. Thread-safe; errors are never remembered."""

    def __init__(self, store: Store, locator: Locator, cache: ChunkCache, log: Callable[[str], None]) -> None:
        self.cache = cache
        self._packs: dict[bytes, _OpenPack] = {}
        self._store = store
        self._locator = locator
        self._log = log

    def plan(self, digests: Iterable[bytes]) -> list[Run]:
        """Requests that bring these chunks; one that the store does not know is in none."""
        runs: list[Run] = []
        for digest in digests:
            place = self._locator.find(digest)
            if place is None:
                continue
            last = runs[-1] if runs else None
            if (
                last is not None
                and (last.pack, last.offset + last.length) == (place.pack, place.offset)
                and last.length + place.stored_bytes <= _LARGEST_REQUEST_BYTES
            ):
                joined = (*last.chunks, (digest, place))
                runs[-1] = Run(last.pack, last.offset, last.length + place.stored_bytes, joined)
            else:
                runs.append(Run(place.pack, place.offset, place.stored_bytes, ((digest, place),)))
        return runs

    def load_now(self, digest: bytes) -> Chunk | None:
        """A chunk out of an open pack in memory; None when it takes longer, or fails."""
        place = self._locator.find(digest)
        pack = None if place is None else self._packs.get(place.pack)
        if place is None or pack is None:
            return None
        try:
            stored = read_at(pack.descriptor, place.offset, place.stored_bytes, wait=False)
            if stored is None:
                return None
            data = decode_chunk(place, stored)
            verify(digest, data)
        except (OSError, ColdstartError):
            self._packs.pop(place.pack, None)  # `load` opens it anew, and says what is wrong with it
            return None
        return data

    def load(self, run: Run) -> dict[bytes, Loaded]:
        """Every chunk of a run, verified, or why it cannot be had."""
        found: dict[bytes, Loaded] = {}
        missing: list[tuple[bytes, ChunkLocation]] = []
        for digest, place in run.chunks:
            data = self.cache.read(digest, 0, place.size_bytes, size_bytes=place.size_bytes, wait=True)
            if data is None:
                missing.append((digest, place))
            else:
                found[digest] = Loaded(data, from_cache=True)
        if len(missing) == len(run.chunks):
            return self._fetch(run)
        for digest, place in missing:
            found |= self._fetch(Run(run.pack, place.offset, place.stored_bytes, ((digest, place),)))
        return found

    def keep(self, chunks: Mapping[bytes, Chunk]) -> list[bytes]:
        """Put verified chunks into the cache; those that it took."""
        before = self.cache.store_failure
        kept = []
        try:
            kept = [digest for digest, data in chunks.items() if self.cache.put(digest, data)]
        except Exception as error:  # noqa: BLE001 - a cache is never worth a mount
            self._log(f"cache failed: {error}")
        if self.cache.store_failure is not None and before is None:
            self._log(f"cache cannot keep chunks, serving through it: {self.cache.store_failure}")
        return kept

    def _fetch(self, run: Run) -> dict[bytes, Loaded]:
        try:
            stored = self._store.get_range(pack_key(run.pack), run.offset, run.length)
        except ColdstartError as error:
            if len(run.chunks) == 1:
                digest = run.chunks[0][0]
                text = f"chunk cannot be fetched: {digest_text(digest)}: {error.message}"
                hint = error.hint
                if isinstance(error, DataError | NotFoundError):
                    hint = hint or "index the image again"
                return {digest: Loaded(DataError(text, hint=hint))}
            # a pack that was cut short still has what stands before the cut
            found: dict[bytes, Loaded] = {}
            for digest, place in run.chunks:
                found |= self._fetch(Run(run.pack, place.offset, place.stored_bytes, ((digest, place),)))
            return found
        self._open(run.pack)
        return {digest: Loaded(_decoded(digest, place, run, stored)) for digest, place in run.chunks}

    def _open(self, pack: bytes) -> None:
        """Keep a pack of a local store open for `load_now`: the opening may wait for a disk."""
        path = None if pack in self._packs else self._store.local_path(pack_key(pack))
        if path is None:
            return
        with suppress(OSError):
            while len(self._packs) >= _OPEN_PACKS:
                self._packs.pop(next(iter(self._packs)), None)
            self._packs[pack] = _OpenPack(path)


def _decoded(digest: bytes, place: ChunkLocation, run: Run, stored: bytes) -> Chunk | Exception:
    start = place.offset - run.offset
    part = stored if len(run.chunks) == 1 else stored[start : start + place.stored_bytes]
    try:
        data = decode_chunk(place, part)
        verify(digest, data)
    except ColdstartError as error:
        text = f"chunk cannot be used: {digest_text(digest)}, pack {digest_text(place.pack)}: {error.message}"
        return DataError(text, hint=error.hint or changed_pack_hint(place.pack))
    return data
