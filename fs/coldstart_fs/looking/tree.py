"""The tree of an image: walking it, and finding a path in it without mounting."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import NamedTuple

from coldstart_cli.errors import DataError, NotFoundError, near_matches_hint
from coldstart_fs.format.index import Index, Inode

_MOST_SYMLINKS = 40  # as the kernel
_LONGEST_SUGGESTED_FROM = 5000  # a directory with more names is not searched for near matches


class Node(NamedTuple):
    """A name in the tree; `path` is from the root, without a leading slash, empty for the root."""

    path: bytes
    inode: Inode

    @property
    def name(self) -> bytes:
        return self.path.rpartition(b"/")[2]


def root_of(index: Index) -> Node:
    return Node(b"", index.inode(0))


def children(index: Index, directory: Node) -> Iterator[Node]:
    """A directory's entries in byte order of their names."""
    prefix = directory.path + b"/" if directory.path else b""
    parent = directory.inode.number
    for _, name, number, _ in index.entries(parent):
        inode = index.inode(number)
        # parents stand before their children: what does not is a circle, and no walk would end
        if inode.is_directory and (inode.parent != parent or number <= parent):
            raise DataError(
                f"index is damaged: {index.place}: directory {number} is not below directory {parent}",
                hint="index the image again",
            )
        yield Node(prefix + name, inode)


def walk(index: Index, top: Node | None = None) -> Iterator[Node]:
    """Every name from `top` down, itself first, depth first, names in byte order."""
    pending = [top if top is not None else root_of(index)]
    while pending:
        node = pending.pop()
        yield node
        if node.inode.is_directory:
            pending += reversed(list(children(index, node)))


def walk_directories(index: Index) -> Iterator[tuple[Node, list[Node]]]:
    """Every directory with its entries, depth first."""
    pending = [root_of(index)]
    while pending:
        directory = pending.pop()
        entries = list(children(index, directory))
        yield directory, entries
        pending += [node for node in reversed(entries) if node.inode.is_directory]


def shown(path: bytes) -> str:
    """A path of the tree for people; bytes that are not UTF-8 stay surrogates, which the printer escapes."""
    return "/" + _text(path)


def find(index: Index, path: bytes, *, image: str, store: str) -> Node:
    """What `path` stands for, symlinks resolved inside the image.

    A symlink at its end is followed when it leads to a directory, and is itself the answer when not.
    """
    finder = _Finder(index, path, image, f"coldstart image ls --store {quote(store)} {quote(image)}")
    node = finder.find(follow_last=False)
    if not node.inode.is_symlink:
        return node
    try:
        behind = finder.find(follow_last=True)
    except NotFoundError:
        if path.endswith(b"/"):
            raise
        return node
    return behind if behind.inode.is_directory else node


def resolve(index: Index, path: bytes) -> Node | None:
    """What the kernel would open at `path` with the image as root; None where it would not."""
    try:
        return _Finder(index, path, "", "").find(follow_last=True)
    except NotFoundError:
        return None


class _Finder:
    def __init__(self, index: Index, path: bytes, image: str, listing: str) -> None:
        self._index = index
        self._path = path
        self._image = image
        self._listing = listing

    def find(self, *, follow_last: bool) -> Node:
        trail = [root_of(self._index)]
        pending = self._path.split(b"/")[::-1]
        must_be_directory = self._path.endswith(b"/")
        symlinks = 0
        while pending:
            name = pending.pop()
            if not trail[-1].inode.is_directory:
                raise NotFoundError(f"not a directory in image {self._image}: {shown(trail[-1].path)}")
            if name in {b"", b"."}:
                continue
            if name == b"..":
                trail = trail[:-1] or trail
                continue
            node = self._child(trail[-1], name)
            is_last = not any(part not in {b"", b"."} for part in pending)
            if not node.inode.is_symlink or (is_last and not follow_last and not must_be_directory):
                trail.append(node)
                continue
            symlinks += 1
            if symlinks > _MOST_SYMLINKS:
                raise NotFoundError(f"symlinks go in circles in image {self._image}: {shown(node.path)}")
            target = self._index.symlink_target(node.inode.number)
            if target.startswith(b"/"):
                del trail[1:]
            pending += target.split(b"/")[::-1]
        if must_be_directory and not trail[-1].inode.is_directory:
            raise NotFoundError(f"not a directory in image {self._image}: {shown(trail[-1].path)}")
        return trail[-1]

    def _child(self, directory: Node, name: bytes) -> Node:
        prefix = directory.path + b"/" if directory.path else b""
        number = self._index.lookup(directory.inode.number, name)
        if number is not None:
            return Node(prefix + name, self._index.inode(number))
        names = (
            [_text(other) for _, other, _, _ in self._index.entries(directory.inode.number)]
            if directory.inode.size <= _LONGEST_SUGGESTED_FROM
            else []
        )
        raise NotFoundError(
            f"path is not in image {self._image}: {shown(prefix + name)}",
            hint=near_matches_hint(
                _text(name),
                names,
                prefix=shown(prefix),
                otherwise=f"{self._listing} {quote(shown(directory.path))}",
            ),
        )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
