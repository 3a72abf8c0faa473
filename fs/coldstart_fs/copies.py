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
)
from coldstart_cli.files import atomic_write, make_directory
from coldstart_fs.chunk import chunk_digest
from coldstart_fs.index import Index
from coldstart_fs.locator import Locator
from coldstart_fs.names import digest_text, index_key, locator_key
from coldstart_fs.store import Store

Tell = Callable[[str], None]
_INDEXES = "images-v1"
_LOCATORS = "locators-v1"
_REFS = "refs-v1"


def index_of(store: Store, digest: bytes, cache: Path) -> Index:
    """The index of an image, by digest: a damaged copy is fetched again, a damaged original refused."""
    key = index_key(digest)
    if (path := store.local_path(key)) is not None:
        return Index.open(path, expected_digest=digest)
    copy = index_copy(digest, cache)
    with suppress(NotFoundError, DataError):
        return Index.open(copy, expected_digest=digest)
    content = store.get(key)
    if (found := chunk_digest(content)) != digest:
        raise DataError(
            f"index is damaged: {store.url}/{key}: its digest is {digest_text(found)}",
            hint="index the image again",
        )
    with _kept(copy, content) as place:
        return Index.open(place)


def index_copy(digest: bytes, cache: Path) -> Path:
    """Where the index of an image is kept, whichever store it came from."""
    return cache / _INDEXES / f"{digest.hex()}.index"


def locator_of(store: Store, digest: bytes, cache: Path, tell: Tell = lambda _: None) -> Locator:
    """Where the store keeps an image's chunks: asked anew each time, since a store may change its mind."""
    key = locator_key(digest)
    if (path := store.local_path(key)) is not None:
        return Locator.open(path)
    copy = _of_store(store, cache, _LOCATORS) / f"{digest.hex()}.locator"
    known = _known_locator(copy)
    try:
        fetched = store.get_if_changed(key, _read_tag(copy) if known is not None else None)
        if fetched.content is None:
            assert known is not None
            with suppress(OSError):
                os.utime(copy)  # its age is that of the store's last word on it
            return known
        return _new_locator(copy, fetched.content, fetched.tag, f"{store.url}/{key}")
    except (IoFailure, PermissionNeededError, DataError) as error:
        if known is None:
            raise
        tell(from_cache("image", copy, error))
        return known


def ref_of(store: Store, name: str, key: str, cache: Path | None, tell: Tell) -> bytes:
    """The file behind a name; where the store cannot be asked, as it was when it was asked last."""
    if cache is None or store.local_path(key) is not None:
        return store.get(key)
    copy = _of_store(store, cache, _REFS) / chunk_digest(name.encode()).hex()
    try:
        content = store.get(key)
    except (IoFailure, PermissionNeededError) as error:
        try:
            content = copy.read_bytes()
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


def _known_locator(copy: Path) -> Locator | None:
    try:
        return Locator.open(copy)
    except (NotFoundError, DataError, IoFailure):
        return None


def _new_locator(copy: Path, content: bytes, tag: str | None, place: str) -> Locator:
    tag_file = copy.with_suffix(".tag")
    # in this order: a tag must never stand beside a locator that it does not belong to
    tag_file.unlink(missing_ok=True)
    with _kept(copy, content) as path:
        try:
            locator = Locator.open(path)
        except DataError as error:
            copy.unlink(missing_ok=True)
            raise DataError(error.message.replace(str(path), place), hint=error.hint) from error
    if tag is not None and locator.path == copy:
        with suppress(ColdstartError):
            atomic_write(tag_file, tag.encode(), mode=0o600)
    return locator


def _read_tag(copy: Path) -> str | None:
    try:
        return copy.with_suffix(".tag").read_text("utf-8")
    except (OSError, ValueError):
        return None


@contextmanager
def _kept(copy: Path, content: bytes) -> Iterator[Path]:
    """The content as a file: the copy, or one in memory where the cache cannot take it."""
    try:
        _prepare(copy)
        atomic_write(copy, content, mode=0o600)
    except (IoFailure, CannotCreateError, PermissionNeededError):
        descriptor = os.memfd_create("coldstart", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as stream:
                stream.write(content)
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    else:
        yield copy


def _prepare(copy: Path) -> None:
    """A cache is its owner's alone, whoever makes it first."""
    make_directory(next(parent for parent in copy.parents if parent.name.endswith("-v1")).parent, mode=0o700)
