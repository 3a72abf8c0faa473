"""What a store is, whatever keeps it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from coldstart_cli.errors import DataError
from coldstart_cli.version import __version__

SPELLINGS = (
    "a folder, file://, http://, https://, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
)
MARKER = "coldstart-store.json"
SNAPSHOTS = "snapshots"
"""Where below an address snapshots have a store of their own, with its own packs, names and lock."""
MARKER_CONTENT = json.dumps({"schema": "coldstart.store", "version": 1}).encode() + b"\n"


@dataclass(frozen=True)
class PutReport:
    """What a publication of files sent, and what the store had already."""

    sent_files: int = 0
    sent_bytes: int = 0
    held_files: int = 0
    held_bytes: int = 0

    def with_sent(self, size_bytes: int) -> PutReport:
        return replace(self, sent_files=self.sent_files + 1, sent_bytes=self.sent_bytes + size_bytes)

    def with_held(self, size_bytes: int) -> PutReport:
        return replace(self, held_files=self.held_files + 1, held_bytes=self.held_bytes + size_bytes)


@dataclass(frozen=True)
class Fetched:
    """An object and the tag by which the store knows this state of it; no content: the tag still stands."""

    content: bytes | None
    tag: str | None


@dataclass(frozen=True)
class StoredObject:
    """An object as a listing tells of it; `modified_seconds` since 1970, by the clock of the store."""

    key: str
    size_bytes: int
    modified_seconds: float


class Store(Protocol):
    """Objects under keys. Missing objects are `NotFoundError`, failed input or output is `IoFailure`."""

    @property
    def url(self) -> str: ...

    def get(self, key: str) -> bytes: ...

    def get_if_changed(self, key: str, tag: str | None) -> Fetched:
        """The object whole, unless it is still the one that an earlier answer gave this tag."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; an object that ends sooner is a `DataError`."""
        ...

    def read_range(self, key: str, offset: int, length: int, heard: Callable[[], None]) -> bytes | bytearray:
        """As `get_range`, in one try; `heard` is called when bytes came, and ends it by raising."""
        ...

    def put_file(self, key: str, path: Path) -> None:
        """Publish a file of the scratch folder whole; it is gone from there afterwards."""
        ...

    def put_files(
        self, items: Iterable[tuple[str, Path]], *, on_put: Callable[[int], None] | None = None
    ) -> PutReport:
        """Publish files under keys that name their content; each is gone from its place when it is up.

        Items are asked for when there is room for one more. An object that is there with the right size
        is not sent again. `on_put` hears the size of each file that is done.
        """
        ...

    def put_bytes(self, key: str, content: bytes) -> None:
        """Publish or replace an object whole."""
        ...

    def exists(self, key: str) -> bool: ...

    def size(self, key: str) -> int | None:
        """The size of an object in bytes; None when there is none."""
        ...

    def local_path(self, key: str) -> Path | None:
        """The file of this host that is the object, for stores that keep files."""
        ...

    def list(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, sorted; `UnavailableError` where a store cannot list."""
        ...

    def inventory(self, prefix: str) -> tuple[StoredObject, ...]:
        """The objects whose keys begin with `prefix`, in order of their keys; as `list` otherwise."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is gone already."""
        ...

    def confirm(self) -> None:
        """Say that there is no store at all, if so: for those who missed something in it."""
        ...

    def hasty(self) -> Store:
        """The same store for questions that have an answer in hand: asked once, and not for long."""
        ...

    def writing(self, *, wait_seconds: float = 0.0) -> AbstractContextManager[Path]:
        """Write to the store, as its only writer where it can tell; yields a scratch folder of this host."""
        ...


def check_document(document: Any, schema: str, place: str) -> None:
    """Refuse what is no such document, or a newer one, by name."""
    found = document.get("schema") if isinstance(document, dict) else None
    version = document.get("version") if isinstance(document, dict) else None
    if found != schema or not isinstance(version, int):
        raise DataError(f"damaged: {place} is not a {schema} document")
    if version > 1:
        raise DataError(
            f"{place} has version {version}, coldstart {__version__} reads up to 1",
            hint="install a newer coldstart",
        )
