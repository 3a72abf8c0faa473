"""Whether a store has all that a set of files needs, by sizes and small digests; no content is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from coldstart_cli.errors import ColdstartError, DataError, NotFoundError
from coldstart_fs.filesets.keys import map_key
from coldstart_fs.format.file_map import FileMap
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import locator_key, pack_key
from coldstart_fs.stores.held import measure_pack
from coldstart_fs.stores.store import Store


def problems_of(store: Store, identity: bytes, files: Collection[tuple[str, int]]) -> Iterator[str]:
    """What is wrong with the set `identity`, whose document lists these paths and sizes."""
    try:
        place = f"{store.url}/{map_key(identity)}"
        found = FileMap.decode(store.get(map_key(identity)), place)
        locator = Locator.of(store.get(locator_key(identity)), f"{store.url}/{locator_key(identity)}")
    except (DataError, NotFoundError) as error:
        yield error.message
        return
    with locator:
        yield from _unmapped(found, files)
        yield from _unplaced(found, locator)
        for pack in locator.packs:
            yield from _pack_problem(store, pack)


def _unmapped(found: FileMap, files: Collection[tuple[str, int]]) -> Iterator[str]:
    for path, size_bytes in files:
        mapped = found.file(path)
        if mapped is None or mapped.size_bytes != size_bytes:
            yield f"map does not fit the manifest: {path}"


def _unplaced(found: FileMap, locator: Locator) -> Iterator[str]:
    for file in found.files:
        for chunk in found.chunks(file):
            if not chunk.is_hole and locator.position(chunk.digest) is None:
                yield f"locator lacks a chunk: {file.path}"
                break


def _pack_problem(store: Store, pack: bytes) -> Iterator[str]:
    try:
        if measure_pack(store, pack) is None:
            yield f"pack is not in the store: {pack_key(pack)}"
    except ColdstartError as error:
        if not isinstance(error, DataError):
            raise
        yield error.message
