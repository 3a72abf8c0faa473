"""From inode numbers to paths and back."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from coldstart_cli.errors import DataError
from coldstart_fs.format.index import Index


class InodePaths:
    """Paths of one image's inodes. A directory's entries are looked through once, when they are needed."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._known: dict[int, bytes] = {0: b""}
        self._entries: dict[int, tuple[list[int], list[bytes]]] = {}

    def name(self, number: int, path: bytes) -> None:
        """Remember by which of its names a file was reached."""
        self._known[number] = path

    def path(self, number: int) -> bytes:
        """The inode's path from the root, without a leading slash; of a hard link's names the first."""
        if (known := self._known.get(number)) is not None:
            return known
        path = b"/".join(name for _, name in self._steps(number))
        self._known[number] = path
        return path

    def place(self, number: int) -> tuple[int, bytes]:
        """The directory that has a file, and the file's name there; of a hard link's the first."""
        *_, last = self._steps(number)
        return last

    def _steps(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Directory and name, from the root on."""
        if not 0 <= number < self._index.inode_count:
            raise DataError(f"recording does not belong to the image: it has no inode {number}")
        # inodes are numbered depth first: the entry on the way is the one with the highest number up to ours
        directory = 0
        while directory != number:
            numbers, names = self._children(directory)
            position = bisect_right(numbers, number) - 1
            if position < 0:
                raise DataError(f"index is damaged: {self._index.place}: inode {number} has no name")
            yield directory, names[position]
            directory = numbers[position]

    def _children(self, directory: int) -> tuple[list[int], list[bytes]]:
        found = self._entries.get(directory)
        if found is None:
            numbers: list[int] = []
            names: list[bytes] = []
            for _, name, number, _ in self._index.entries(directory):
                # a smaller number than one before it is another name of a file that has one already
                if number > (numbers[-1] if numbers else directory):
                    numbers.append(number)
                    names.append(name)
            found = self._entries[directory] = numbers, names
        return found


def find_path(index: Index, path: bytes, *, known: dict[bytes, int | None] | None = None) -> int | None:
    """The inode at a path, no symlink followed; None when there is none. `known` remembers directories."""
    parts = [part for part in path.split(b"/") if part]
    if not parts:
        return 0
    directory = _directory(index, parts[:-1], {} if known is None else known)
    return None if directory is None else index.lookup(directory, parts[-1])


def _directory(index: Index, parts: list[bytes], known: dict[bytes, int | None]) -> int | None:
    whole = b"/".join(parts)
    if whole in known:
        return known[whole]
    directory = 0
    path = b""
    for part in parts:  # in a loop: a path in a trace may be of any depth
        path = path + b"/" + part if path else part
        if path not in known:
            number = index.lookup(directory, part)
            known[path] = number if number is not None and index.inode(number).is_directory else None
        found = known[path]
        if found is None:
            return None
        directory = found
    return directory
