"""What a remote store said, kept in the cache: checked before it is used, and used when the store is down."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from coldstart_cli.errors import (
    CannotCreateError,
    ColdstartError,
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UnreachableError,
)
from coldstart_cli.files import atomic_write, make_directory
from coldstart_cli.own_folders import open_folder_beneath
from coldstart_cli.regular import read_regular
from coldstart_fs.format.chunk import chunk_digest
from coldstart_fs.format.index import Index
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import index_key, locator_key
from coldstart_fs.stores.outages import asking
from coldstart_fs.stores.store import Store

Tell = Callable[[str], None]
_INDEXES = "images-v1"
_LOCATORS = "locators-v1"
_REFS = "refs-v1"


FetchIndex = Callable[[bytes], bytes | bytearray]


def index_of(store: Store, digest: bytes, cache: Path, fetch: FetchIndex | None = None) -> Index:
    """The index of an image, by digest: a damaged copy is fetched again, a damaged original refused.

    `fetch` brings it from elsewhere than the store: its digest says whether it is the one.
    """
    key = index_key(digest)
    if (path := store.local_path(key)) is not None:
        return Index.open(path, expected_digest=digest)
    copy = index_copy(digest, cache)
    damage: ColdstartError | None = None
    try:
        return Index.open(copy, expected_digest=digest)
    except NotFoundError:
        pass
    except (DataError, IoFailure) as error:
        damage = error
    with _blaming(damage):
        content = store.get(key) if fetch is None else fetch(digest)
    index = Index.of(content, f"{store.url}/{key}", expected_digest=digest)
    _keep(copy, content)
    return index


def index_copy(digest: bytes, cache: Path) -> Path:
    """Where the index of an image is kept, whichever store it came from."""
    return cache / _INDEXES / f"{digest.hex()}.index"


def locator_of(
    store: Store,
    digest: bytes,
    cache: Path,
    tell: Tell = lambda _: None,
    on_outage: Callable[[], None] = lambda: None,
) -> Locator:
    """Where the store keeps an image's chunks: asked anew each time, since a store may change its mind.

    `on_outage` hears of a store that does not answer.
    """
    key = locator_key(digest)
    if (path := store.local_path(key)) is not None:
        return Locator.open(path)
    copy = _of_store(store, cache, _LOCATORS) / f"{digest.hex()}.locator"
    known, damage = _known_locator(copy)
    try:
        with _blaming(damage), asking(store, cache, known=known is not None) as asked:
            fetched = asked.get_if_changed(key, _read_tag(copy) if known is not None else None)
        if fetched.content is None:
            assert known is not None
            with suppress(OSError):
                os.utime(copy)  # its age is that of the store's last word on it
            return known
        fresh = _new_locator(copy, fetched.content, fetched.tag, f"{store.url}/{key}")
    except (IoFailure, PermissionNeededError, DataError) as error:
        if known is None:
            raise
        tell(from_cache("image", copy, error))
        if isinstance(error, UnreachableError):
            on_outage()
        return known
    if known is not None:
        known.close()
    return fresh


def ref_of(store: Store, name: str, key: str, cache: Path | None, tell: Tell) -> bytes:
    """The file behind a name; where the store cannot be asked, as it was when it was asked last."""
    if cache is None or store.local_path(key) is not None:
        return store.get(key)
    copy = _of_store(store, cache, _REFS) / chunk_digest(name.encode()).hex()
    try:
        with asking(store, cache, known=copy.exists()) as asked:
            content = asked.get(key)
    except (IoFailure, PermissionNeededError) as error:
        try:
            content = read_regular(copy)
        except OSError:
            raise error from None
        tell(from_cache("name", copy, error))
        return content
    with suppress(ColdstartError):  # for bad days only
        _prepare(copy)
        atomic_write(copy, content, mode=0o600)
    return content


def from_cache(what: str, copy: Path, error: ColdstartError) -> str:
    """What to tell of going on with a copy, and when it was kept."""
    try:
        kept = datetime.fromtimestamp(copy.stat().st_mtime, UTC)
    except (OSError, OverflowError, ValueError):
        age = ""
    else:
        age = f", as of {kept:%Y-%m-%d %H:%M} UTC"
    return f"going on with what the cache knows of the {what}{age}: {error.message}"


def _of_store(store: Store, cache: Path, kind: str) -> Path:
    """Two stores may keep one image differently, and mean different images by one name."""
    return cache / kind / chunk_digest(store.url.encode())[:8].hex()


def _known_locator(copy: Path) -> tuple[Locator | None, ColdstartError | None]:
    """The copy, or what is wrong with it."""
    try:
        return Locator.open(copy), None
    except NotFoundError:
        return None, None
    except (DataError, IoFailure) as error:
        return None, error


@contextmanager
def _blaming(damage: ColdstartError | None) -> Iterator[None]:
    """Whoever asks the store because a copy is damaged says so when there is no answer."""
    try:
        yield
    except ColdstartError as error:
        if damage is not None:
            error.add(f"the copy in the cache cannot stand in: {damage.message}")
        raise


def _new_locator(copy: Path, content: bytes, tag: str | None, place: str) -> Locator:
    locator = Locator.of(content, place)
    tag_file = copy.with_suffix(".tag")
    # in this order: a tag must never stand beside a locator that it does not belong to
    with suppress(OSError):  # a cache that is read-only takes no locator either
        tag_file.unlink()
    if _keep(copy, content) and tag is not None:
        with suppress(ColdstartError):
            atomic_write(tag_file, tag.encode(), mode=0o600)
    return locator


def _read_tag(copy: Path) -> str | None:
    try:
        return copy.with_suffix(".tag").read_text("utf-8")
    except (OSError, ValueError):
        return None


def _keep(copy: Path, content: bytes | bytearray) -> bool:
    """Whether the cache has it now; one that cannot take it is no failure."""
    try:
        _prepare(copy)
        # a mount waits for it, and its digest is looked at before it is used
        atomic_write(copy, content, mode=0o600, durable=False)
    except (IoFailure, CannotCreateError, PermissionNeededError):
        return False
    return True


def _prepare(copy: Path) -> None:
    """A cache is its owner's alone, whoever makes it first; no link below it is followed."""
    cache = next(parent for parent in copy.parents if parent.name.endswith("-v1")).parent
    make_directory(cache, mode=0o700)
    try:
        os.close(open_folder_beneath(cache, copy.parent.relative_to(cache), create=True))
    except OSError as error:
        raise IoFailure(f"cannot write `{copy}`: {error.filename}: {error.strerror}") from error
