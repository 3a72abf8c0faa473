"""Turning a source into an image of a store: read the tree, store the contents, publish, name it last."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from coldstart_cli.errors import ColdstartError, DataError, NotFoundError
from coldstart_fs.chunk import DEFAULT_CHUNK_BYTES, Piece, chunk_digest, split
from coldstart_fs.entry import Entry, walk
from coldstart_fs.index import HOLE
from coldstart_fs.index_writer import encode_index
from coldstart_fs.locator import ChunkLocation, Locator, encode_locator
from coldstart_fs.names import DIGEST_BYTES, check_name, index_key, locator_key, pack_key
from coldstart_fs.pack import PackWriter
from coldstart_fs.references import resolve_image, write_ref
from coldstart_fs.sources import Progress, open_source
from coldstart_fs.store import Store


@dataclass(frozen=True)
class IndexReport:
    """What an indexing did. Content is new, reused from the store, repeated in the image, or zeros."""

    name: str
    digest: bytes
    entries: int
    index_bytes: int
    content_bytes: int
    new_bytes: int
    reused_bytes: int
    repeated_bytes: int
    zero_bytes: int
    notes: tuple[str, ...]
    dry_run: bool
    seconds: float


def index_image(
    source: str,
    *,
    store: Store,
    name: str,
    progress: Progress | None = None,
    dry_run: bool = False,
    wait_seconds: float = 0.0,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    platform: str | None = None,
) -> IndexReport:
    """Index `source` under `name`. Until everything was read and verified the store is not touched."""
    started = time.monotonic()
    say = progress or _say_nothing
    check_name(name)
    with ExitStack() as stack:
        opened = open_source(source, forbidden=store.url, platform=platform)
        if dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="coldstart-")))
        else:
            scratch = stack.enter_context(store.writing(wait_seconds=wait_seconds))
        held = stack.enter_context(_held_chunks(store, scratch))
        packs = None if dry_run else PackWriter(scratch)
        if packs is not None:
            stack.callback(packs.close)
        contents = _Contents(chunk_bytes, held, packs)
        root = opened.read(contents.keep, chunk_bytes, say, scratch)
        contents.finish(root)
        index = encode_index(root, chunk_bytes=chunk_bytes, configuration=opened.configuration)
        digest = chunk_digest(index)
        if packs is not None:
            say("publishing")
            _publish(store, name, digest, index, contents, packs)
        return IndexReport(
            name=name,
            digest=digest,
            entries=sum(1 for _ in walk(root)),
            index_bytes=len(index),
            content_bytes=sum(entry.size for entry in walk(root) if entry.is_file),
            new_bytes=contents.new_bytes,
            reused_bytes=contents.reused_bytes,
            repeated_bytes=contents.repeated_bytes,
            zero_bytes=contents.zero_bytes,
            notes=(*opened.notes, *held.notes),
            dry_run=dry_run,
            seconds=time.monotonic() - started,
        )


def _say_nothing(text: str) -> None:
    del text


@dataclass
class _HeldChunks:
    """What the store already keeps, through the locators of its images."""

    store: Store
    locators: list[Locator]
    notes: list[str]
    packs: dict[bytes, bool] = field(default_factory=dict)

    def find(self, digest: bytes, size_bytes: int) -> ChunkLocation | None:
        for locator in self.locators:
            location = locator.find(digest)
            if location is not None and location.size_bytes == size_bytes and self._has(location.pack):
                return location
        return None

    def _has(self, pack: bytes) -> bool:
        if pack not in self.packs:
            self.packs[pack] = self.store.exists(pack_key(pack))
        return self.packs[pack]


@contextmanager
def _held_chunks(store: Store, scratch: Path) -> Iterator[_HeldChunks]:
    held = _HeldChunks(store, [], [])
    try:
        for number, key in enumerate(store.list("locators/")):
            path = store.local_path(key)
            if path is None:
                path = scratch / f"{number}.locator"
                path.write_bytes(store.get(key))
            try:
                held.locators.append(Locator.open(path))
            except DataError as error:
                held.notes.append(f"chunks of another image are not reused: {error.message}")
        yield held
    finally:
        for locator in held.locators:
            locator.close()


class _Contents:
    """Cuts contents into chunks and sends the ones that nobody has yet to the packs."""

    def __init__(self, chunk_bytes: int, held: _HeldChunks, packs: PackWriter | None) -> None:
        self.new_bytes = self.reused_bytes = self.repeated_bytes = self.zero_bytes = 0
        self.reused: dict[bytes, ChunkLocation] = {}
        self._added: set[bytes] = set()
        self._chunk_bytes = chunk_bytes
        self._zeros = bytes(chunk_bytes)
        self._held = held
        self._packs = packs

    def keep(self, entry: Entry, pieces: Iterable[Piece]) -> None:
        """Store one file's content and note its chunks in the entry."""
        digests = bytearray()
        size_bytes = 0
        for chunk in split(pieces, self._chunk_bytes):
            if isinstance(chunk, int):
                digests += HOLE * (chunk // self._chunk_bytes)
                size_bytes += chunk
            else:
                digests += self._chunk(chunk)
                size_bytes += len(chunk)
        if size_bytes != entry.size:
            raise DataError(f"a file has {size_bytes} bytes instead of {entry.size}")
        entry.chunks = bytes(digests)

    def _chunk(self, data: bytes | memoryview) -> bytes:
        size_bytes = len(data)
        if data == (self._zeros if size_bytes == self._chunk_bytes else self._zeros[:size_bytes]):
            return HOLE
        digest = chunk_digest(data)
        if digest in self._added or digest in self.reused:
            return digest
        if (location := self._held.find(digest, size_bytes)) is not None:
            self.reused[digest] = location
        else:
            self._added.add(digest)
            if self._packs is not None:
                self._packs.add(digest, data)
        return digest

    def finish(self, root: Entry) -> None:
        """Count what the final tree holds, and drop what upper layers have replaced or hidden."""
        used: set[bytes] = set()
        for entry in walk(root):
            for position in range(0, len(entry.chunks), DIGEST_BYTES):
                digest = entry.chunks[position : position + DIGEST_BYTES]
                start = position // DIGEST_BYTES * self._chunk_bytes
                size_bytes = min(self._chunk_bytes, entry.size - start)
                if digest == HOLE:
                    self.zero_bytes += size_bytes
                elif digest in used:
                    self.repeated_bytes += size_bytes
                elif digest in self.reused:
                    self.reused_bytes += size_bytes
                else:
                    self.new_bytes += size_bytes
                used.add(digest)
        self.reused = {digest: place for digest, place in self.reused.items() if digest in used}
        if self._packs is not None:
            self._packs.finish()
            self._packs.discard(self._added - used)


def _publish(
    store: Store, name: str, digest: bytes, index: bytes, contents: _Contents, packs: PackWriter
) -> None:
    """Packs, index, locator, name: whoever stops us in between leaves objects that nothing refers to."""
    for pack in packs.finished:
        store.put_file(pack_key(pack.digest), pack.path)
    locations = packs.locations | contents.reused
    used = sorted({location.pack for location in locations.values()})
    _put_changed(store, index_key(digest), index)
    _put_changed(store, locator_key(digest), encode_locator(locations, used))
    if not _stands_for(store, name, digest):
        write_ref(store, name, digest)


def _put_changed(store: Store, key: str, content: bytes) -> None:
    try:
        if store.get(key) == content:
            return
    except NotFoundError:
        pass
    store.put_bytes(key, content)


def _stands_for(store: Store, name: str, digest: bytes) -> bool:
    try:
        return resolve_image(store, name).digest == digest
    except ColdstartError:  # absent or damaged: written anew
        return False
