"""The tree that a source describes and the index is written from."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

Xattrs = tuple[tuple[bytes, bytes], ...]


@dataclass(slots=True, eq=False)
class Entry:
    """One inode. A hard link is the same object under another name."""

    mode: int
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    xattrs: Xattrs = ()
    size: int = 0
    target: bytes = b""
    device: tuple[int, int] = (0, 0)
    children: dict[bytes, Entry] = field(default_factory=dict)
    # where a source finds the content later; only that source reads it
    place: object = None
    # digests of the content's chunks, back to back, once it was read
    chunks: bytes = b""

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


def made_directory() -> Entry:
    """A parent that no source mentions: root's, 0755, of 1970, so that every run makes the same."""
    return Entry(stat.S_IFDIR | 0o755)


def walk(root: Entry) -> Iterator[Entry]:
    """Every inode once, in index order: depth first, names in byte order, links at their first name."""
    pending = [root]
    linked: set[int] = set()
    while pending:
        entry = pending.pop()
        if entry.is_directory:
            yield entry
            children = entry.children
            pending += [children[name] for name in sorted(children, reverse=True)]
        elif id(entry) not in linked:
            linked.add(id(entry))
            yield entry
