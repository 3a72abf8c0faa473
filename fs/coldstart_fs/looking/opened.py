"""One image of a store, opened to be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_fs.format.index import Index
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import digest_text
from coldstart_fs.looking.contents import Contents
from coldstart_fs.stores.copies import Tell
from coldstart_fs.stores.images import open_index, open_locator
from coldstart_fs.stores.references import ResolvedImage, read_ref, resolve_image
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store


@dataclass(frozen=True)
class OpenedImage:
    """Files are opened when they are asked for, and closed with the block of `opened_image`."""

    store: Store
    resolved: ResolvedImage
    cache: Path
    tell: Tell
    _stack: ExitStack

    @property
    def name(self) -> str:
        return self.resolved.name

    @property
    def digest(self) -> bytes:
        return self.resolved.digest

    @cached_property
    def index(self) -> Index:
        return self._stack.enter_context(open_index(self.store, self.digest, self.cache))

    @cached_property
    def locator(self) -> Locator:
        return self._stack.enter_context(open_locator(self.store, self.digest, self.cache, self.tell))

    @property
    def contents(self) -> Contents:
        return Contents(self.store, self.index, self.locator)

    @property
    def created(self) -> str | None:
        """When its name was given; None for an image that was asked for by digest."""
        if self.name == digest_text(self.digest):
            return None
        try:
            return read_ref(self.store, self.name).created
        except ColdstartError:  # removed a moment ago, or the store cannot be asked
            return None


@contextmanager
def opened_image(name: str, *, store_url: str, cache: Path, tell: Tell) -> Iterator[OpenedImage]:
    """The image that NAME, NAME@blake3:HEX or blake3:HEX stands for.

    A store that is down is no failure for an image that the cache knows; `tell` hears of it.
    """
    store = open_store(store_url, tell=tell)
    with ExitStack() as stack:
        yield OpenedImage(store, resolve_image(store, name, cache=cache, tell=tell), cache, tell, stack)
