"""The bytes of one of our files, mapped or in memory of our own; what cannot be had is refused by name."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path
from struct import Struct
from typing import ClassVar, NoReturn, Self

from coldstart_cli.errors import DataError, IoFailure, NotFoundError
from coldstart_cli.version import __version__
from coldstart_fs.indexing.regular import open_regular

# index and locator say at the same place how long they are
_FILE_BYTES = Struct("<16xQ")
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Mapped:
    """`content` is read-only; with a `descriptor` it is a copy that nobody can change, ourselves included.

    A file stays what it was only until somebody writes to it or its disk loses a block: who serves by it
    copies it, verifies the copy, and needs the file no more. The descriptor (-1: none) may be handed to
    other processes, which then share the memory.
    """

    def __init__(self, content: mmap.mmap, descriptor: int = -1) -> None:
        self.content = content
        self.descriptor = descriptor

    @classmethod
    def file(cls, path: Path, what: str, *, header_bytes: int) -> Self:
        """Map `path` whole; a file shorter than its header is damaged."""
        try:
            with open(open_regular(path), "rb") as stream:
                if os.fstat(stream.fileno()).st_size < header_bytes:
                    raise _too_short(path, what)
                return cls(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise _unreadable(path, what, error) from error

    @classmethod
    def copy(cls, path: Path, what: str, *, header_bytes: int) -> Self:
        """Read `path` whole, once its length is what its header says."""
        try:
            with open(open_regular(path), "rb", buffering=0) as stream:
                size_bytes = os.fstat(stream.fileno()).st_size
                header = os.pread(stream.fileno(), header_bytes, 0)
                if len(header) < header_bytes:
                    raise _too_short(path, what)
                if size_bytes != (expected := _FILE_BYTES.unpack_from(header)[0]):
                    raise DataError(
                        f"{what} is damaged: {path}: it has {size_bytes} bytes, its header says {expected}",
                        hint="index the image again",
                    )
                memory = _new_memory()
                try:
                    _fill(memory, stream.fileno(), size_bytes)
                    return cls._sealed(memory)
                except BaseException:
                    os.close(memory)
                    raise
        except OSError as error:
            raise _unreadable(path, what, error) from error

    @classmethod
    def of(cls, content: bytes | bytearray, place: Path | str, what: str, *, header_bytes: int) -> Self:
        """What came from `place`, which is no file of this host."""
        if len(content) < header_bytes:
            raise _too_short(place, what)
        memory = _new_memory()
        try:
            with open(memory, "wb", closefd=False) as stream:
                stream.write(content)
            return cls._sealed(memory)
        except OSError as error:
            os.close(memory)
            raise _unreadable(place, what, error) from error

    @classmethod
    def inherited(cls, descriptor: int) -> Self:
        """What another process copied and verified; the descriptor stays the caller's."""
        return cls._of_memory(os.dup(descriptor))

    def close(self) -> None:
        self.content.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    @classmethod
    def _sealed(cls, memory: int) -> Self:
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
        return cls._of_memory(memory)

    @classmethod
    def _of_memory(cls, memory: int) -> Self:
        # private, though nobody writes: before Linux 6.7 what is sealed cannot be mapped shared
        return cls(mmap.mmap(memory, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ), memory)


class HeldFile:
    """An index or a locator in `Mapped`; each kind says what its header begins with, and reads the rest."""

    _what: ClassVar[str]
    _magic: ClassVar[bytes]
    _version: ClassVar[int]
    _header_bytes: ClassVar[int]

    def __init__(self, mapped: Mapped, place: Path | str) -> None:
        self.place = place
        """Where it came from, for messages."""
        self._mapped = mapped
        self._map = mapped.content
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    @classmethod
    def inherited(cls, descriptor: int, place: Path | str) -> Self:
        """What another process verified: `descriptor` is of its memory."""
        return cls(Mapped.inherited(descriptor), place)

    @property
    def descriptor(self) -> int:
        """Of the memory that holds it, for `inherited`; -1 when it is mapped."""
        return self._mapped.descriptor

    @property
    def size_bytes(self) -> int:
        return len(self._map)

    def close(self) -> None:
        self._mapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_header(self) -> None:
        raise NotImplementedError

    def _check_frame(self, magic: bytes, version: int, header_bytes: int, file_bytes: int) -> None:
        """What every header begins with."""
        if magic != self._magic:
            article = "an" if self._what[0] in "aeiou" else "a"
            self._damaged(f"it does not begin as {article} {self._what}")
        check_version(self.place, self._what, version, self._version)
        if header_bytes != self._header_bytes:
            self._damaged("wrong header size")
        if file_bytes != len(self._map):
            self._damaged(f"it has {len(self._map)} bytes, its header says {file_bytes}")

    def _damaged(self, detail: str) -> NoReturn:
        raise DataError(f"{self._what} is damaged: {self.place}: {detail}", hint="index the image again")


def _new_memory() -> int:
    return os.memfd_create("coldstart", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _fill(memory: int, source: int, size_bytes: int) -> None:
    """Copy inside the kernel, at twice the pace of reading and writing."""
    copied = 0
    while copied < size_bytes:
        sent = os.sendfile(memory, source, copied, size_bytes - copied)
        if not sent:
            raise OSError(errno.EIO, "it was cut while it was read")
        copied += sent


def _too_short(place: Path | str, what: str) -> DataError:
    return DataError(
        f"{what} is damaged: {place}: it is shorter than its header", hint="index the image again"
    )


def _unreadable(place: Path | str, what: str, error: OSError) -> IoFailure | NotFoundError:
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{what} does not exist: {place}")
    return IoFailure(f"cannot read {what}: {place}: {error.strerror}")


def check_version(place: Path | str, what: str, found: int, known: int) -> None:
    """Refuse a file of a newer format by name."""
    if found > known:
        raise DataError(
            f"{what} has format {found}, coldstart {__version__} reads up to {known}: {place}",
            hint="install a newer coldstart",
        )
    if found != known:
        raise DataError(f"{what} is damaged: {place}: unknown format {found}")
