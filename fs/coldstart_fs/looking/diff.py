"""What differs between two images: trees merged name by name, configurations, the bytes to fetch."""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from coldstart_fs.format.index import Index, Inode
from coldstart_fs.format.locator import Locator
from coldstart_fs.looking.configuration import RuntimeConfiguration
from coldstart_fs.looking.contents import Contents
from coldstart_fs.looking.tree import Node, children, root_of, walk


class Aspect(StrEnum):
    """In what two entries of one name can differ."""

    TYPE = "type"
    MODE = "mode"
    OWNER = "owner"
    SIZE = "size"
    MTIME = "mtime"
    CONTENT = "content"
    TARGET = "target"
    XATTRS = "xattrs"
    LINKS = "links"
    DEVICE = "device"


@dataclass(frozen=True)
class Change:
    """One name; `before` is None for an added one, `after` for a removed one."""

    path: bytes
    before: Inode | None
    after: Inode | None
    aspects: tuple[Aspect, ...] = ()

    @property
    def kind(self) -> str:
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


@dataclass(frozen=True)
class Side:
    """One of the two images."""

    index: Index
    contents: Contents


class TreeDiff:
    """Merges two trees directory by directory; only what differs and names of hard links are kept."""

    def __init__(self, before: Side, after: Side, ignored: frozenset[Aspect] = frozenset()) -> None:
        self._before = before
        self._after = after
        self._ignored = ignored
        self._same_chunks = before.index.chunk_bytes == after.index.chunk_bytes
        self._compared: dict[tuple[int, int], bool] = {}
        self._linked: list[tuple[bytes, Inode, Inode]] = []
        self._names_before: dict[int, list[bytes]] = defaultdict(list)
        self._names_after: dict[int, list[bytes]] = defaultdict(list)

    @property
    def contents_are_read(self) -> bool:
        """Whether contents must be read to be compared: the images are cut into chunks of different sizes."""
        return not self._same_chunks

    def changes(self) -> list[Change]:
        """All differences, depth first, names in byte order."""
        found: dict[bytes, Change] = {}
        for change in self._merge():
            found[change.path] = change
        if Aspect.LINKS not in self._ignored:
            self._add_link_changes(found)
        return [found[path] for path in sorted(found, key=lambda path: path.split(b"/"))]

    def _merge(self) -> Iterator[Change]:
        roots = root_of(self._before.index), root_of(self._after.index)
        yield from self._compare(*roots)
        pending = [roots]
        while pending:
            directories = pending.pop()
            for before, after in _side_by_side(
                children(self._before.index, directories[0]), children(self._after.index, directories[1])
            ):
                if before is not None and after is not None:
                    yield from self._compare(before, after)
                    if before.inode.is_directory and after.inode.is_directory:
                        pending.append((before, after))
                        continue
                    below_only = True
                else:
                    below_only = False
                yield from self._one_sided(before, after, below_only=below_only)

    def _one_sided(self, before: Node | None, after: Node | None, *, below_only: bool) -> Iterator[Change]:
        """What is below a name that is no directory in both images, and the name unless it was compared."""
        if before is not None:
            for node in walk(self._before.index, before):
                if not below_only or node.path != before.path:
                    self._note_names(node, None)
                    yield Change(node.path, node.inode, None)
        if after is not None:
            for node in walk(self._after.index, after):
                if not below_only or node.path != after.path:
                    self._note_names(None, node)
                    yield Change(node.path, None, node.inode)

    def _note_names(self, before: Node | None, after: Node | None) -> None:
        for node, names in ((before, self._names_before), (after, self._names_after)):
            if node is not None and node.inode.links > 1 and not node.inode.is_directory:
                names[node.inode.number].append(node.path)

    def _compare(self, before: Node, after: Node) -> Iterator[Change]:
        self._note_names(before, after)
        one, other = before.inode, after.inode
        if (
            one[1:4] == other[1:4]
            and one.mtime_ns == other.mtime_ns
            and not one.xattr_count | other.xattr_count
        ):
            # the usual case, in as few steps as possible
            aspects = self._content_aspects(one, other)
        else:
            aspects = [*self._metadata_aspects(one, other), *self._content_aspects(one, other)]
        aspects = [aspect for aspect in aspects if aspect not in self._ignored]
        if not one.is_directory and not other.is_directory and (one.links > 1 or other.links > 1):
            self._linked.append((before.path, one, other))
        if aspects:
            yield Change(before.path, one, other, tuple(aspects))

    def _metadata_aspects(self, one: Inode, other: Inode) -> Iterator[Aspect]:
        if stat.S_IFMT(one.mode) != stat.S_IFMT(other.mode):
            yield Aspect.TYPE
        # the mode of a symlink means nothing
        if stat.S_IMODE(one.mode) != stat.S_IMODE(other.mode) and not (one.is_symlink or other.is_symlink):
            yield Aspect.MODE
        if (one.uid, one.gid) != (other.uid, other.gid):
            yield Aspect.OWNER
        if one.mtime_ns != other.mtime_ns:
            yield Aspect.MTIME
        if (one.xattr_count or other.xattr_count) and (
            self._before.index.xattrs(one.number) != self._after.index.xattrs(other.number)
        ):
            yield Aspect.XATTRS

    def _content_aspects(self, one: Inode, other: Inode) -> list[Aspect]:
        if one.is_file and other.is_file:
            if one.size != other.size:
                return [Aspect.SIZE, Aspect.CONTENT]
            if Aspect.CONTENT not in self._ignored and not self._same_content(one, other):
                return [Aspect.CONTENT]
        elif one.is_symlink and other.is_symlink:
            before, after = self._before.index, self._after.index
            if before.symlink_target(one.number) != after.symlink_target(other.number):
                return [Aspect.TARGET]
        elif one.device != other.device and stat.S_IFMT(one.mode) == stat.S_IFMT(other.mode):
            return [Aspect.DEVICE]
        return []

    def _same_content(self, one: Inode, other: Inode) -> bool:
        if self._same_chunks:
            digests = self._before.index.chunk_digests(one.number).joined()
            return digests == self._after.index.chunk_digests(other.number).joined()
        pair = one.number, other.number
        if pair not in self._compared:
            self._compared[pair] = _digest(self._before, one) == _digest(self._after, other)
        return self._compared[pair]

    def _add_link_changes(self, found: dict[bytes, Change]) -> None:
        """Names whose set of hard links is another one; known only when all names were seen."""
        same: dict[tuple[int, int], bool] = {}
        for path, one, other in self._linked:
            pair = one.number, other.number
            if pair not in same:
                names = (
                    self._names_before.get(one.number, [path]),
                    self._names_after.get(other.number, [path]),
                )
                same[pair] = sorted(names[0]) == sorted(names[1])
            if not same[pair]:
                known = found.get(path)
                aspects = (*known.aspects, Aspect.LINKS) if known is not None else (Aspect.LINKS,)
                found[path] = Change(path, one, other, aspects)


def _side_by_side(before: Iterator[Node], after: Iterator[Node]) -> Iterator[tuple[Node | None, Node | None]]:
    """Two sorted directories as pairs of equal names; None where only one has the name."""
    one, other = next(before, None), next(after, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.path < other.path):
            yield one, None
            one = next(before, None)
        elif one is None or other.path < one.path:
            yield None, other
            other = next(after, None)
        else:
            yield one, other
            one, other = next(before, None), next(after, None)


def _digest(side: Side, inode: Inode) -> bytes:
    from blake3 import blake3

    hasher = blake3()
    for block in side.contents.blocks(inode):
        hasher.update(block)
    return hasher.digest()


@dataclass(frozen=True)
class FetchBytes:
    """Content of the second image, each chunk once, and what a host with the first still lacks of it."""

    unique_bytes: int
    missing_bytes: int
    missing_stored_bytes: int
    metadata_bytes: int


def bytes_to_fetch(before: Locator, after: Locator, after_index: Index) -> FetchBytes:
    """How much a host that has all of the first image must still fetch for all of the second."""
    held = {digest for digest, *_ in before.table()}
    unique_bytes = missing_bytes = missing_stored_bytes = 0
    for digest, _, stored_bytes, size_bytes, _, _, _ in after.table():
        unique_bytes += size_bytes
        if digest not in held:
            missing_bytes += size_bytes
            missing_stored_bytes += stored_bytes
    metadata_bytes = after_index.size_bytes + after.size_bytes
    return FetchBytes(unique_bytes, missing_bytes, missing_stored_bytes, metadata_bytes)


@dataclass(frozen=True)
class ConfigurationChange:
    """One key, or one variable as `environment.NAME`; None where an image does not have it."""

    key: str
    before: Any
    after: Any


def configuration_changes(
    before: RuntimeConfiguration, after: RuntimeConfiguration
) -> tuple[ConfigurationChange, ...]:
    """The differences between two runtime configurations, the environment variable by variable."""
    pairs = [
        (key, getattr(before, key), getattr(after, key))
        for key in ("entrypoint", "command", "user", "working_directory", "architecture", "os")
    ]
    variables: tuple[Mapping[str, str], Mapping[str, str]] = before.variables, after.variables
    pairs += [
        (f"environment.{name}", variables[0].get(name), variables[1].get(name))
        for name in sorted({*variables[0], *variables[1]})
    ]
    return tuple(
        ConfigurationChange(key, _plain(one), _plain(other)) for key, one, other in pairs if one != other
    )


def _plain(value: Any) -> Any:
    return (list(value) or None) if isinstance(value, tuple) else value
