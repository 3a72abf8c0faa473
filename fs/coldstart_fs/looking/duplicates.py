"""Trees that stand in an image several times: equal names and contents all the way down, modes aside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from hashlib import blake2b

from coldstart_fs.format.index import Index, Inode
from coldstart_fs.looking.findings import Finding
from coldstart_fs.looking.tree import Node, walk

_LEAST_BYTES = 1 << 20
_HASH_BYTES = 16


def duplicate_trees(index: Index, *, least_bytes: int = _LEAST_BYTES) -> Iterator[Finding]:
    """The topmost equal trees with at least `least_bytes` of content that is there more than once."""
    trees = _Trees(index)
    groups: dict[bytes, list[int]] = defaultdict(list)
    for number in trees.directories:
        if number and trees.size_bytes[number] >= least_bytes:
            groups[trees.hashes[number]].append(number)
    repeated = {tree: members for tree, members in groups.items() if len(members) > 1}
    for members in repeated.values():
        parents = {index.inode(member).parent for member in members}
        if len(parents) == len(members) and all(trees.hashes[parent] in repeated for parent in parents):
            continue  # their parents are equal already
        first, *others = sorted(trees.path(member) for member in members)
        again_bytes, names = _cost(index, trees, members)
        if again_bytes >= least_bytes:
            yield Finding(
                "duplicate-tree",
                first,
                f"{len(members)} times",
                again_bytes,
                files=names,
                other_paths=tuple(others),
            )


def _cost(index: Index, trees: _Trees, members: list[int]) -> tuple[int, int]:
    """Bytes and files beyond the first copy; hard-linked files are one file, and cost nothing."""
    seen: set[int] = set()
    again_bytes = names = 0
    for position, member in enumerate(members):
        for node in walk(index, Node(trees.path(member), index.inode(member))):
            if node.inode.is_file and node.inode.number not in seen:
                seen.add(node.inode.number)
                if position:
                    again_bytes += node.inode.size
                    names += 1
    return again_bytes, names


class _Trees:
    """A hash for every inode of names and contents below it, and the size of it all."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.hashes: list[bytes] = []
        self.size_bytes: list[int] = []
        self.directories: list[int] = []
        self._names: dict[int, bytes] = {}
        for number in range(index.inode_count):
            inode = index.inode(number)
            if inode.is_directory:
                self.directories.append(number)
                self.hashes.append(b"")
            else:
                self.hashes.append(_hash(b"%o" % (inode.mode >> 12), self._content(inode)))
            self.size_bytes.append(inode.size if inode.is_file else 0)
        # a directory's subdirectories have greater numbers than it
        for number in reversed(self.directories):
            parts = []
            size_bytes = 0
            for _, name, child, _ in index.entries(number):
                if not self.hashes[child]:
                    continue  # a circle, which walking refuses
                parts += [b"%d:" % len(name), name, self.hashes[child]]
                size_bytes += self.size_bytes[child]
                if self._index.inode(child).is_directory:
                    self._names[child] = name
            self.hashes[number] = _hash(b"directory", *parts)
            self.size_bytes[number] = size_bytes

    def path(self, number: int) -> bytes:
        parts: list[bytes] = []
        while number:
            parts.append(self._names[number])
            number = self._index.inode(number).parent
        return b"/".join(reversed(parts))

    def _content(self, inode: Inode) -> bytes:
        if inode.is_file:
            return b"%d:" % inode.size + self._index.chunk_digests(inode.number).joined()
        if inode.is_symlink:
            return self._index.symlink_target(inode.number)
        return b"%d,%d" % inode.device


def _hash(*parts: bytes) -> bytes:
    return blake2b(b"\0".join(parts), digest_size=_HASH_BYTES).digest()
