"""Where ranges of packs come from: any object with this one method, such as `tiers.packs.TieredPacks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from coldstart_fs.format.names import pack_key
from coldstart_fs.stores.store import Store
from coldstart_fs.tiers.attempt import Stored

Check = Callable[[Stored], None]
"""Raises `DataError` when the bytes are not the chunks that were asked for."""


class PackSource(Protocol):
    """Ranges of packs, from whatever is nearest and has them right."""

    def fetch(self, pack: bytes, offset: int, length: int, *, deadline: float, check: Check) -> Stored:
        """`length` bytes that `check` accepted, by `deadline` (`time.monotonic`), or a `ColdstartError`."""
        ...

    def close(self) -> None:
        """Nobody will ask for anything any more."""
        ...


class StorePacks:
    """Packs of a store, asked for nowhere else, with the store's own deadlines."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def fetch(self, pack: bytes, offset: int, length: int, *, deadline: float, check: Check) -> Stored:
        del deadline
        stored = self._store.get_range(pack_key(pack), offset, length)
        check(stored)
        return stored

    def close(self) -> None:
        """Nothing: the store is its owner's."""
