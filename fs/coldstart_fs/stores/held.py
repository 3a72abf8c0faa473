"""What a store already keeps, through the locators of its images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from coldstart_cli.errors import DataError, IoFailure, NotFoundError
from coldstart_fs.format.chunk import decode_chunk, verify
from coldstart_fs.format.locator import ChunkLocation, Locator
from coldstart_fs.format.names import changed_pack_hint, locator_key, pack_key
from coldstart_fs.format.pack import FOOTER, pack_body_bytes
from coldstart_fs.stores.condemned import load_condemned
from coldstart_fs.stores.store import Store


class HeldChunks:
    """Chunks as numbers: millions of them are looked up, and most are asked about only once more."""

    def __init__(self, store: Store) -> None:
        self.notes: list[str] = []
        self._store = store
        self._locators: list[Locator] = []
        self._by_key: dict[str, Locator] = {}
        self._body_bytes: dict[bytes, int] = {}
        self._condemned = load_condemned(store)

    @classmethod
    @contextmanager
    def open(cls, store: Store, scratch: Path) -> Iterator[HeldChunks]:
        held = cls(store)
        try:
            for number, key in enumerate(store.list("locators/")):
                path = store.local_path(key)
                if path is None:
                    path = scratch / f"{number}.locator"
                    _write(path, store.get(key))
                try:
                    locator = held._by_key[key] = Locator.map(path)
                except DataError as error:
                    held.notes.append(f"chunks of another image are not reused: {error.message}")
                else:
                    held._locators.append(locator)
            yield held
        finally:
            for locator in held._locators:
                locator.close()

    def find(self, digest: bytes, size_bytes: int) -> int | None:
        """A number for where the chunk is kept; None when it is not."""
        for number, locator in enumerate(self._locators):
            position = locator.position(digest)
            if position is not None:
                location = locator.location(position)
                if location.size_bytes == size_bytes and self._has(location):
                    return position << 24 | number
        return None

    def location(self, place: int) -> ChunkLocation:
        """What a number of `find` stands for."""
        return self._locators[place & 0xFFFFFF].location(place >> 24)

    def of_image(self, image: bytes, digest: bytes, size_bytes: int) -> ChunkLocation | None:
        """Where the image itself, were it in the store already, has the chunk."""
        if len(self._locators) < 2:  # `find` has asked it already
            return None
        locator = self._by_key.get(locator_key(image))
        location = locator.find(digest) if locator is not None else None
        if location is None or location.size_bytes != size_bytes or not self._has(location):
            return None
        return location

    def fetch(self, digest: bytes, location: ChunkLocation) -> bytes:
        """A chunk out of the store, verified."""
        stored = self._store.get_range(pack_key(location.pack), location.offset, location.stored_bytes)
        try:
            data = decode_chunk(location, stored)
            verify(digest, data)
        except DataError as error:
            error.hint = error.hint or changed_pack_hint(location.pack)
            raise
        return bytes(data)

    def _has(self, location: ChunkLocation) -> bool:
        if location.pack not in self._body_bytes:
            # what is about to be removed is no ground to build on
            condemned = self._condemned.has_pack(location.pack)
            self._body_bytes[location.pack] = 0 if condemned else self._measured(location.pack)
        return location.offset + location.stored_bytes <= self._body_bytes[location.pack]

    def _measured(self, pack: bytes) -> int:
        """How many bytes of chunks a pack has: none when it is absent, cut short, or too long."""
        try:
            measures = measure_pack(self._store, pack)
        except DataError as error:
            self.notes.append(
                f"{error.message}; its chunks are stored again, "
                "other images that need it have to be indexed again"
            )
            return 0
        return measures.body_bytes if measures is not None else 0


class PackMeasures(NamedTuple):
    size_bytes: int
    body_bytes: int


def measure_pack(store: Store, pack: bytes) -> PackMeasures | None:
    """The size of a pack and of the chunks in it; None when it is not there. A wrong length is a `DataError`.

    Its end tells; a changed byte in the middle is met by who reads the chunk.
    """
    key = pack_key(pack)
    size_bytes = store.size(key)
    if size_bytes is None:
        return None
    try:
        end = store.get_range(key, max(0, size_bytes - FOOTER.size), min(size_bytes, FOOTER.size))
        return PackMeasures(size_bytes, pack_body_bytes(end, size_bytes))
    except NotFoundError:  # removed a moment ago
        return None
    except DataError as error:
        raise DataError(f"pack is damaged: {store.url}/{key}: {error.message}") from error


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise IoFailure(f"cannot write `{path}`: {error.strerror}") from error
