"""The tree that a source describes and the index is written from."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import cast

Xattrs = tuple[tuple[bytes, bytes], ...]


@lru_cache(4096)
def _shared_mode(mode: int) -> int:
    return mode


@lru_cache(4096)
def _shared_xattrs(xattrs: Xattrs) -> Xattrs:
    return xattrs


@dataclass(slots=True, eq=False)
class Entry:
    """One inode. A hard link is the same object under another name.

    An image may have millions: files share what is equal and have no dictionary of children.
    """

    mode: int
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    xattrs: Xattrs = ()
    size: int = 0
    target: bytes = b""
    device: tuple[int, int] = (0, 0)
    children: dict[bytes, Entry] = field(init=False)
    # what a source needs to know the content again; only that source reads it
    place: int = 0
    # digests of the content's chunks, back to back, once it was read
    chunks: bytes = b""
    # position in index order, once `in_index_order` has given one
    number: int = -1

    def __post_init__(self) -> None:
        self.mode = _shared_mode(self.mode)
        if self.xattrs:
            self.xattrs = _shared_xattrs(self.xattrs)
        self.children = {} if stat.S_ISDIR(self.mode) else _NO_CHILDREN

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def is_device(self) -> bool:
        return stat.S_ISCHR(self.mode) or stat.S_ISBLK(self.mode)

    def take_metadata(self, other: Entry) -> None:
        """Become what `other` says, keeping the children: a directory met again in a later layer."""
        self.mode, self.uid, self.gid = other.mode, other.uid, other.gid
        self.mtime_ns, self.xattrs = other.mtime_ns, other.xattrs


# one empty mapping for all; writing to it is an error
_NO_CHILDREN = cast("dict[bytes, Entry]", MappingProxyType({}))


def made_directory() -> Entry:
    """A parent that no source mentions: root's, 0755, of 1970, so that every run makes the same."""
    return Entry(stat.S_IFDIR | 0o755)


def in_index_order(root: Entry) -> list[Entry]:
    """Every inode once, numbered: depth first, names in byte order, links at their first name."""
    order: list[Entry] = []
    pending = [root]
    while pending:
        entry = pending.pop()
        number = entry.number
        # a number is this run's when the entry stands at it; one of an earlier run proves nothing
        if 0 <= number < len(order) and order[number] is entry:
            continue
        entry.number = len(order)
        order.append(entry)
        if entry.is_directory:
            children = entry.children
            pending += [children[name] for name in sorted(children, reverse=True)]
    return order
