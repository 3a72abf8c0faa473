"""Stores behind a network: S3, Google Cloud Storage, Azure Blob Storage, and HTTP servers to read from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coldstart_cli.errors import (
    CannotCreateError,
    ColdstartError,
    DataError,
    IoFailure,
    NotFoundError,
    UnavailableError,
    UnreachableError,
)
from coldstart_fs import object_clients
from coldstart_fs.object_clients import Location, connect
from coldstart_fs.object_errors import BodyInterrupted, RangeRefused, translated
from coldstart_fs.object_settings import gave_up, panicked
from coldstart_fs.parallel import interruptible, run_parallel
from coldstart_fs.scratch import scratch_folder
from coldstart_fs.store import MARKER, MARKER_CONTENT, Fetched, PutReport, check_document

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult

    from coldstart_fs.object_clients import Client

R = TypeVar("R")
_UPLOADS = 4
_PARTS_AT_ONCE = 3
_PART_BYTES = 8 << 20
_COMPARE_BYTES = 64 << 10
_TRIES = 3


def open_remote(url: str, *, create: bool) -> ObjectStore:
    """The store at a URL. It is asked nothing yet; with `create`, whether it is one, or empty."""
    location = Location.parse(url)
    kind = HttpStore if location.kind in {"http", "https"} else ObjectStore
    store = kind(location)
    if create:
        store.check_writable()
    return store


class ObjectStore:
    """Objects of a bucket below a prefix. Thread-safe; takes no lock, since objects are named by content."""

    def __init__(self, location: Location) -> None:
        self.location = location
        # at once: what a mount needs later may lie behind it
        self._ranges = connect(
            location, total_seconds=object_clients.RANGE_SECONDS, read_seconds=object_clients.READ_SECONDS
        )
        self._objects = connect(
            location, total_seconds=object_clients.OBJECT_SECONDS, read_seconds=object_clients.READ_SECONDS
        )

    @cached_property
    def _uploads(self) -> Client:
        # the library counts the sending of a part as silence
        return connect(self.location, total_seconds=object_clients.OBJECT_SECONDS, read_seconds=None)

    @property
    def url(self) -> str:
        return self.location.url

    def get(self, key: str) -> bytes:
        return self._again(lambda: self._read_whole(key, None))[0]

    def get_if_changed(self, key: str, tag: str | None) -> Fetched:
        options: GetOptions = {"if_none_match": tag} if tag else {}
        try:
            content, found = self._again(lambda: self._read_whole(key, options))
        except _NotModified:
            return Fetched(None, tag)
        return Fetched(content, found)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if not length:
            return b""
        try:
            data = self._again(lambda: self._read_range(key, offset, length))
        except RangeRefused:
            data = self._read_unasked(key, offset, length)
        if len(data) != length:
            raise DataError(
                f"object is cut short: {self._place(key)}: "
                f"{len(data)} bytes came instead of {length} from byte {offset} on"
            )
        return data

    def put_file(self, key: str, path: Path) -> None:
        self._upload(key, path, held_size_bytes=None)

    def put_files(
        self, items: Iterable[tuple[str, Path]], *, on_put: Callable[[int], None] | None = None
    ) -> PutReport:
        report = PutReport()

        def put(item: tuple[str, Path]) -> tuple[bool, int]:
            key, path = item
            return self._upload(key, path, held_size_bytes=self._held_size(key, path))

        for sent, size_bytes in run_parallel(put, items, workers=_UPLOADS):
            report = report.with_sent(size_bytes) if sent else report.with_held(size_bytes)
            if on_put is not None:
                on_put(size_bytes)
        return report

    def put_bytes(self, key: str, content: bytes) -> None:
        import obstore

        self._call(
            key,
            lambda: obstore.put(
                self._uploads, key, content, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            ),
        )
        self._prove(key, len(content))

    def exists(self, key: str) -> bool:
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        import obstore

        try:
            return int(self._call(key, lambda: obstore.head(self._ranges, key))["size"])
        except NotFoundError:
            return None

    def local_path(self, key: str) -> Path | None:
        del key
        return None

    def list(self, prefix: str) -> list[str]:
        import obstore

        folder, _, _ = prefix.rpartition("/")
        pages = self._call("", lambda: list(obstore.list(self._objects, folder or None)))
        return sorted(entry["path"] for page in pages for entry in page if entry["path"].startswith(prefix))

    def confirm(self) -> None:
        if self._marker() is None:
            raise NotFoundError(
                f"there is no image store: {self.url}",
                hint="`coldstart image index` makes one, or pass `--store`",
            )

    def check_writable(self) -> None:
        """Refuse a place that is no store and not empty, before anything is read."""
        # asked again: another writer may have begun in between, and a marker is the first that it writes
        if self._marker() is None and self._holds_anything() and self._marker() is None:
            raise CannotCreateError(
                f"not an image store, and not empty: {self.url}", hint="choose another `--store`"
            )

    def _holds_anything(self) -> bool:
        import obstore

        pages = self._call("", lambda: obstore.list(self._objects, chunk_size=1))
        return self._call("", lambda: next(iter(pages), None)) is not None

    @contextmanager
    def writing(self, *, wait_seconds: float = 0.0) -> Iterator[Path]:
        del wait_seconds  # two writers cannot harm each other: names come last, all else is named by content
        with scratch_folder() as scratch:
            if self._marker() is None:
                self.put_bytes(MARKER, MARKER_CONTENT)
            yield scratch

    def _marker(self) -> dict[str, Any] | None:
        place = self._place(MARKER)
        try:
            content = json.loads(self.get(MARKER))
        except NotFoundError as error:
            if error.message.startswith("bucket"):
                raise
            return None
        except (ValueError, RecursionError) as error:
            raise DataError(f"image store is damaged: {place} is not JSON") from error
        check_document(content, "coldstart.store", place)
        assert isinstance(content, dict)
        return content

    def _upload(self, key: str, path: Path, *, held_size_bytes: int | None) -> tuple[bool, int]:
        import obstore

        try:
            size_bytes = path.stat().st_size
        except OSError as error:
            raise IoFailure(f"cannot read `{path}`: {error.strerror}") from error
        sent = held_size_bytes != size_bytes
        if sent:
            self._call(
                key,
                lambda: obstore.put(
                    self._uploads, key, path, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
                ),
            )
            self._prove(key, size_bytes)
        path.unlink(missing_ok=True)
        return sent, size_bytes

    def _held_size(self, key: str, path: Path) -> int | None:
        """The size of an object, unless it does not even end as the file: then it is damaged."""
        size_bytes = self.size(key)
        if size_bytes is None:
            return None
        start = max(0, size_bytes - _COMPARE_BYTES)
        try:
            with path.open("rb") as stream:
                stream.seek(start)
                end = stream.read(_COMPARE_BYTES + 1)
        except OSError as error:
            raise IoFailure(f"cannot read `{path}`: {error.strerror}") from error
        if len(end) != size_bytes - start:
            return size_bytes
        return size_bytes if self.get_range(key, start, size_bytes - start) == end else None

    def _prove(self, key: str, size_bytes: int) -> None:
        found = self.size(key)
        if found != size_bytes:
            raise DataError(
                f"object has {'no' if found is None else found} bytes after its upload, not {size_bytes}: "
                f"{self._place(key)}"
            )

    def _read_whole(self, key: str, options: GetOptions | None) -> tuple[bytes, str | None]:
        import obstore

        answer = self._call(key, lambda: obstore.get(self._objects, key, options=options or None))
        self._refuse_page(key, answer)
        data = self._call(key, lambda: bytes(answer.bytes()))
        if len(data) != answer.meta["size"]:
            raise DataError(
                f"object is cut short: {self._place(key)}: {len(data)} of {answer.meta['size']} bytes came"
            )
        # no file of a store begins as pages do, but contents in packs may
        if data[:64].lstrip().startswith(b"<") and not key.startswith("packs/"):
            raise self._page_came(key)
        return data, answer.meta["e_tag"]

    def _read_range(self, key: str, offset: int, length: int) -> bytes:
        import obstore

        wanted: GetOptions = {"range": (offset, offset + length)}
        answer = self._call(key, lambda: obstore.get(self._ranges, key, options=wanted))
        self._refuse_page(key, answer)
        return self._call(key, lambda: bytes(answer.bytes()))

    def _read_unasked(self, key: str, offset: int, length: int) -> bytes:
        """What a server means that answers a range with a whole object: it may be just that range."""
        import obstore

        answer = self._call(key, lambda: obstore.get(self._objects, key))
        self._refuse_page(key, answer)
        if offset == 0 and answer.meta["size"] == length:
            return self._call(key, lambda: bytes(answer.bytes()))
        raise UnavailableError(
            f"server does not serve ranges of objects: {self._place(key)}",
            hint="serve the store with a server that does, such as nginx",
        )

    def _refuse_page(self, key: str, answer: GetResult) -> None:
        kind = answer.attributes.get("Content-Type")
        if isinstance(kind, str) and kind.lower().startswith(("text/html", "application/xhtml")):
            raise self._page_came(key)

    def _page_came(self, key: str) -> DataError:
        return DataError(
            f"server sent a web page instead of an object: {self._place(key)}",
            hint="look whether a proxy or a login page stands before the store",
        )

    def _place(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url

    def _again(self, read: Callable[[], R]) -> R:
        """The library retries requests, but not bodies that end too soon."""
        for tries_left in reversed(range(_TRIES)):
            try:
                return read()
            except BodyInterrupted as error:
                if not tries_left:
                    raise UnreachableError(error.message, hint=error.hint) from None
        raise AssertionError

    def _call(self, key: str, request: Callable[[], R]) -> R:
        try:
            return interruptible(request)
        except BaseException as error:
            if gave_up(error):
                raise panicked(self._place(key), self.location.kind) from None
            if isinstance(error, ColdstartError) or not isinstance(error, Exception):
                raise
            if type(error).__name__ == "NotModifiedError":
                raise _NotModified from None
            # without the cause: its text may hold signed URLs
            raise translated(
                error, url=self._place(key), permission_hint=self.location.permission_hint
            ) from None


class HttpStore(ObjectStore):
    """A store that an HTTP server shows; nothing can be listed or written there."""

    def get_if_changed(self, key: str, tag: str | None) -> Fetched:
        options: GetOptions = {"range": {"offset": 0}}
        if tag:
            options["if_none_match"] = tag
        try:
            # as a range: a server without ranges is met here, and not in the middle of a mount
            content, found = self._again(lambda: self._read_whole(key, options))
        except _NotModified:
            return Fetched(None, tag)
        except RangeRefused:
            content = self._read_unasked(key, 0, -1)
            found = None
        return Fetched(content, found)

    def list(self, prefix: str) -> list[str]:
        del prefix
        raise UnavailableError(
            f"store cannot be listed over HTTP: {self.url}",
            hint="name the image, or list the store where it is kept",
        )

    def confirm(self) -> None:
        try:
            super().confirm()
        except DataError as error:
            if error.hint is not None:  # a page, or a newer store
                raise
            raise DataError(
                f"something else than a store answers at {self.url}", hint="check the address of the store"
            ) from None

    def check_writable(self) -> None:
        raise UnavailableError(
            f"store is read-only over HTTP: {self.url}",
            hint="write to the folder or bucket that the server shows",
        )

    @contextmanager
    def writing(self, *, wait_seconds: float = 0.0) -> Iterator[Path]:
        del wait_seconds
        self.check_writable()
        yield Path()


class _NotModified(Exception):  # noqa: N818 - an answer
    pass
