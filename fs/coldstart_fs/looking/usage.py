"""What an image is made of: its entries, its bytes, and which of them other images of the store have too."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_fs.format.chunk import RAW, ZSTD
from coldstart_fs.format.index import HOLE, Index, Inode
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import DIGEST_BYTES
from coldstart_fs.looking.tree import walk
from coldstart_fs.stores.images import open_locator
from coldstart_fs.stores.references import list_names, read_ref
from coldstart_fs.stores.store import Store

_TYPES = {
    0o040000: "directories",
    0o100000: "files",
    0o120000: "symlinks",
    0o020000: "character_devices",
    0o060000: "block_devices",
    0o010000: "fifos",
    0o140000: "sockets",
}
_ENCODINGS = {RAW: "raw", ZSTD: "zstd"}


@dataclass(frozen=True)
class SizedPath:
    path: bytes
    size_bytes: int


@dataclass(frozen=True)
class Usage:
    """Content is `unique`, repeated inside the image, or zeros; unique content is what the packs hold."""

    entries: dict[str, int]
    further_links: int
    content_bytes: int
    unique_bytes: int
    repeated_bytes: int
    zero_bytes: int
    stored_bytes: int
    packs: int
    chunks: dict[str, int]
    """Number of chunks by encoding."""
    index_bytes: int
    locator_bytes: int
    largest_files: tuple[SizedPath, ...]
    largest_directories: tuple[SizedPath, ...]
    """Folders of the root, with all that is below them."""


def measure_usage(index: Index, locator: Locator, *, listed: int) -> Usage:
    """Count everything; the longest lists have `listed` entries."""
    entries: Counter[str] = Counter()
    top: Counter[bytes] = Counter()
    files: list[tuple[int, bytes]] = []
    linked: set[int] = set()
    further_links = content_bytes = zero_bytes = 0
    for path, inode in walk(index):
        if inode.links > 1 and not inode.is_directory:
            if inode.number in linked:
                further_links += 1
                continue
            linked.add(inode.number)
        entries[_TYPES.get(inode.mode & 0o170000, "others")] += 1
        if inode.is_file and inode.size:
            content_bytes += inode.size
            zero_bytes += hole_bytes(index, inode)
            folder, below, _ = path.partition(b"/")
            if below:
                top[folder] += inode.size
            item = (inode.size, path)
            if len(files) < listed:
                heapq.heappush(files, item)
            else:
                heapq.heappushpop(files, item)
    chunks: Counter[str] = Counter()
    unique_bytes = stored_bytes = 0
    for _, _, stored, size, _, encoding, _ in locator.table():
        unique_bytes += size
        stored_bytes += stored
        chunks[_ENCODINGS.get(encoding, f"encoding {encoding}")] += 1
    return Usage(
        entries={name: entries[name] for name in (*_TYPES.values(), "others") if entries[name]},
        further_links=further_links,
        content_bytes=content_bytes,
        unique_bytes=unique_bytes,
        repeated_bytes=max(0, content_bytes - zero_bytes - unique_bytes),
        zero_bytes=zero_bytes,
        stored_bytes=stored_bytes,
        packs=len(locator.packs),
        chunks=dict(chunks),
        index_bytes=index.size_bytes,
        locator_bytes=locator.size_bytes,
        largest_files=tuple(SizedPath(path, size) for size, path in sorted(files, key=_largest_first)),
        largest_directories=tuple(
            SizedPath(path, size)
            for size, path in sorted(((size, path) for path, size in top.items()), key=_largest_first)[
                :listed
            ]
        ),
    )


def _largest_first(item: tuple[int, bytes]) -> tuple[int, bytes]:
    return -item[0], item[1]


def hole_bytes(index: Index, inode: Inode) -> int:
    """How many of a file's bytes stand in holes: chunks that are all zero."""
    digests = index.chunk_digests(inode.number).joined()
    if HOLE not in digests:
        return 0
    last = len(digests) - DIGEST_BYTES
    holes = [at for at in range(0, len(digests), DIGEST_BYTES) if digests.startswith(HOLE, at)]
    missing = -inode.size % index.chunk_bytes if holes and holes[-1] == last else 0
    return len(holes) * index.chunk_bytes - missing


@dataclass(frozen=True)
class SharedBytes:
    """Content that this image has in common with another; the names are all of that one image."""

    names: tuple[str, ...]
    digest: bytes
    size_bytes: int


@dataclass(frozen=True)
class Sharing:
    """What other images of the store have too. With `problems`, what is only here is an upper bound."""

    aliases: tuple[str, ...]
    """Other names of this very image."""
    images: int
    shared_bytes: int
    sharers: tuple[SharedBytes, ...]
    """Best first."""
    only_here_bytes: int
    only_here_stored_bytes: int
    whole_packs_bytes: int
    """Stored bytes in packs that no other image uses: what a removal frees without repacking."""
    problems: tuple[str, ...]


def measure_sharing(store: Store, name: str, digest: bytes, locator: Locator, cache: Path) -> Sharing:
    """Compare with every other image of the store; one that cannot be read is a sentence, no failure.

    A store that cannot list its images raises `UnavailableError`.
    """
    names: dict[bytes, list[str]] = {}
    problems = []
    for other in list_names(store):
        try:
            names.setdefault(read_ref(store, other).digest, []).append(other)
        except ColdstartError as error:
            problems.append(f"image `{other}` cannot be compared: {error.message}")
    aliases = [other for other in names.pop(digest, []) if other != name]
    packs = locator.packs
    mine: dict[bytes, tuple[int, int]] = {}
    in_pack: Counter[bytes] = Counter()
    for chunk, _, stored, size, pack, _, _ in locator.table():
        mine[chunk] = size, stored
        in_pack[packs[pack]] += stored
    seen: set[bytes] = set()
    sharers = []
    for other_digest, others in names.items():
        try:
            with open_locator(store, other_digest, cache) as other_locator:
                common = {chunk for chunk, *_ in other_locator.table() if chunk in mine}
                for pack_digest in other_locator.packs:
                    in_pack.pop(pack_digest, None)
        except ColdstartError as error:
            problems.append(f"image `{others[0]}` cannot be compared: {error.message}")
            continue
        seen |= common
        if common:
            size_bytes = sum(mine[chunk][0] for chunk in common)
            sharers.append(SharedBytes(tuple(others), other_digest, size_bytes))
    alone = [sizes for chunk, sizes in mine.items() if chunk not in seen]
    return Sharing(
        aliases=tuple(aliases),
        images=len(names),
        shared_bytes=sum(mine[chunk][0] for chunk in seen),
        sharers=tuple(sorted(sharers, key=lambda sharer: (-sharer.size_bytes, sharer.names))),
        only_here_bytes=sum(size for size, _ in alone),
        only_here_stored_bytes=sum(stored for _, stored in alone),
        whole_packs_bytes=sum(in_pack.values()),
        problems=tuple(problems),
    )
