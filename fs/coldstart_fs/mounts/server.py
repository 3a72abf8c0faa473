"""The kernel's requests for one image, answered from its index and its reader."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from typing import Any

from coldstart_cli.errors import ColdstartError, DataError
from coldstart_fs.content.fetch import Content, Outcome
from coldstart_fs.content.reader import ImageReader
from coldstart_fs.format.index import HOLE, LONGEST_NAME_BYTES, NANOSECONDS
from coldstart_fs.fuse.protocol import (
    ATTR,
    ATTR_OUT_HEAD,
    DIRENT,
    ENTRY_OUT_HEAD,
    FOPEN_CACHE_DIR,
    FOPEN_KEEP_CACHE,
    GETXATTR_IN,
    GETXATTR_OUT,
    LSEEK_IN,
    LSEEK_OUT,
    OPEN_OUT,
    READ_IN,
    STATFS_OUT,
    Opcode,
)
from coldstart_fs.fuse.session import Handler, Request, Session
from coldstart_fs.mounts.read_ahead import ReadAhead
from coldstart_fs.traces.inode_paths import InodePaths

_DAY_SECONDS = 86400
_BLOCK_BYTES = 512
_STATFS_BLOCK_BYTES = 4096
_DEVICES = {stat.S_IFCHR, stat.S_IFBLK}
_KIND = 0o170000
# a negative entry: Python's import search is mostly misses, and the kernel remembers them for us
_ABSENT = ENTRY_OUT_HEAD.pack(0, 0, _DAY_SECONDS, 0, 0, 0) + bytes(ATTR.size)
_ATTR_HEAD = ATTR_OUT_HEAD.pack(_DAY_SECONDS, 0, 0)
_NO_ENTRY = bytes(ENTRY_OUT_HEAD.size + ATTR.size)
_OPENED = OPEN_OUT.pack(0, FOPEN_KEEP_CACHE, 0)
_OPENED_FOLDER = OPEN_OUT.pack(0, FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR, 0)
_PADDING = tuple(bytes(-length % 8) for length in range(LONGEST_NAME_BYTES + 1))


class ImageServer:
    """A read-only image. Node id = index inode + 1, so that any server of this image can answer for it.

    Files and folders have no handles: a read names its node, and an image never changes. While `may_push`
    says so, what the loading of libraries will read goes into the page cache unasked.
    """

    def __init__(
        self, reader: ImageReader, session: Session, may_push: Callable[[], bool] = lambda: True
    ) -> None:
        self._reader = reader
        self._session = session
        session.name_of = self._name_of
        self._index = index = reader.index
        self._chunk_bytes = index.chunk_bytes
        self._has_xattrs = index.has_xattrs
        self._read_ahead = ReadAhead(reader, session, may_push)
        self._statfs_out = STATFS_OUT.pack(
            max(1, -(-index.content_bytes // _STATFS_BLOCK_BYTES)),
            0,
            0,
            index.inode_count,
            0,
            _STATFS_BLOCK_BYTES,
            LONGEST_NAME_BYTES,
            _STATFS_BLOCK_BYTES,
        )

    def handlers(self) -> dict[int, Handler]:
        """By opcode; what is not here is answered ENOSYS, and mostly never asked for again."""
        handlers: dict[int, Handler] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.READLINK: self._readlink,
            Opcode.READ: self._read,
            Opcode.READDIR: self._readdir,
            Opcode.READDIRPLUS: self._readdirplus,
            Opcode.LSEEK: self._lseek,
            Opcode.STATFS: self._statfs,
            Opcode.IOCTL: _no_ioctl,
        }
        if self._has_xattrs:  # else ENOSYS: the kernel never asks again, 3 us instead of 53
            handlers |= {Opcode.GETXATTR: self._getxattr, Opcode.LISTXATTR: self._listxattr}
        else:
            handlers[Opcode.LISTXATTR] = self._listxattr
        negotiated = self._session.negotiated
        if not negotiated.no_open:
            handlers |= {Opcode.OPEN: _open, Opcode.RELEASE: _release}
        if not negotiated.no_opendir:
            handlers |= {Opcode.OPENDIR: _opendir, Opcode.RELEASEDIR: _release}
        return handlers

    def stop(self) -> None:
        """Begin nothing more of its own; requests are answered as before."""
        self._read_ahead.stop()

    def counters(self) -> dict[str, Any]:
        """What was served from where, and what went wrong, since the server started."""
        return {
            **self._reader.counters(),
            "requests": self._session.requests,
            "failed_requests": self._session.failures,
            "in_flight": len(self._session.pending),
            "read_ahead": self._read_ahead.counters(),
        }

    def _name_of(self, node: int) -> str:
        """A file's path, for messages; of a hard link's names the first."""
        try:
            path = InodePaths(self._index).path(node - 1)
        except ColdstartError:
            return f"inode {node - 1}"
        return "/" + path.decode("utf-8", "surrogateescape")

    # --- metadata ---

    def _lookup(self, request: Request) -> None:
        name = request.body[:-1]
        if len(name) > LONGEST_NAME_BYTES:
            request.error(errno.ENAMETOOLONG)
            return
        number = self._index.lookup(request.node - 1, name)
        request.reply(_ABSENT if number is None else self._entry(number))

    def _getattr(self, request: Request) -> None:
        request.reply(_ATTR_HEAD + self._attributes(request.node - 1))

    def _readlink(self, request: Request) -> None:
        request.reply(self._index.symlink_target(request.node - 1))

    def _getxattr(self, request: Request) -> None:
        (size_bytes, _), name = GETXATTR_IN.unpack_from(request.body), request.body[GETXATTR_IN.size : -1]
        value = self._index.xattrs(request.node - 1).get(name)
        if value is None:
            request.error(errno.ENODATA)
        else:
            _reply_xattr(request, value, size_bytes)

    def _listxattr(self, request: Request) -> None:
        size_bytes, _ = GETXATTR_IN.unpack(request.body)
        names = self._index.xattrs(request.node - 1) if self._has_xattrs else ()
        _reply_xattr(request, b"".join(name + b"\0" for name in names), size_bytes)

    def _statfs(self, request: Request) -> None:
        request.reply(self._statfs_out)

    # --- directories ---

    def _readdir(self, request: Request) -> None:
        self._list(request, b"", plus=False)

    def _readdirplus(self, request: Request) -> None:
        self._list(request, _NO_ENTRY, plus=True)

    def _list(self, request: Request, dot_entry: bytes, *, plus: bool) -> None:
        """Entries from a cookie on, as many as fit; an entry's cookie is its place in the folder + 3."""
        _, start, left, *_ = READ_IN.unpack(request.body)
        number, index = request.node - 1, self._index
        pack, head_bytes = DIRENT.pack, len(dot_entry) + DIRENT.size
        parts: list[bytes] = []
        folder = index.inode(number)
        for cookie, name, inode in ((1, b".", number), (2, b"..", folder.parent)):
            if start < cookie:
                head = pack(inode + 1, cookie, len(name), stat.S_IFDIR >> 12)
                parts += dot_entry, head, name, _PADDING[len(name)]
                left -= head_bytes + 8
        for position, name, inode, kind in index.entries(number, start - 2):
            length = len(name)
            left -= head_bytes + length + -length % 8
            if left < 0:
                break
            if plus:
                parts.append(self._entry(inode))
            parts += pack(inode + 1, position + 3, length, kind), name, _PADDING[length]
        request.reply(b"".join(parts))

    # --- files ---

    def _read(self, request: Request) -> None:
        _, offset, size_bytes, *_ = READ_IN.unpack(request.body)
        number = request.node - 1
        file_bytes = self._index.inode(number).size
        size_bytes = min(size_bytes, max(0, file_bytes - offset))
        data = self._reader.at_hand(number, offset, size_bytes)
        self._read_ahead.saw(number, offset, size_bytes, file_bytes, at_hand=data is not None)
        if data is None:
            self._reader.read_later(number, offset, size_bytes, partial(self._answer, request, size_bytes))
        else:
            self._reply_read(request, data, size_bytes)

    def _answer(self, request: Request, size_bytes: int, outcome: Outcome) -> None:
        """In a thread of the reader."""
        if request.answered:  # its process was killed
            return
        if isinstance(outcome, ColdstartError):
            self._session.failed(request, outcome, Opcode.READ)
            return
        try:
            self._reply_read(request, outcome, size_bytes)
        except Exception as error:  # noqa: BLE001 - one bad read is no reason to lose a thread
            self._session.failed(request, error, Opcode.READ)

    def _reply_read(self, request: Request, data: Content, size_bytes: int) -> None:
        if len(data) != size_bytes:  # the kernel would take a short answer for zeros
            text = f"{len(data)} bytes of inode {request.node - 1} where {size_bytes} should be"
            raise DataError(f"index is damaged: {text}")
        request.reply(data)

    def _lseek(self, request: Request) -> None:
        """SEEK_DATA and SEEK_HOLE; a chunk of zeros is a hole."""
        _, offset, whence, _ = LSEEK_IN.unpack(request.body)
        number, chunk_bytes = request.node - 1, self._chunk_bytes
        file_bytes = self._index.inode(number).size
        if whence not in {os.SEEK_DATA, os.SEEK_HOLE}:
            request.error(errno.EINVAL)
            return
        if offset >= file_bytes:
            request.error(errno.ENXIO)
            return
        digests = self._index.chunk_digests(number)
        for position in range(offset // chunk_bytes, len(digests)):
            if (digests[position] == HOLE) == (whence == os.SEEK_HOLE):
                request.reply(LSEEK_OUT.pack(max(offset, position * chunk_bytes)))
                return
        if whence == os.SEEK_HOLE:  # every file ends with one
            request.reply(LSEEK_OUT.pack(file_bytes))
        else:
            request.error(errno.ENXIO)

    # --- attributes ---

    def _entry(self, number: int) -> bytes:
        return ENTRY_OUT_HEAD.pack(number + 1, 0, _DAY_SECONDS, _DAY_SECONDS, 0, 0) + self._attributes(number)

    def _attributes(self, number: int) -> bytes:
        inode = self._index.inode(number)
        mode, size_bytes, blocks, device = inode.mode, 0, 0, 0
        kind = mode & _KIND
        if kind == stat.S_IFREG:
            size_bytes = inode.size
            blocks = -(-self._index.data_bytes(inode) // _BLOCK_BYTES)
        elif kind == stat.S_IFLNK:
            size_bytes = inode.size
        elif kind in _DEVICES:
            device = _encoded(inode.device)
        seconds, nanoseconds = divmod(inode.mtime_ns, NANOSECONDS)
        return ATTR.pack(
            number + 1,
            size_bytes,
            blocks,
            seconds,
            seconds,
            seconds,
            nanoseconds,
            nanoseconds,
            nanoseconds,
            mode,
            inode.links,
            inode.uid,
            inode.gid,
            device,
            self._chunk_bytes,
            0,
        )


def _encoded(device: tuple[int, int]) -> int:
    """A device's number as the kernel's `new_encode_dev` has it: 12 bits of major, 20 of minor."""
    major, minor = device
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


def _reply_xattr(request: Request, value: bytes, size_bytes: int) -> None:
    if not size_bytes:
        request.reply(GETXATTR_OUT.pack(len(value), 0))
    elif len(value) > size_bytes:
        request.error(errno.ERANGE)
    else:
        request.reply(value)


def _no_ioctl(request: Request) -> None:
    request.error(errno.ENOTTY)  # Python asks every file that it opens whether it is a terminal


def _open(request: Request) -> None:
    request.reply(_OPENED)


def _opendir(request: Request) -> None:
    request.reply(_OPENED_FOLDER)


def _release(request: Request) -> None:
    request.reply(b"")
