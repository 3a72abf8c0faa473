"""A store that an HTTP server shows, and the door to every store behind a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.errors import DataError, UnavailableError
from coldstart_fs.stores.object_clients import Location
from coldstart_fs.stores.object_errors import RangeRefused
from coldstart_fs.stores.object_store import NotModified, ObjectStore
from coldstart_fs.stores.store import Fetched, StoredObject

if TYPE_CHECKING:
    from obstore import GetOptions


def open_remote(url: str, *, create: bool, credentials: Path | None = None) -> ObjectStore:
    """The store at a URL. It is asked nothing yet; with `create`, whether it is one, or empty."""
    location = replace(Location.parse(url), credentials=credentials)
    kind = HttpStore if location.kind in {"http", "https"} else ObjectStore
    store = kind(location)
    if create:
        store.check_writable()
    return store


class HttpStore(ObjectStore):
    """A store that an HTTP server shows; nothing can be listed or written there."""

    def get_if_changed(self, key: str, tag: str | None) -> Fetched:
        options: GetOptions = {"range": {"offset": 0}}
        if tag:
            options["if_none_match"] = tag
        try:
            # as a range: a server without ranges is met here, and not in the middle of a mount
            content, found = self._again(lambda: self._read_whole(key, options))
        except NotModified:
            return Fetched(None, tag)
        except RangeRefused:
            content = self._read_unasked(key, 0, -1)
            found = None
        return Fetched(content, found)

    def inventory(self, prefix: str) -> tuple[StoredObject, ...]:
        self.list(prefix)
        return ()

    def delete(self, key: str) -> None:
        del key
        self.check_writable()

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
