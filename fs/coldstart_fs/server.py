"""The image server: one process a mount, answering the kernel from the index and the chunk source."""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pyfuse3
import trio

from coldstart_fs.fetch import ChunkSource
from coldstart_fs.index import Index, Inode

_DAY_SECONDS = 86400
_BLOCK_BYTES = 512
_NAME_LIMIT_BYTES = 255
_HOLE = bytes(32)
_CONCURRENT_FETCHES = 32
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT
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
            self.log(f"{handler.__name__} failed, answered EIO: {error}")
            raise pyfuse3.FUSEError(errno.EIO) from error

    return guard  # type: ignore[return-value]


class ImageOperations(pyfuse3.Operations):
    """A read-only image. FUSE inode = index inode + 1; a file handle is its FUSE inode."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, index: Index, source: ChunkSource, log: Callable[[str], None]) -> None:
        super().__init__()
        self.log = log
        self.failures = 0
        self._index = index
        self._source = source
        self._limiter = trio.CapacityLimiter(_CONCURRENT_FETCHES)
        self._chunk_bytes = index.chunk_bytes
        self._has_xattrs = index.has_xattrs

    # --- metadata ---

    @_guarded
    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        del ctx
        if len(name) > _NAME_LIMIT_BYTES:
            raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
        number = self._index.lookup(parent_inode - 1, name)
        if number is None:
            return _absent()
        return self._attributes(self._index.inode(number))

    @_guarded
    async def getattr(self, inode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        del ctx
        return self._attributes(self._index.inode(inode - 1))

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
        data.f_namemax = _NAME_LIMIT_BYTES
        return data

    # --- directories ---

    @_guarded
    async def opendir(self, inode: int, ctx: Any) -> int:
        del ctx
        return inode

    @_guarded
    async def readdir(self, fh: int, start_id: int, token: Any) -> None:
        for position, name, number, _ in self._index.entries(fh - 1, start_id):
            if not pyfuse3.readdir_reply(
                token, name, self._attributes(self._index.inode(number)), position + 1
            ):
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
    async def read(self, fh: int, off: int, size: int) -> bytes:
        inode = self._index.inode(fh - 1)
        end = min(off + size, inode.size)
        if off >= end:
            return b""
        first, last = off // self._chunk_bytes, (end - 1) // self._chunk_bytes
        parts: list[bytes | None] = []
        missing: list[tuple[int, bytes, int, int]] = []
        for position in range(first, last + 1):
            start = position * self._chunk_bytes
            low, high = max(off, start) - start, min(end, start + self._chunk_bytes) - start
            digest = self._index.chunk_digest(fh - 1, position)
            part = self._at_hand(digest, low, high - low)
            if part is None:
                missing.append((len(parts), digest, low, high))
            parts.append(part)
        if missing:
            await self._fetch(missing, parts)
        return b"".join(part for part in parts if part is not None)

    def _at_hand(self, digest: bytes, offset: int, length: int) -> bytes | None:
        """What needs no verification and no other thread: holes, and chunks verified before."""
        if digest == _HOLE:
            return bytes(length)
        if self._source.cache.is_verified(digest):
            return self._source.cache.read_verified(digest, offset, length)
        return None

    async def _fetch(self, missing: list[tuple[int, bytes, int, int]], parts: list[bytes | None]) -> None:
        async def fetch(slot: int, digest: bytes, low: int, high: int) -> None:
            data = await trio.to_thread.run_sync(self._source.read, digest, limiter=self._limiter)
            if len(data) < high:
                raise ValueError(f"chunk has {len(data)} bytes, {high} are needed")
            parts[slot] = data[low:high]

        if len(missing) == 1:
            await fetch(*missing[0])
            return
        failures: list[Exception] = []

        async def attempt(slot: int, digest: bytes, low: int, high: int) -> None:
            try:
                await fetch(slot, digest, low, high)
            except Exception as error:  # noqa: BLE001 - raised below, alone and not as a group
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for item in missing:
                nursery.start_soon(attempt, *item)
        if failures:
            raise failures[0]

    def _attributes(self, inode: Inode) -> pyfuse3.EntryAttributes:
        attributes = pyfuse3.EntryAttributes()
        attributes.st_ino = inode.number + 1
        attributes.st_mode = inode.mode
        attributes.st_nlink = inode.links
        attributes.st_uid = inode.uid
        attributes.st_gid = inode.gid
        attributes.st_size = 0 if stat.S_ISDIR(inode.mode) or inode.is_device else inode.size
        attributes.st_blocks = -(-attributes.st_size // _BLOCK_BYTES)
        attributes.st_blksize = self._chunk_bytes
        attributes.st_atime_ns = attributes.st_mtime_ns = attributes.st_ctime_ns = inode.mtime_ns
        attributes.st_rdev = os.makedev(*inode.device) if inode.is_device else 0
        attributes.entry_timeout = attributes.attr_timeout = _DAY_SECONDS
        return attributes


def _absent() -> pyfuse3.EntryAttributes:
    """A negative entry: Python's import search is mostly misses, and the kernel remembers them for us."""
    attributes = pyfuse3.EntryAttributes()
    attributes.st_ino = 0
    attributes.entry_timeout = _DAY_SECONDS
    return attributes
