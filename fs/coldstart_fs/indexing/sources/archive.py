"""Tar archives read in place: one pass over the headers says where each member's bytes lie in the file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, UsageError
from coldstart_fs.indexing.sources import Progress, tar
from coldstart_fs.indexing.sources.blob import Place, reading
from coldstart_fs.indexing.sources.compression import decompressed, is_compressed
from coldstart_fs.indexing.sources.stream import Ahead, ByteStream

_MOST_MEMBERS = 100_000
_LONGEST_NAME_BYTES = 4096
_MOST_LINKS = 16
_SPARED_BYTES = 256 << 20  # left free on the file system that takes a decompressed archive
Name = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _File:
    offset: int
    size_bytes: int
    is_sparse: bool


class Archive:
    """The members of an archive by name; nothing is unpacked, so no name can lead anywhere."""

    def __init__(self, path: Path, shown: str) -> None:
        self.shown = shown
        self._path = path
        self._members: dict[Name, _File | Name | None] = {}
        self._repeated: set[Name] = set()
        with reading(path) as descriptor:
            stream = _Seekable(descriptor)
            for member in tar.TarReader(stream, shown):
                self._add(member, stream.position)

    @staticmethod
    def check(path: Path) -> None:
        """Refuse early what cannot be an archive."""
        try:
            mode = path.stat().st_mode
        except FileNotFoundError as error:
            raise NotFoundError(f"file does not exist: {path}") from error
        except OSError as error:
            raise IoFailure(f"cannot read `{path}`: {error.strerror}") from error
        if stat.S_ISDIR(mode):
            raise UsageError(f"not a file but a folder: {path}", hint=f"for an OCI layout write oci:{path}")
        if not stat.S_ISREG(mode):
            raise UsageError(
                f"not a regular file, and an archive is read more than once: {path}",
                hint="write it to a file first",
            )
        with reading(path):
            pass

    @classmethod
    @contextmanager
    def open(cls, path: Path, scratch: Path, progress: Progress) -> Iterator[Archive]:
        """The archive at `path`; a compressed one is decompressed into the folder `scratch`, once."""
        with reading(path) as descriptor:
            first = os.pread(descriptor, 16, 0)
        if not is_compressed(first):
            progress(f"reading {path}")
            yield cls(path, str(path))
            return
        plain = scratch / "archive.tar"
        try:
            _decompress(path, plain, progress)
            yield cls(plain, str(path))
        finally:
            plain.unlink(missing_ok=True)

    def find(self, name: str) -> Place | None:
        """Where the bytes of a member lie; links lead to other members."""
        key = _key(_bytes(name))
        for _ in range(_MOST_LINKS):
            member = self._members.get(key) if key is not None else None
            if isinstance(member, _File):
                if member.is_sparse:
                    raise DataError(
                        f"archive holds a sparse file: {self.shown}: {name}",
                        hint="make it without `--sparse`",
                    )
                return Place(self._path, member.offset, member.size_bytes, f"{self.shown}: {name}")
            if member is None:
                return None
            key = member
        raise DataError(f"archive has too many links one after the other: {self.shown}: {name}")

    def find_only(self, name: str) -> Place | None:
        """The same, for members that nothing verifies: of two with this name each reader takes another."""
        if _key(_bytes(name)) in self._repeated:
            raise DataError(f"archive holds several members of one name: {self.shown}: {name}")
        return self.find(name)

    def _add(self, member: tar.Member, offset: int) -> None:
        key = _key(member.name)
        if key is None or len(member.name) > _LONGEST_NAME_BYTES or member.kind == tar.DIRECTORY:
            return
        if key in self._members:
            self._repeated.add(key)
        elif len(self._members) >= _MOST_MEMBERS:
            raise DataError(f"archive has more than {_MOST_MEMBERS} members: {self.shown}")
        if member.kind == tar.REGULAR:
            self._members[key] = _File(offset, member.stored_bytes, member.extents is not None)
        elif member.kind == tar.LINK:
            self._members[key] = _key(member.link)
        elif member.kind == tar.SYMLINK:
            relative = not member.link.startswith(b"/")
            self._members[key] = _key(b"/".join((*key[:-1], member.link))) if relative else None
        else:
            self._members[key] = None


def _bytes(name: str) -> bytes:
    """A name out of JSON, where it may hold half a character: such a member does not exist."""
    return name.encode("utf-8", "surrogatepass")


def _key(name: bytes) -> Name | None:
    """A name's components; `None` for one that leaves the archive."""
    parts: list[bytes] = []
    for part in name.split(b"/"):
        if part == b"..":
            if not parts:
                return None
            parts.pop()
        elif part not in {b"", b"."}:
            parts.append(part)
    return tuple(parts) or None


class _Seekable(ByteStream):
    """A file as a stream for the tar reader; passing over contents costs no reading."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(iter(()))
        self.position = 0
        self._descriptor = descriptor
        self._end = os.fstat(descriptor).st_size

    def take(self, length: int) -> bytes:
        data = os.pread(self._descriptor, length, self.position)
        self.position += len(data)
        return data

    def pieces(self, length: int) -> Iterator[bytes | memoryview]:
        while length and (data := self.take(min(length, 1 << 20))):
            length -= len(data)
            yield data

    def skip(self, length: int) -> int:
        length = max(0, min(length, self._end - self.position))
        self.position += length
        return length


def _decompress(path: Path, plain: Path, progress: Progress) -> None:
    """Write what is behind the compression, as long as the file system has room for more than that."""
    with reading(path) as descriptor:
        size_bytes = os.fstat(descriptor).st_size
    written = 0
    progress(f"decompressing {path}")
    progress.expect(size_bytes)
    blocks = progress.counted(Place(path, 0, size_bytes, str(path)).blocks())
    ahead = Ahead(decompressed(blocks, str(path)))
    try:
        with plain.open("xb") as stream:
            for block in ahead:
                system = os.fstatvfs(stream.fileno())
                if system.f_bavail * system.f_frsize < _SPARED_BYTES + len(block):
                    raise IoFailure(
                        f"no room to decompress {path}: {written / 1e6:.0f} MB written, "
                        f"{_SPARED_BYTES >> 20} MiB must stay free: {plain.parent}",
                        hint=f"df -h {plain.parent}",
                    )
                stream.write(block)
                written += len(block)
    except OSError as error:
        raise IoFailure(f"cannot decompress {path}: {plain.parent}: {error.strerror}") from error
    finally:
        ahead.close()
