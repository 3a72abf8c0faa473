"""Stores behind a network: S3, Google Cloud Storage, Azure Blob Storage, and HTTP servers to read from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coldstart_cli.errors import (
    CannotCreateError,
    ColdstartError,
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UnreachableError,
)
from coldstart_fs.stores.answers import cut_short, is_page, no_ranges, other_range, page_came
from coldstart_fs.stores.object_clients import Clients, Location
from coldstart_fs.stores.object_errors import BodyInterrupted, RangeRefused, translated
from coldstart_fs.stores.object_settings import gave_up, panicked
from coldstart_fs.stores.parallel import interruptible, run_parallel
from coldstart_fs.stores.scratch import scratch_folder
from coldstart_fs.stores.store import (
    MARKER,
    MARKER_CONTENT,
    SNAPSHOTS,
    Fetched,
    PutReport,
    StoredObject,
    check_document,
)

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult

R = TypeVar("R")
_UPLOADS = 4
_PARTS_AT_ONCE = 3
_PART_BYTES = 8 << 20
_COMPARE_BYTES = 64 << 10
_TRIES = 3
_PIECE_BYTES = 256 << 10


class ObjectStore:
    """Objects of a bucket below a prefix. Thread-safe; takes no lock, since objects are named by content."""

    def __init__(self, location: Location, hasty_clients: Clients | None = None) -> None:
        self.location = location
        self._clients = hasty_clients or Clients(location)
        self._is_hasty = hasty_clients is not None

    @property
    def url(self) -> str:
        return self.location.url

    def hasty(self) -> ObjectStore:
        return type(self)(self.location, self._clients)

    def get(self, key: str) -> bytes:
        return self._again(lambda: self._read_whole(key, None))[0]

    def get_if_changed(self, key: str, tag: str | None) -> Fetched:
        options: GetOptions = {"if_none_match": tag} if tag else {}
        try:
            content, found = self._again(lambda: self._read_whole(key, options))
        except NotModified:
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
            raise cut_short(self._place(key), came_bytes=len(data), length=length, offset=offset)
        return data

    def read_range(self, key: str, offset: int, length: int, heard: Callable[[], None]) -> bytearray:
        import obstore

        wanted: GetOptions = {"range": (offset, offset + length)}
        try:
            answer = self._call(key, lambda: obstore.get(self._clients.single_tries, key, options=wanted))
        except RangeRefused:
            raise no_ranges(self._place(key)) from None
        self._refuse_page(key, answer)
        heard()
        data, filled = bytearray(length), 0
        pieces = iter(answer.stream(min_chunk_size=_PIECE_BYTES))
        while (piece := self._call(key, lambda: next(pieces, None))) is not None:
            end = filled + len(piece)
            if end > length:
                raise other_range(self._place(key))
            data[filled:end] = memoryview(piece)
            filled = end
            heard()
        if filled != length:
            raise cut_short(self._place(key), came_bytes=filled, length=length, offset=offset)
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
                self._clients.uploads, key, content, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            ),
        )
        self._prove(key, len(content))

    def exists(self, key: str) -> bool:
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        import obstore

        try:
            return int(self._call(key, lambda: obstore.head(self._clients.ranges, key))["size"])
        except NotFoundError:
            return None

    def local_path(self, key: str) -> Path | None:
        del key
        return None

    def list(self, prefix: str) -> list[str]:
        import obstore

        folder, _, _ = prefix.rpartition("/")
        client = self._clients.hasty if self._is_hasty else self._clients.objects
        pages = self._call("", lambda: list(obstore.list(client, folder or None)))
        return sorted(entry["path"] for page in pages for entry in page if entry["path"].startswith(prefix))

    def inventory(self, prefix: str) -> tuple[StoredObject, ...]:
        import obstore

        folder, _, _ = prefix.rpartition("/")
        pages = self._call("", lambda: list(obstore.list(self._clients.objects, folder or None)))
        found = [
            StoredObject(entry["path"], int(entry["size"]), entry["last_modified"].timestamp())
            for page in pages
            for entry in page
            if entry["path"].startswith(prefix)
        ]
        return tuple(sorted(found, key=lambda one: one.key))

    def delete(self, key: str) -> None:
        import obstore

        with suppress(NotFoundError):
            self._call(key, lambda: obstore.delete(self._clients.objects, key))

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

        # snapshots have a store of their own below the same address
        pages = self._call("", lambda: obstore.list(self._clients.objects, chunk_size=1))
        while (page := self._call("", lambda: next(iter(pages), None))) is not None:
            if any(not entry["path"].startswith(f"{SNAPSHOTS}/") for entry in page):
                return True
        return False

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
                    self._clients.uploads, key, path, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
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

        def ask() -> GetResult:
            client = self._clients.hasty if self._is_hasty else self._clients.objects
            return obstore.get(client, key, options=options or None)

        answer = self._call(key, ask)
        self._refuse_page(key, answer)
        data = self._call(key, lambda: bytes(answer.bytes()))
        if len(data) != answer.meta["size"]:
            raise DataError(
                f"object is cut short: {self._place(key)}: {len(data)} of {answer.meta['size']} bytes came"
            )
        # no file of a store begins as pages do, but contents in packs may
        if data[:64].lstrip().startswith(b"<") and not key.startswith("packs/"):
            raise page_came(self._place(key))
        return data, answer.meta["e_tag"]

    def _read_range(self, key: str, offset: int, length: int) -> bytes:
        import obstore

        wanted: GetOptions = {"range": (offset, offset + length)}
        answer = self._call(key, lambda: obstore.get(self._clients.ranges, key, options=wanted))
        self._refuse_page(key, answer)
        return self._call(key, lambda: bytes(answer.bytes()))

    def _read_unasked(self, key: str, offset: int, length: int) -> bytes:
        """What a server means that answers a range with a whole object: it may be just that range."""
        import obstore

        answer = self._call(key, lambda: obstore.get(self._clients.objects, key))
        self._refuse_page(key, answer)
        if offset == 0 and answer.meta["size"] == length:
            return self._call(key, lambda: bytes(answer.bytes()))
        raise no_ranges(self._place(key))

    def _refuse_page(self, key: str, answer: GetResult) -> None:
        if is_page(answer.attributes.get("Content-Type")):
            raise page_came(self._place(key))

    def _place(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url

    def _again(self, read: Callable[[], R]) -> R:
        """The library retries requests, but not bodies that end too soon."""
        for tries_left in reversed(range(1 if self._is_hasty else _TRIES)):
            try:
                return read()
            except BodyInterrupted as error:
                if not tries_left:
                    raise UnreachableError(error.message, hint=error.hint) from None
        raise AssertionError

    def _call(self, key: str, request: Callable[[], R]) -> R:
        """What a request answers; who is refused asks once more with new credentials."""
        seen = self._clients.generation
        try:
            return self._call_once(key, request)
        except PermissionNeededError:
            if not self._clients.renew(seen):
                raise
        return self._call_once(key, request)

    def _call_once(self, key: str, request: Callable[[], R]) -> R:
        try:
            return interruptible(request)
        except BaseException as error:
            if gave_up(error):
                raise panicked(self._place(key), self.location.kind) from None
            if isinstance(error, ColdstartError) or not isinstance(error, Exception):
                raise
            if type(error).__name__ == "NotModifiedError":
                raise NotModified from None
            # without the cause: its text may hold signed URLs
            raise translated(
                error, url=self._place(key), permission_hint=self.location.permission_hint
            ) from None


class NotModified(Exception):  # noqa: N818 - an answer
    pass
