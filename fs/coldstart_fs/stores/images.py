"""Images of a store: their inventory, and one opened for reading."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart_cli.errors import ColdstartError, DataError, IoFailure, NotFoundError, PermissionNeededError
from coldstart_fs.format.index import HEADER_BYTES, Index, IndexCounts
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import index_key, ref_key
from coldstart_fs.stores.copies import FetchIndex, Tell, index_of, locator_of
from coldstart_fs.stores.parallel import run_parallel
from coldstart_fs.stores.references import list_names, read_ref
from coldstart_fs.stores.store import Store

_READERS = 8


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
    answers = dict(
        run_parallel(lambda name: (name, _summary(store, name)), list_names(store), workers=_READERS)
    )
    for name, answer in sorted(answers.items()):
        if isinstance(answer, ImageSummary):
            images.append(answer)
        else:
            problems.append(f"image `{name}` cannot be read: {answer.message}")
    return Inventory(tuple(images), tuple(problems))


def _summary(store: Store, name: str) -> ImageSummary | ColdstartError:
    key = ref_key(name)
    try:
        ref = read_ref(store, name)
        key = index_key(ref.digest)
        if (path := store.local_path(key)) is not None:
            with Index.open(path) as index:
                counts = IndexCounts(index.size_bytes, index.inode_count, index.content_bytes)
        else:
            place = f"{store.url}/{key}"
            counts = IndexCounts.parse(store.get_range(key, 0, HEADER_BYTES), place)
    except (DataError, NotFoundError) as error:
        return error
    except (IoFailure, PermissionNeededError) as error:
        if store.local_path(key) is None:  # the next question would fare no better
            raise
        return error
    return ImageSummary(
        name, ref.digest, ref.created, counts.entries, counts.content_bytes, counts.index_bytes
    )


def open_image(
    store: Store,
    digest: bytes,
    cache: Path,
    tell: Tell = lambda _: None,
    *,
    fetch_index: FetchIndex | None = None,
    on_outage: Callable[[], None] = lambda: None,
) -> tuple[Index, Locator]:
    """Index and locator of an image; those of a store that is not on this host are kept in the cache.

    A store that cannot be asked is no failure for an image that the cache knows; `tell` hears of it.
    """
    openings: tuple[Callable[[], Index | Locator], ...] = (
        lambda: index_of(store, digest, cache, fetch_index),
        lambda: locator_of(store, digest, cache, tell, on_outage),
    )
    opened: dict[int, Index | Locator] = {}
    failures: dict[int, ColdstartError] = {}
    with ExitStack() as stack:

        def open_one(number: int) -> None:
            try:
                half = openings[number]()
            except ColdstartError as error:
                failures[number] = error
            else:
                opened[number] = half
                stack.callback(half.close)

        # side by side: each is some round trips to the store, where it is not on this host
        for _ in run_parallel(open_one, range(len(openings)), workers=len(openings)):
            pass
        for number in sorted(failures):  # what is wrong with the index says more
            raise failures[number]
        stack.pop_all()
    index, locator = opened[0], opened[1]
    assert isinstance(index, Index)
    assert isinstance(locator, Locator)
    return index, locator


def open_index(store: Store, digest: bytes, cache: Path) -> Index:
    """The index of an image alone, for those who read no contents."""
    return index_of(store, digest, cache)


def open_locator(store: Store, digest: bytes, cache: Path, tell: Tell = lambda _: None) -> Locator:
    """The locator of an image alone, for those who ask only which chunks it has."""
    return locator_of(store, digest, cache, tell)


def image_configuration(store: Store, digest: bytes, cache: Path) -> dict[str, Any]:
    """The runtime configuration that an image carries."""
    with open_index(store, digest, cache) as index:
        return index.configuration
