"""Images of a store: their inventory, and one opened for reading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_cli.files import atomic_write
from coldstart_fs.index import Index
from coldstart_fs.locator import Locator
from coldstart_fs.names import index_key, locator_key
from coldstart_fs.references import list_names, read_ref
from coldstart_fs.store import Store


@dataclass(frozen=True)
class ImageSummary:
    name: str
    digest: bytes
    created: str
    entries: int
    content_bytes: int
    index_bytes: int


@dataclass(frozen=True)
class Inventory:
    """The images that can be read, and a sentence for each name that cannot."""

    images: tuple[ImageSummary, ...]
    problems: tuple[str, ...]


def list_images(store: Store) -> Inventory:
    """Every name of the store; a damaged image does not hide the others."""
    images, problems = [], []
    for name in list_names(store):
        try:
            images.append(_summary(store, name))
        except (DataError, NotFoundError) as error:
            problems.append(f"image `{name}` cannot be read: {error.message}")
    return Inventory(tuple(images), tuple(problems))


def _summary(store: Store, name: str) -> ImageSummary:
    ref = read_ref(store, name)
    key = index_key(ref.digest)
    path = store.local_path(key)
    if path is not None:
        return _read(Index.open(path), name, ref.digest, ref.created)
    with TemporaryDirectory(prefix="coldstart-") as folder:
        path = Path(folder) / "image.index"
        path.write_bytes(store.get(key))
        return _read(Index.open(path), name, ref.digest, ref.created)


def _read(index: Index, name: str, digest: bytes, created: str) -> ImageSummary:
    with index:
        return ImageSummary(name, digest, created, index.inode_count, index.content_bytes, index.size_bytes)


def open_image(store: Store, digest: bytes, cache: Path) -> tuple[Index, Locator]:
    """Index and locator of an image; those of a store that is not on this host are kept in the cache."""
    index_path, locator_path = (
        _local_copy(store, key, cache) for key in (index_key(digest), locator_key(digest))
    )
    return Index.open(index_path, expected_digest=digest), Locator.open(locator_path)


def open_index(store: Store, digest: bytes, cache: Path) -> Index:
    """The index of an image alone, for those who read no contents."""
    return Index.open(_local_copy(store, index_key(digest), cache), expected_digest=digest)


def open_locator(store: Store, digest: bytes, cache: Path) -> Locator:
    """The locator of an image alone, for those who ask only which chunks it has."""
    return Locator.open(_local_copy(store, locator_key(digest), cache))


def image_configuration(store: Store, digest: bytes, cache: Path) -> dict[str, Any]:
    """The runtime configuration that an image carries."""
    with open_index(store, digest, cache) as index:
        return index.configuration


def _local_copy(store: Store, key: str, cache: Path) -> Path:
    if (path := store.local_path(key)) is not None:
        return path
    copy = cache / "images-v1" / key.rpartition("/")[2]
    if not copy.exists():
        atomic_write(copy, store.get(key))
    return copy
