"""Copying an image from store to store: what is missing there, verified on the way, the name last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, UsageError
from coldstart_fs.format.chunk import chunk_digest
from coldstart_fs.format.index import Index
from coldstart_fs.format.locator import ChunkLocation, Locator, encode_locator
from coldstart_fs.format.names import (
    changed_pack_hint,
    check_name,
    digest_text,
    index_key,
    locator_key,
    pack_key,
)
from coldstart_fs.indexing.progress import Progress
from coldstart_fs.stores.condemned import load_condemned
from coldstart_fs.stores.held import HeldChunks, measure_pack
from coldstart_fs.stores.parallel import run_parallel
from coldstart_fs.stores.publish import publish_changed, publish_name
from coldstart_fs.stores.references import check_can_name, resolve_image
from coldstart_fs.stores.store import Store

_PACKS_AT_ONCE = 4
_QUESTIONS_AT_ONCE = 16
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Packs:
    """Some packs, and what they hold together."""

    count: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class CopyReport:
    """What a copy did. A pack is sent, held by the destination, or not needed: its chunks lie elsewhere."""

    name: str
    digest: bytes
    source: str
    destination: str
    sent: Packs
    held: Packs
    not_needed: Packs
    index_bytes: int
    dry_run: bool
    seconds: float


def copy_image(
    name: str,
    source: Store,
    destination: Store,
    *,
    new_name: str | None = None,
    progress: Progress | None = None,
    dry_run: bool = False,
    wait_seconds: float = 0.0,
) -> CopyReport:
    """Copy NAME, NAME@blake3:HEX or blake3:HEX; interrupted, it goes on where it was when it is run again."""
    started = time.monotonic()
    progress = progress or Progress()
    image = resolve_image(source, name)
    given = new_name or image.name
    if given == digest_text(image.digest):
        raise UsageError(f"the copy of {name} needs a name", hint="pass `--name NAME`")
    check_can_name(destination, check_name(given))
    with ExitStack() as stack:
        if dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="coldstart-")))
        else:
            scratch = stack.enter_context(destination.writing(wait_seconds=wait_seconds))
        progress("comparing the stores")
        index = _verified_index(source, image.digest)
        key = locator_key(image.digest)
        # where it is a file, it is judged before it is read: it may be of any size
        locator_path = source.local_path(key) or _write(scratch / "source.locator", source.get(key))
        locator = stack.enter_context(Locator.open(locator_path))
        plan = _plan(source, destination, locator, scratch)
        if not dry_run:
            progress("copying packs")
            progress.expect(plan.sent.size_bytes)
            for size_bytes in _send(source, destination, plan.missing, scratch):
                progress.advance(size_bytes)
            progress("publishing")
            index_path = _write(scratch / "index", index)
            copied = _write(scratch / "locator", plan.locator(locator))
            publish_changed(destination, index_key(image.digest), index_path)
            publish_changed(destination, locator_key(image.digest), copied)
            publish_name(destination, given, image.digest)
        return CopyReport(
            name=given,
            digest=image.digest,
            source=source.url,
            destination=destination.url,
            sent=plan.sent,
            held=plan.held,
            not_needed=plan.not_needed,
            index_bytes=len(index),
            dry_run=dry_run,
            seconds=time.monotonic() - started,
        )


@dataclass
class _Plan:
    """`elsewhere` is where the destination keeps the chunks of packs that need not be sent."""

    missing: dict[bytes, int]
    held: Packs
    not_needed: Packs
    elsewhere: dict[bytes, ChunkLocation] = field(default_factory=dict)

    @property
    def sent(self) -> Packs:
        return Packs(len(self.missing), sum(self.missing.values()))

    def locator(self, source: Locator) -> bytes:
        """Where the destination keeps the image's chunks once all is there."""
        locations = dict(source.records()) | self.elsewhere
        return encode_locator(locations, sorted({place.pack for place in locations.values()}))


def _plan(source: Store, destination: Store, locator: Locator, scratch: Path) -> _Plan:
    """A pack goes whole or not at all: cutting chunks out of it would mean to write it anew."""
    condemned = load_condemned(destination)

    def ask(pack: bytes) -> tuple[bytes, int | None, int | None]:
        try:
            # what is about to be removed is sent again
            there = None if condemned.has_pack(pack) else measure_pack(destination, pack)
        except DataError:  # cut short or too long: replaced
            there = None
        return pack, source.size(pack_key(pack)), None if there is None else there.size_bytes

    missing: dict[bytes, int | None] = {}
    held_bytes = 0
    for pack, size_bytes, there_bytes in run_parallel(ask, locator.packs, workers=_QUESTIONS_AT_ONCE):
        if there_bytes is None:
            missing[pack] = size_bytes
        else:
            held_bytes += there_bytes
    held = Packs(len(locator.packs) - len(missing), held_bytes)
    elsewhere = _found_elsewhere(destination, locator, set(missing), scratch) if missing else {}
    spared = set(missing) & elsewhere.keys()
    not_needed = Packs(len(spared), sum(missing[pack] or 0 for pack in spared))
    to_send: dict[bytes, int] = {}
    for pack in locator.packs:  # in their order, so that an interrupted copy goes on as it began
        if pack in missing and pack not in spared:
            size = missing[pack]
            if size is None:
                raise DataError(
                    f"image is damaged: pack is not in the store: {source.url}/{pack_key(pack)}",
                    hint="index the image again",
                )
            to_send[pack] = size
    places = {chunk: place for pack in spared for chunk, place in elsewhere[pack].items()}
    return _Plan(to_send, held, not_needed, places)


def _found_elsewhere(
    destination: Store, locator: Locator, packs: set[bytes], scratch: Path
) -> dict[bytes, dict[bytes, ChunkLocation]]:
    """Those of the packs all of whose chunks the destination keeps in other packs, with where it does."""
    found: dict[bytes, dict[bytes, ChunkLocation]] = {pack: {} for pack in packs}
    with HeldChunks.open(destination, scratch) as held:
        for chunk, place in locator.records():
            if (places := found.get(place.pack)) is None:
                continue
            number = held.find(chunk, place.size_bytes)
            if number is None:
                del found[place.pack]
            else:
                places[chunk] = held.location(number)
    return found


def _send(source: Store, destination: Store, packs: dict[bytes, int], scratch: Path) -> Iterator[int]:
    """Packs, a few at a time through the scratch folder; the size of each that is up."""

    def send(item: tuple[bytes, int]) -> int:
        pack, size_bytes = item
        path = scratch / f"{pack.hex()}.pack"
        _fetch(source, pack, size_bytes, path)
        destination.put_file(pack_key(pack), path)
        return size_bytes

    return run_parallel(send, packs.items(), workers=_PACKS_AT_ONCE)


def _fetch(source: Store, pack: bytes, size_bytes: int, path: Path) -> None:
    from blake3 import blake3

    hasher = blake3()
    try:
        with path.open("wb") as stream:
            for position in range(0, size_bytes, _BLOCK_BYTES):
                block = source.get_range(pack_key(pack), position, min(_BLOCK_BYTES, size_bytes - position))
                hasher.update(block)
                stream.write(block)
    except NotFoundError as error:
        raise DataError(f"image is damaged: {error.message}", hint="index the image again") from error
    except OSError as error:
        raise IoFailure(f"cannot write `{path}`: {error.strerror}") from error
    if hasher.digest() != pack:
        raise DataError(
            f"pack is damaged and was not copied: {source.url}/{pack_key(pack)}: its digest is "
            f"{digest_text(hasher.digest())}",
            hint=f"in the source store, {changed_pack_hint(pack)}",
        )


def _verified_index(source: Store, digest: bytes) -> bytes:
    path = source.local_path(index_key(digest))
    try:
        if path is not None:
            Index.open(path).close()  # its size is what its header says, before it is read
        content = source.get(index_key(digest))
    except NotFoundError as error:
        raise DataError(f"image is damaged: {error.message}", hint="index the image again") from error
    if (found := chunk_digest(content)) != digest:
        raise DataError(
            f"index is damaged: {source.url}/{index_key(digest)}: its digest is {digest_text(found)}",
            hint="index the image again",
        )
    return content


def _write(path: Path, content: bytes) -> Path:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise IoFailure(f"cannot write `{path}`: {error.strerror}") from error
    return path
