"""Looking through a store for damage: every object that its images need is read whole and compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_fs.format.index import Index
from coldstart_fs.format.locator import RECORD
from coldstart_fs.format.names import changed_pack_hint, digest_text, locator_key, pack_key
from coldstart_fs.format.pack import FOOTER
from coldstart_fs.indexing.progress import Progress
from coldstart_fs.stores.held import measure_pack
from coldstart_fs.stores.images import open_image
from coldstart_fs.stores.parallel import run_parallel
from coldstart_fs.stores.references import ResolvedImage, list_names, resolve_image
from coldstart_fs.stores.store import Store

_PACKS_AT_ONCE = 4
_BLOCK_BYTES = 8 << 20
_Place = tuple[bytes, int, int, int, int]
"""Digest, offset, stored size, size, encoding: what a locator and a pack's table say alike."""


@dataclass(frozen=True)
class StoreDamage:
    """An object that is not what it should be, the images that need it, and what helps."""

    key: str
    what: str
    images: tuple[str, ...]
    hint: str | None


@dataclass(frozen=True)
class StoreScrub:
    images: int
    packs: int
    verified_bytes: int
    damage: tuple[StoreDamage, ...]


@dataclass
class _Pack:
    """What the images that were looked at say about one pack."""

    images: list[str] = field(default_factory=list)
    places: set[_Place] = field(default_factory=set)


def scrub_store(store: Store, names: Iterable[str], *, progress: Progress) -> StoreScrub:
    """Compare everything that these images, or all named ones, need with its digests. Nothing is changed."""
    wanted = list(names) or list_names(store)
    packs: dict[bytes, _Pack] = {}
    damage: list[StoreDamage] = []
    verified_bytes = 0
    # an own cache: a copy on this host says nothing about the store
    with TemporaryDirectory(prefix="coldstart-verify-") as scratch:
        for name in wanted:
            progress(f"verifying {name}")
            image: ResolvedImage | None = None
            try:
                image = resolve_image(store, name)
                verified_bytes += _image(store, image, packs, damage, Path(scratch))
            except (DataError, NotFoundError) as error:
                if image is None and isinstance(error, NotFoundError):
                    raise  # a name that nobody gave is no damage
                damage.append(StoreDamage(f"refs/{name}", error.message, (name,), error.hint))
    progress("verifying packs")
    progress.expect(sum(max(place[1] + place[2] for place in pack.places) for pack in packs.values()))
    for seen_bytes, found in run_parallel(
        lambda item: _verified(store, *item, progress), packs.items(), workers=_PACKS_AT_ONCE
    ):
        verified_bytes += seen_bytes
        damage += found
    return StoreScrub(len(wanted), len(packs), verified_bytes, tuple(damage))


def _image(
    store: Store, image: ResolvedImage, packs: dict[bytes, _Pack], damage: list[StoreDamage], scratch: Path
) -> int:
    """Take an image's index and locator as they are in the store, and note which packs they need."""
    index, locator = open_image(store, image.digest, scratch)
    with index, locator:
        known = {record[0] for record in locator.table()}
        missing = sum(1 for digest in _digests(index) if digest not in known)
        if missing:
            what = f"it does not say where {missing} chunks of the image are"
            key = locator_key(image.digest)
            damage.append(StoreDamage(key, what, (image.name,), "index the image again"))
        names = locator.packs
        for digest, offset, stored_bytes, size_bytes, number, encoding, _ in locator.table():
            pack = packs.setdefault(names[number], _Pack())
            pack.places.add((digest, offset, stored_bytes, size_bytes, encoding))
        for pack_digest in names:
            if pack_digest in packs:
                packs[pack_digest].images.append(image.name)
        return index.size_bytes + locator.size_bytes


def _digests(index: Index) -> Iterator[bytes]:
    hole = bytes(32)
    for number in range(index.inode_count):
        if index.inode(number).is_file:
            yield from (digest for digest in index.chunk_digests(number) if digest != hole)


def _verified(store: Store, digest: bytes, pack: _Pack, progress: Progress) -> tuple[int, list[StoreDamage]]:
    """How much of a pack is right, and what is wrong with it."""
    key, images = pack_key(digest), tuple(pack.images)
    try:
        measures = measure_pack(store, digest)
        if measures is None:
            return 0, [StoreDamage(key, "it is not in the store", images, "index the image again")]
        found, table = _read(store, digest, measures.size_bytes, measures.body_bytes, progress)
    except (DataError, NotFoundError) as error:
        return 0, [StoreDamage(key, error.message, images, error.hint or changed_pack_hint(digest))]
    if found != digest:
        what = f"its digest is {digest_text(found)}"
        return 0, [StoreDamage(key, what, images, changed_pack_hint(digest))]
    if strangers := len(pack.places - table):
        what = f"a locator means {strangers} chunks that it does not have"
        return measures.size_bytes, [StoreDamage(key, what, images, "index the image again")]
    return measures.size_bytes, []


def _read(
    store: Store, digest: bytes, size_bytes: int, body_bytes: int, progress: Progress
) -> tuple[bytes, set[_Place]]:
    """The digest of a pack, block by block, and its table."""
    from blake3 import blake3

    hasher = blake3()
    end = bytearray()
    for offset in range(0, size_bytes, _BLOCK_BYTES):
        block = store.get_range(pack_key(digest), offset, min(_BLOCK_BYTES, size_bytes - offset))
        hasher.update(block)
        end += block[max(0, body_bytes - offset) :]
        progress.advance(len(block))
    records = bytes(end[: len(end) - FOOTER.size])
    table = {
        (digest, offset, stored_bytes, size_bytes, encoding)
        for digest, offset, stored_bytes, size_bytes, _, encoding, _ in RECORD.iter_unpack(records)
    }
    return hasher.digest(), table
