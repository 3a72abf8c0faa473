"""Bringing an image into its store: packs as they are finished, then index, locator and name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from coldstart_cli.errors import ColdstartError, DataError, NotFoundError
from coldstart_fs.format.names import pack_key
from coldstart_fs.format.pack import FinishedPack
from coldstart_fs.stores.references import resolve_image, write_ref
from coldstart_fs.stores.store import PutReport, Store

_COMPARE_BYTES = 4 << 20


def publish_packs(store: Store, packs: Iterable[FinishedPack], on_put: Callable[[int], None]) -> PutReport:
    """Publish packs; the store asks for the next one when it has room for it, and tells the size of each."""
    return store.put_files(((pack_key(pack.digest), pack.path) for pack in packs), on_put=on_put)


def publish_changed(store: Store, key: str, path: Path) -> None:
    """Publish a file unless the store has just these bytes."""
    if not _holds(store, key, path):
        store.put_file(key, path)


def publish_name(store: Store, name: str, digest: bytes) -> None:
    """Let the name stand for the image, unless it does."""
    try:
        if resolve_image(store, name).digest == digest:
            return
    except ColdstartError:  # absent or damaged: written anew
        pass
    write_ref(store, name, digest)


def _holds(store: Store, key: str, path: Path) -> bool:
    if store.size(key) != path.stat().st_size:
        return False
    with path.open("rb") as stream:
        position = 0
        try:
            while block := stream.read(_COMPARE_BYTES):
                if store.get_range(key, position, len(block)) != block:
                    return False
                position += len(block)
        except (NotFoundError, DataError):
            return False
    return True
