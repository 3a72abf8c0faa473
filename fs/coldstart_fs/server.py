"""The image server: one process a mount, answering the kernel from the index and the chunk source."""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pyfuse3

from coldstart_cli.errors import DataError
from coldstart_fs.cache import ChunkCache
from coldstart_fs.flights import Flights
from coldstart_fs.index import HOLE, LONGEST_NAME_BYTES, Index

_DAY_SECONDS = 86400
_BLOCK_BYTES = 512
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT
_SIZED = {stat.S_IFREG, stat.S_IFLNK}
_DEVICES = {stat.S_IFCHR, stat.S_IFBLK}
_TYPE = 0o170000
_Handler = TypeVar("_Handler", bound=Callable[..., Awaitable[Any]])


def _guarded(handler: _Handler) -> _Handler:
    """Answer EIO for anything unexpected: an exception that is no FUSEError would end the whole mount."""

    @functools.wraps(handler)
    async def guard(self: ImageOperations, *arguments: Any) -> Any:
        try:
            return await handler(self, *arguments)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            self.failures += 1
            hint = getattr(error, "hint", None)
            self.log(f"{handler.__name__} failed, answered EIO: {error}" + (f"; {hint}" if hint else ""))
            raise pyfuse3.FUSEError(errno.EIO) from error

    return guard  # type: ignore[return-value]


class ImageOperations(pyfuse3.Operations):
    """A read-only image. FUSE inode = index inode + 1; a file handle is its FUSE inode."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    flights: Flights

    def __init__(self, index: Index, cache: ChunkCache, log: Callable[[str], None]) -> None:
        super().__init__()
        self.log = log
        self.failures = 0
        self._index = index
        self._cache = cache
        self._chunk_bytes = index.chunk_bytes
        self._has_xattrs = index.has_xattrs
        # the kernel enforces ACLs only on demand; asking for those that are not there costs a request a file
        self.enable_acl = index.has_acls

    def counters(self) -> dict[str, Any]:
        """What was served from where, and what went wrong, since the server started."""
        return {
            **vars(self.flights.counters),
            "failed_requests": self.failures,
            "quarantined_chunks": self._cache.quarantined,
            "cache_failure": self._cache.store_failure,
        }

    # --- metadata ---

    @_guarded
    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        del ctx
        if len(name) > LONGEST_NAME_BYTES:
            raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
        number = self._index.lookup(parent_inode - 1, name)
        if number is None:
            return _absent()
        return self._attributes(number)

    @_guarded
    async def getattr(self, inode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        del ctx
        return self._attributes(inode - 1)

    @_guarded
    async def readlink(self, inode: int, ctx: Any) -> bytes:
        del ctx
        return self._index.symlink_target(inode - 1)

    @_guarded
    async def getxattr(self, inode: int, name: bytes, ctx: Any) -> bytes:
        del ctx
        if not self._has_xattrs:
            raise pyfuse3.FUSEError(errno.ENOSYS)  # the kernel never asks again: 3 us instead of 53
        value = self._index.xattrs(inode - 1).get(name)
        if value is None:
            raise pyfuse3.FUSEError(errno.ENODATA)
        return value

    @_guarded
    async def listxattr(self, inode: int, ctx: Any) -> list[bytes]:
        del ctx
        return list(self._index.xattrs(inode - 1)) if self._has_xattrs else []

    @_guarded
    async def statfs(self, ctx: Any) -> pyfuse3.StatvfsData:
        del ctx
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = 4096
        data.f_blocks = max(1, -(-self._index.content_bytes // 4096))
        data.f_bfree = data.f_bavail = 0
        data.f_files = self._index.inode_count
        data.f_ffree = data.f_favail = 0
        data.f_namemax = LONGEST_NAME_BYTES
        return data

    # --- directories ---

    @_guarded
    async def opendir(self, inode: int, ctx: Any) -> int:
        del ctx
        return inode

    @_guarded
    async def readdir(self, fh: int, start_id: int, token: Any) -> None:
        reply, number = pyfuse3.readdir_reply, fh - 1
        if start_id < 1 and not reply(token, b".", self._attributes(number), 1):
            return
        if start_id < 2 and not reply(token, b"..", self._attributes(self._index.inode(number).parent), 2):
            return
        for position, name, entry, _ in self._index.entries(number, start_id - 2):
            if not reply(token, name, self._attributes(entry), position + 3):
                return

    # --- files ---

    @_guarded
    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        del ctx
        if flags & _WRITING:
            raise pyfuse3.FUSEError(errno.EROFS)
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    @_guarded
    async def flush(self, fh: int) -> None:
        del fh
        raise pyfuse3.FUSEError(errno.ENOSYS)  # saves one round trip a close

    @_guarded
    async def read(self, fh: int, off: int, size: int) -> bytes:  # pyfuse3 takes any buffer
        file_bytes, chunk_bytes = self._index.inode(fh - 1).size, self._chunk_bytes
        end = min(off + size, file_bytes)
        if off >= end:
            return b""
        digests = self._index.chunk_digests(fh - 1)
        parts: list[bytes | bytearray | None] = []
        missing: list[tuple[int, bytes, slice]] = []
        for position in range(off // chunk_bytes, (end - 1) // chunk_bytes + 1):
            start, digest = position * chunk_bytes, digests[position]
            wanted = slice(max(off, start) - start, min(end - start, chunk_bytes))
            part = self._at_hand(digest, wanted, min(chunk_bytes, file_bytes - start))
            if part is None:
                missing.append((len(parts), digest, wanted))
            parts.append(part)
        await self.flights.room()
        if missing:
            chunks = await self.flights.get([digest for _, digest, _ in missing])
            for slot, digest, wanted in missing:
                parts[slot] = chunks[digest][wanted]
        data = parts[0] if len(parts) == 1 else b"".join(part for part in parts if part is not None)
        if data is None or len(data) != end - off:
            # the kernel would take a short answer for zeros
            raise DataError(f"index is damaged: chunks of inode {fh - 1} do not make {file_bytes} bytes")
        return data  # type: ignore[return-value]

    def _at_hand(self, digest: bytes, wanted: slice, size_bytes: int) -> bytes | bytearray | None:
        """What needs no other thread, whose hop costs more than reading and verifying a chunk in memory."""
        length: int = wanted.stop - wanted.start
        if digest == HOLE:
            return bytes(length)
        part = self._cache.read(digest, wanted.start, length, size_bytes=size_bytes, wait=False)
        if part is not None:
            self.flights.counters.cache_chunks += 1
            return part
        chunk = self.flights.now(digest)
        return None if chunk is None else chunk[wanted]

    def _attributes(self, number: int) -> pyfuse3.EntryAttributes:
        inode = self._index.inode(number)
        kind = inode.mode & _TYPE
        attributes = pyfuse3.EntryAttributes()
        attributes.st_ino = number + 1
        attributes.st_mode = inode.mode
        attributes.st_nlink = inode.links
        attributes.st_uid = inode.uid
        attributes.st_gid = inode.gid
        if kind in _SIZED:
            attributes.st_size = inode.size
            attributes.st_blocks = -(-inode.size // _BLOCK_BYTES)
        elif kind in _DEVICES:
            attributes.st_rdev = os.makedev(*inode.device)
        attributes.st_blksize = self._chunk_bytes
        attributes.st_atime_ns = attributes.st_mtime_ns = attributes.st_ctime_ns = inode.mtime_ns
        attributes.entry_timeout = attributes.attr_timeout = _DAY_SECONDS
        return attributes


def _absent() -> pyfuse3.EntryAttributes:
    """A negative entry: Python's import search is mostly misses, and the kernel remembers them for us."""
    attributes = pyfuse3.EntryAttributes()
    attributes.st_ino = 0
    attributes.entry_timeout = _DAY_SECONDS
    return attributes
