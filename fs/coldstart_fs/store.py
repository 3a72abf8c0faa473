"""Stores: where indexes, locators and packs are kept. A folder today; the protocol fits an object store."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from coldstart_cli.errors import (
    CannotCreateError,
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UnavailableError,
    UsageError,
    near_matches_hint,
)
from coldstart_cli.files import atomic_write, exclusive_lock, fsync_directory, make_directory
from coldstart_cli.version import __version__
from coldstart_fs.names import digest_text, index_key, parse_digest, ref_key, split_reference

MARKER = "coldstart-store.json"
_MARKER_CONTENT = {"schema": "coldstart.store", "version": 1}
_REF_SCHEMA = "coldstart.ref"


class Store(Protocol):
    """Objects under keys. Missing objects are `NotFoundError`, failed input or output is `IoFailure`."""

    @property
    def url(self) -> str: ...

    def get(self, key: str) -> bytes: ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; an object that ends sooner is a `DataError`."""
        ...

    def put_file(self, key: str, path: Path) -> None:
        """Publish a file of the scratch folder whole; it is gone from there afterwards."""
        ...

    def put_bytes(self, key: str, content: bytes) -> None:
        """Publish or replace an object whole."""
        ...

    def exists(self, key: str) -> bool: ...

    def local_path(self, key: str) -> Path | None:
        """The file of this host that is the object, for stores that keep files."""
        ...

    def list(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, sorted."""
        ...

    def writing(self, *, wait_seconds: float = 0.0) -> AbstractContextManager[Path]:
        """Be the store's only writer; yields a scratch folder that ends with the block."""
        ...


@dataclass(frozen=True)
class ResolvedImage:
    """What a name stands for; `name` is the digest's text where only a digest was given."""

    name: str
    digest: bytes

    @property
    def pinned(self) -> str:
        text = digest_text(self.digest)
        return self.name if self.name == text else f"{self.name}@{text}"


@dataclass(frozen=True)
class Ref:
    """What one reference file says."""

    digest: bytes
    created: str


def open_store(url: str, *, create: bool = False) -> Store:
    """The store at a folder path or file:// URL; with `create` an absent one is made at the first writing."""
    path = _folder_of(url)
    store = FolderStore(path)
    marker = path / MARKER
    try:
        content = json.loads(marker.read_text("utf-8"))
    except FileNotFoundError:
        if not create:
            raise NotFoundError(
                f"there is no image store: {path}",
                hint="`coldstart image index` makes one, or pass `--store`",
            ) from None
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise CannotCreateError(
                f"not an image store, and not an empty folder: {path}", hint="choose another `--store`"
            ) from None
    except PermissionError as error:
        raise PermissionNeededError(f"cannot read image store: {path}", hint="run as root") from error
    except OSError as error:
        raise IoFailure(f"cannot read image store: {marker}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"image store is damaged: {marker} is not JSON") from error
    else:
        _check_schema(content, "coldstart.store", str(marker))
    return store


def _folder_of(url: str) -> Path:
    if "://" not in url:
        return Path(url).absolute()
    parts = urlsplit(url)
    if parts.scheme != "file":
        raise UnavailableError(
            f"stores at {parts.scheme}:// are not supported by coldstart {__version__}: {url}",
            hint="use a folder or a file:// URL",
        )
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise UsageError(f"not a file URL: {url}", hint="write file:///absolute/path")
    return Path(unquote(parts.path))


class FolderStore:
    """A store in a folder of this host; `.lock` and `.writing-*` are its own, never objects."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def url(self) -> str:
        return str(self.path)

    def get(self, key: str) -> bytes:
        with self._reading(key):
            return self._place(key).read_bytes()

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        with self._reading(key):
            descriptor = os.open(self._place(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return self._read_fully(key, descriptor, offset, length)
            finally:
                os.close(descriptor)

    def _read_fully(self, key: str, descriptor: int, offset: int, length: int) -> bytes:
        data = os.pread(descriptor, length, offset)
        while len(data) < length:
            more = os.pread(descriptor, length - len(data), offset + len(data))
            if not more:
                raise DataError(
                    f"object is cut short: {self._place(key)}: "
                    f"it ends before byte {offset + length}, at {offset + len(data)}"
                )
            data += more
        return data

    def put_file(self, key: str, path: Path) -> None:
        place = self._place(key)
        self._make_parent(key, place)
        try:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fchmod(descriptor, 0o644)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(path, place)
            fsync_directory(place.parent)
        except OSError as error:
            raise IoFailure(f"cannot write `{place}`: {error.strerror}") from error

    def put_bytes(self, key: str, content: bytes) -> None:
        place = self._place(key)
        self._make_parent(key, place)
        if place.is_dir():
            raise CannotCreateError(f"names collide in the store: {place} is a folder of other names")
        atomic_write(place, content)

    def exists(self, key: str) -> bool:
        return self._place(key).is_file()

    def local_path(self, key: str) -> Path | None:
        return self._place(key)

    def list(self, prefix: str) -> list[str]:
        folder, _, _ = prefix.rpartition("/")
        keys = []
        for parent, folders, files in os.walk(self.path / folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            relative = os.path.relpath(parent, self.path)
            base = "" if relative == "." else relative + "/"
            keys += [base + name for name in files if not name.startswith(".")]
        return sorted(key for key in keys if key.startswith(prefix))

    @contextmanager
    def writing(self, *, wait_seconds: float = 0.0) -> Iterator[Path]:
        # image contents may be secret to users of this host; whoever shares a store opens its folder
        make_directory(self.path, mode=0o700)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise PermissionNeededError(
                f"cannot write to image store: {self.path}", hint="run as root, or choose another `--store`"
            )
        with exclusive_lock(self.path / ".lock", wait_seconds=wait_seconds):
            # what an indexing left that was killed: we hold the lock, so nobody uses it
            for stale in self.path.glob(".writing-*"):
                shutil.rmtree(stale, ignore_errors=True)
            if not (self.path / MARKER).exists():
                atomic_write(self.path / MARKER, json.dumps(_MARKER_CONTENT).encode() + b"\n")
            try:
                scratch = Path(tempfile.mkdtemp(dir=self.path, prefix=".writing-"))
            except OSError as error:
                raise IoFailure(f"cannot write to image store: {self.path}: {error.strerror}") from error
            try:
                yield scratch
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

    def _place(self, key: str) -> Path:
        return self.path / key

    def _make_parent(self, key: str, place: Path) -> None:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise CannotCreateError(
                f"names collide in the store: a part of {key} is a name of its own",
                hint="choose another name",
            ) from error
        except OSError as error:
            raise IoFailure(f"cannot create folder: {place.parent}: {error.strerror}") from error

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = self._place(key)
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}:
                raise NotFoundError(f"object is not in the store: {place}") from error
            if error.errno in {errno.EACCES, errno.EPERM}:
                raise PermissionNeededError(f"cannot read `{place}`", hint="run as root") from error
            raise IoFailure(f"cannot read `{place}`: {error.strerror}") from error


def list_names(store: Store) -> list[str]:
    """All image names of a store, sorted."""
    return [key.removeprefix("refs/") for key in store.list("refs/")]


def resolve_image(store: Store, name: str) -> ResolvedImage:
    """What NAME, NAME@blake3:HEX or blake3:HEX stands for in this store."""
    wanted, pinned = split_reference(name)
    if wanted is None:
        assert pinned is not None
        if not store.exists(index_key(pinned)):
            raise NotFoundError(
                f"image is not in the store: {name}", hint=f"coldstart image ls --store {store.url}"
            )
        return ResolvedImage(name, pinned)
    try:
        digest = read_ref(store, wanted).digest
    except NotFoundError as error:
        otherwise = f"coldstart image ls --store {store.url}"
        hint = near_matches_hint(wanted, list_names(store), otherwise=otherwise)
        raise NotFoundError(f"image is not in the store: {wanted}", hint=hint) from error
    if pinned is not None and pinned != digest:
        raise DataError(
            f"image name `{wanted}` stands for {digest_text(digest)}, not for {digest_text(pinned)}",
            hint=f"pin it as {wanted}@{digest_text(digest)}, or use {digest_text(pinned)} alone",
        )
    return ResolvedImage(wanted, digest)


def write_ref(store: Store, name: str, digest: bytes) -> None:
    """Let a name stand for an image: the last step of publishing it."""
    document = {
        "schema": _REF_SCHEMA,
        "version": 1,
        "image": digest_text(digest),
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    store.put_bytes(ref_key(name), json.dumps(document).encode() + b"\n")


def read_ref(store: Store, name: str) -> Ref:
    """The reference behind a name, as it stands in the store."""
    content = store.get(ref_key(name))
    place = f"{store.url}/{ref_key(name)}"
    try:
        document = json.loads(content)
        _check_schema(document, _REF_SCHEMA, place)
        return Ref(parse_digest(document["image"]), str(document["created"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise DataError(f"image name is damaged: {place}", hint="index the image again") from error


def _check_schema(document: Any, schema: str, place: str) -> None:
    found = document.get("schema") if isinstance(document, dict) else None
    version = document.get("version") if isinstance(document, dict) else None
    if found != schema or not isinstance(version, int):
        raise DataError(f"damaged: {place} is not a {schema} document")
    if version > 1:
        raise DataError(
            f"{place} has version {version}, coldstart {__version__} reads up to 1",
            hint="install a newer coldstart",
        )
