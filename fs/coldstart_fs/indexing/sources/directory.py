"""A root folder of this host as a source: what lstat, readlink and the xattrs say, bytes throughout."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, PermissionNeededError, UsageError
from coldstart_cli.files import mounts_below
from coldstart_fs.format.chunk import Piece
from coldstart_fs.format.entry import Entry, Xattrs, in_index_order
from coldstart_fs.indexing.imports.order import import_order
from coldstart_fs.indexing.imports.statements import READ_BYTES
from coldstart_fs.indexing.sources import Keep, Progress
from coldstart_fs.indexing.sources.tar import LARGEST_FILE_BYTES

_SHOWN_END = 200
_MODULES = (b".py", b".pyc")


class Directory:
    """A folder and what is below it, without what is mounted there."""

    def __init__(self, root: bytes) -> None:
        self.notes: list[str] = []
        self.configuration: dict[str, Any] = {}
        self._root = root
        self._linked: dict[tuple[int, int], Entry] = {}
        self._hole_bytes = 0
        self._left_out: Counter[str] = Counter()
        prefix = os.fsdecode(root)
        self._mounts = {os.fsencode(point) for point in mounts_below(Path(prefix)) if point != prefix}

    @classmethod
    def open(cls, rest: str, *, forbidden: str | None = None) -> Directory:
        root = os.path.realpath(rest)
        if not os.path.exists(root):
            raise NotFoundError(f"folder does not exist: {rest}")
        if not os.path.isdir(root):
            raise UsageError(f"not a folder: {rest}")
        if forbidden is not None and os.path.realpath(forbidden).startswith(root.rstrip("/") + "/"):
            raise UsageError(
                f"the store lies inside of the folder to be indexed: {forbidden}",
                hint="choose another `--store`",
            )
        return cls(os.fsencode(root))

    def read(self, keep: Keep, chunk_bytes: int, progress: Progress, scratch: Path) -> Entry:
        del scratch
        root = self.read_tree(progress)
        progress("reading the files")
        progress.expect(sum(entry.size for entry in in_index_order(root) if entry.is_file))
        modules = dict(_modules(root, self._root))
        first = import_order(root, self.configuration, lambda entry: _beginning(modules[entry], entry))
        for entry in first:
            keep(entry, _pieces(modules[entry], entry, chunk_bytes, progress))
        kept = set(first)
        for path, entry in _files(root, self._root):
            if entry not in kept:
                keep(entry, _pieces(path, entry, chunk_bytes, progress))
        return root

    def read_tree(self, progress: Progress) -> Entry:
        """The tree without contents."""
        progress(f"reading {os.fsdecode(self._root)}")
        with _named(self._root):
            root = self._entry(self._root, os.lstat(self._root))
        pending = [(self._root, root)]
        while pending:
            path, folder = pending.pop()
            with _named(path):
                names = os.listdir(path)
            for name in names:
                below = path.rstrip(b"/") + b"/" + name
                with _named(below):
                    status = os.lstat(below)
                    if stat.S_ISSOCK(status.st_mode):
                        self._left_out["sockets"] += 1
                        continue
                    if below in self._mounts:  # stays as an empty file or folder to mount on again
                        self._left_out["contents of mount points"] += 1
                        folder.children[name] = self._entry(below, status, empty=True)
                        continue
                    entry = folder.children[name] = self._linked_entry(below, status)
                if entry.is_directory:
                    pending.append((below, entry))
        self.notes += [f"left out: {count} {what}" for what, count in sorted(self._left_out.items())]
        return root

    def _linked_entry(self, path: bytes, status: os.stat_result) -> Entry:
        if status.st_nlink < 2 or stat.S_ISDIR(status.st_mode):
            return self._entry(path, status)
        key = status.st_dev, status.st_ino
        if key not in self._linked:
            self._linked[key] = self._entry(path, status)
        return self._linked[key]

    def _entry(self, path: bytes, status: os.stat_result, *, empty: bool = False) -> Entry:
        entry = Entry(
            mode=status.st_mode,
            uid=status.st_uid,
            gid=status.st_gid,
            mtime_ns=status.st_mtime_ns,
            xattrs=_xattrs(path),
        )
        if entry.is_file and not empty:
            entry.size = status.st_size
            self._check_size(path, status)
            entry.place = _identity(status)
        elif entry.is_symlink:
            entry.target = os.readlink(path)
        elif entry.is_device:
            entry.device = os.major(status.st_rdev), os.minor(status.st_rdev)
        return entry

    def _check_size(self, path: bytes, status: os.stat_result) -> None:
        """As of archives: already a hole takes memory, and a part of the index."""
        if status.st_size > LARGEST_FILE_BYTES:
            raise _too_large(path, f"its size is {status.st_size}, the most is {LARGEST_FILE_BYTES}")
        self._hole_bytes += max(status.st_size - status.st_blocks * 512, 0)
        if self._hole_bytes > LARGEST_FILE_BYTES:
            raise _too_large(
                path,
                f"it brings the image's holes to {self._hole_bytes} bytes, the most is {LARGEST_FILE_BYTES}",
            )


def _xattrs(path: bytes) -> Xattrs:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in {errno.ENOTSUP, errno.EOPNOTSUPP}:
            return ()
        raise
    return tuple(
        sorted((os.fsencode(name), os.getxattr(path, name, follow_symlinks=False)) for name in names)
    )


def _identity(status: os.stat_result) -> int:
    return status.st_dev << 64 | status.st_ino


def _files(root: Entry, path: bytes) -> Iterator[tuple[bytes, Entry]]:
    """The regular files with a path of each, in index order, a hard-linked one once."""
    next_number = 0
    pending = [(path, root, iter(sorted(root.children)))]
    while pending:
        path, folder, names = pending[-1]
        for name in names:
            below, entry = path.rstrip(b"/") + b"/" + name, folder.children[name]
            if entry.number < next_number:  # another name of a file that was met
                continue
            next_number = entry.number + 1
            if entry.is_file:
                yield below, entry
            elif entry.is_directory:
                pending.append((below, entry, iter(sorted(entry.children))))
                break
        else:
            pending.pop()


def _modules(root: Entry, path: bytes) -> Iterator[tuple[Entry, bytes]]:
    """Python's files with a path of each, which may be any of its names."""
    pending = [(path, root)]
    while pending:
        path, folder = pending.pop()
        for name, entry in folder.children.items():
            if entry.is_directory:
                pending.append((path.rstrip(b"/") + b"/" + name, entry))
            elif entry.is_file and name.endswith(_MODULES):
                yield entry, path.rstrip(b"/") + b"/" + name


def _pieces(path: bytes, entry: Entry, chunk_bytes: int, progress: Progress) -> Iterator[Piece]:
    """A file's content; holes as numbers. The file must be the one that was listed, before and after."""
    if not entry.size:
        return
    with _named(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            sparse = _check_unchanged(descriptor, entry, path)
            end = 0
            for start, end_of_data in _data_ranges(descriptor, entry.size) if sparse else [(0, entry.size)]:
                if start > end:
                    progress.done_bytes += start - end
                    yield start - end
                position = end = start
                while position < end_of_data:
                    data = os.pread(descriptor, min(chunk_bytes, end_of_data - position), position)
                    if not data:
                        raise _changed(path)
                    position += len(data)
                    progress.done_bytes += len(data)
                    progress.read_bytes += len(data)
                    yield data
                end = end_of_data
            if entry.size > end:
                yield entry.size - end
            _check_unchanged(descriptor, entry, path)
        finally:
            os.close(descriptor)


def _beginning(path: bytes, entry: Entry) -> bytes:
    """As much of a source as its imports are looked for in."""
    first = next(_pieces(path, entry, READ_BYTES, Progress()), b"")
    return b"" if isinstance(first, int) else bytes(first)


def _check_unchanged(descriptor: int, entry: Entry, path: bytes) -> bool:
    """Whether fewer blocks are allocated than the size needs, so that there may be holes."""
    status = os.fstat(descriptor)
    if (_identity(status), status.st_mtime_ns, status.st_size) != (entry.place, entry.mtime_ns, entry.size):
        raise _changed(path)
    return status.st_blocks * 512 < status.st_size


def _data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole from here on
                return
            if error.errno == errno.EINVAL:  # a file system without holes
                yield position, size
                return
            raise
        position = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        yield start, position


def _too_large(path: bytes, detail: str) -> DataError:
    return DataError(
        f"cannot index: {os.fsdecode(path)}: {detail}", hint="move it out of the folder, or make it smaller"
    )


def _changed(path: bytes) -> DataError:
    return DataError(
        f"file changed while it was read: {_shown(path)}",
        hint="stop what writes there, and index again",
    )


def _shown(path: bytes) -> str:
    """A path for a message; of one that is longer than the kernel takes, both ends."""
    text = os.fsdecode(path)
    return text if len(text) <= 4 * _SHOWN_END else f"{text[:_SHOWN_END]}...{text[-_SHOWN_END:]}"


@contextmanager
def _named(path: bytes) -> Iterator[None]:
    """Failures of system calls as our errors, with the path."""
    try:
        yield
    except OSError as error:
        shown = _shown(path)
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENODATA, errno.ESTALE}:
            raise _changed(path) from error
        if error.errno in {errno.EACCES, errno.EPERM}:
            raise PermissionNeededError(f"cannot read: {shown}", hint="run as root") from error
        raise IoFailure(f"cannot read: {shown}: {error.strerror}") from error
