"""Reading tar streams exactly: byte names, nanoseconds, binary xattrs, sparse files.

Not Python's tarfile: it ends silently at a damaged header, takes times through floats, and differs
between the Python versions we support.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from coldstart_cli.errors import DataError
from coldstart_fs.format.chunk import Piece
from coldstart_fs.format.entry import Xattrs
from coldstart_fs.format.index import NANOSECONDS
from coldstart_fs.indexing.sources import tar_fields as fields
from coldstart_fs.indexing.sources import tar_sparse as sparse
from coldstart_fs.indexing.sources.stream import ByteStream

_BLOCK = 512
_ZERO_BLOCK = bytes(_BLOCK)
_LARGEST_EXTENSION_BYTES = 8 << 20
LARGEST_FILE_BYTES = 1 << 41  # room for a `lastlog` of all users that Linux can have
_XATTR = b"SCHILY.xattr."
_NOT_CARRIED = {
    b"SCHILY.acl.": "access control lists as text",
    b"LIBARCHIVE.xattr.": "xattrs in libarchive's form",
    b"RHT.security.selinux": "SELinux labels in GNU tar's form",
}

_KEYS = frozenset((b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime"))
_PREFIXES = (b"GNU.sparse.", _XATTR, *_NOT_CARRIED)
_MOST_GLOBALS = 256  # each file looks at all of them

REGULAR, LINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
_HEADER_ONLY = frozenset((LINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO))
_KINDS = _HEADER_ONLY | {REGULAR}
_SAME_AS = {b"\0": REGULAR, b"7": REGULAR, b"S": REGULAR}
_NOTHING: dict[bytes, bytes] = {}


@dataclass(slots=True)
class Member:
    """One entry of a tar file. `size` is the file's own; `stored_bytes` is what the archive has of it."""

    kind: bytes
    name: bytes
    link: bytes
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    stored_bytes: int
    device: tuple[int, int]
    xattrs: Xattrs
    extents: sparse.Extents | None
    not_carried: tuple[str, ...]
    """What PAX records say of it that no container runtime looks at."""


@dataclass(slots=True)
class _Announced:
    """What extended headers say of the member that follows."""

    records: Mapping[bytes, bytes] = field(default_factory=dict)
    name: bytes = b""
    link: bytes = b""


class TarReader:
    """Members in order; `content` gives the one at hand, and may be used in part or not at all."""

    def __init__(self, stream: ByteStream, what: str) -> None:
        self._stream = stream
        self._what = what
        self._left = 0  # stored bytes of the member at hand that were not read yet
        self._padding = 0
        self._globals: dict[bytes, bytes] = {}
        self._last_name = b""

    def __iter__(self) -> Iterator[Member]:
        while (member := self._next()) is not None:
            yield member
        self._stream.drain()

    def content(self, member: Member) -> Iterator[Piece]:
        """The content of the member at hand; numbers stand for zeros of a sparse file."""
        if member.extents is None:
            yield from self._stored(member.stored_bytes, member.name)
            return
        position = 0
        for offset, length in member.extents:
            if offset > position:
                yield offset - position
            yield from self._stored(length, member.name)
            position = offset + length
        if member.size > position:
            yield member.size - position

    def _stored(self, length: int, name: bytes) -> Iterator[bytes | memoryview]:
        for piece in self._stream.pieces(length):
            self._left -= len(piece)
            length -= len(piece)
            yield piece
        if length:
            self._damaged("it ends inside of the file", name)

    def _next(self) -> Member | None:
        found = self._headers() if self._skip_rest() else None
        if found is None:
            return None
        header, announced = found
        records: Mapping[bytes, bytes] = _NOTHING
        if announced.records or self._globals:
            # an empty value takes a key back, but an xattr may well be empty
            records = {
                key: value
                for key, value in {**self._globals, **announced.records}.items()
                if value or key.startswith(_XATTR)
            }
        # which name wins is as in Go's reader: GNU's over PAX, PAX over the header's
        name = announced.name or records.get(b"path") or fields.header_name(header)
        if b"\0" in name:
            self._damaged("its name holds a zero byte", name)
        self._last_name = name
        try:
            return self._member(header, records, name, announced.link)
        except fields.LimitError as error:
            raise self._refusal("passes a limit", str(error), name) from error
        except fields.FieldError as error:
            self._damaged(str(error), name)

    def _headers(self) -> tuple[bytes, _Announced] | None:
        """The header of the next member and what stood in extended headers before it; None at the end."""
        announced = _Announced()
        while True:
            header = self._stream.take(_BLOCK)
            if not header or header == _ZERO_BLOCK:
                self._check_end(header, announced)
                return None
            self._check_header(header)
            kind = header[156:157]
            if kind in {b"x", b"X"}:
                announced.records = self._extended_records(header)
            elif kind == b"g":
                self._note_globals(self._extended_records(header))
            elif kind == b"L":
                announced.name = self._extension(header).partition(b"\0")[0]
            elif kind == b"K":
                announced.link = self._extension(header).partition(b"\0")[0]
            elif kind == b"V":  # a volume label, not a file
                self._extension(header)
            else:
                return header, announced

    def _skip_rest(self) -> bool:
        """Pass over what is left of a file; False when the archive ends in its padding."""
        if self._left and self._stream.skip(self._left) != self._left:
            self._damaged("it ends inside of a file")
        complete = not self._padding or self._stream.skip(self._padding) == self._padding
        self._left = self._padding = 0
        return complete

    def _note_globals(self, records: Mapping[bytes, bytes]) -> None:
        """Records for all members that follow; what says nothing of a file, as a comment, is dropped."""
        self._globals |= {
            key: value for key, value in records.items() if key in _KEYS or key.startswith(_PREFIXES)
        }
        if len(self._globals) > _MOST_GLOBALS:
            raise self._refusal("passes a limit", f"more than {_MOST_GLOBALS} PAX records are for all files")

    def _check_end(self, header: bytes, announced: _Announced) -> None:
        """Two zero blocks end an archive, and so does the end of the stream."""
        if announced.records or announced.name or announced.link:
            self._damaged("it ends after an extended header")
        if header and self._stream.take(_BLOCK).strip(b"\0"):
            self._damaged("members follow after a single zero block")

    def _check_header(self, header: bytes) -> None:
        if len(header) != _BLOCK:
            self._damaged("it ends inside of a header")
        try:
            stored = fields.number(header[148:156], "checksum")
        except fields.FieldError:
            stored = -1
        if sum(header) - sum(header[148:156]) + 256 != stored:
            # some old programs summed signed bytes
            signed = sum(byte - 256 if byte > 127 else byte for byte in header[:148] + header[156:]) + 256
            if signed != stored:
                self._damaged("a header's checksum is wrong")

    def _member(self, header: bytes, records: Mapping[bytes, bytes], name: bytes, long_link: bytes) -> Member:
        kind = _SAME_AS.get(header[156:157], header[156:157])
        if header[156:157] == b"\0" and name.endswith(b"/"):
            kind = DIRECTORY  # how V7 tar wrote directories
        if kind not in _KINDS:
            raise fields.FieldError(f"its type {header[156:157]!r} is unknown")
        stored_bytes = 0
        if kind not in _HEADER_ONLY:
            stored_bytes = self._number(records, b"size", header[124:136])
        if stored_bytes < 0:
            raise fields.FieldError("its size is negative")
        self._left, self._padding = stored_bytes, -stored_bytes % _BLOCK
        size, extents = stored_bytes, None
        if header[156:157] == b"S":
            size, extents = sparse.old_map(header, self._stream.take)
        elif records and kind == REGULAR and sparse.is_sparse(records):
            size, extents = sparse.pax_map(records, self._take_stored)
            name = records.get(b"GNU.sparse.name") or name
        if extents is not None:
            sparse.check(size, extents, self._left)
        if size > LARGEST_FILE_BYTES:
            raise fields.LimitError(f"its size is {size}, the most is {LARGEST_FILE_BYTES}")
        time = records.get(b"mtime")
        return Member(
            kind=kind,
            name=name,
            link=long_link or records.get(b"linkpath") or header[157:257].partition(b"\0")[0],
            mode=fields.number(header[100:108], "mode") & 0o7777,
            uid=fields.owner(self._number(records, b"uid", header[108:116]), "uid"),
            gid=fields.owner(self._number(records, b"gid", header[116:124]), "gid"),
            mtime_ns=fields.checked_time(fields.number(header[136:148], "mtime") * NANOSECONDS)
            if time is None
            else fields.nanoseconds(time),
            size=size,
            stored_bytes=self._left,
            device=fields.device(header) if kind in {CHARACTER, BLOCK_DEVICE} else (0, 0),
            xattrs=_xattrs(records) if records else (),
            extents=extents,
            not_carried=_not_carried(records) if records else (),
        )

    def _number(self, records: Mapping[bytes, bytes], key: bytes, field: bytes) -> int:
        text = records.get(key)
        what = key.decode()
        return fields.number(field, what) if text is None else fields.decimal(text, what)

    def _take_stored(self, length: int) -> bytes:
        data = self._stream.take(min(length, self._left))
        self._left -= len(data)
        return data

    def _extension(self, header: bytes) -> bytes:
        try:
            length = fields.number(header[124:136], "size")
        except fields.FieldError as error:
            self._damaged(f"an extended header cannot be read: {error}")
        if length < 0:
            self._damaged(f"an extended header has {length} bytes")
        if length > _LARGEST_EXTENSION_BYTES:
            limit = f"an extended header has {length} bytes, the most is {_LARGEST_EXTENSION_BYTES}"
            raise self._refusal("passes a limit", limit)
        content = self._stream.take(length + -length % _BLOCK)
        if len(content) < length:
            self._damaged("it ends inside of an extended header")
        return content[:length]

    def _extended_records(self, header: bytes) -> dict[bytes, bytes]:
        try:
            pairs = fields.pax_records(self._extension(header))
        except fields.FieldError as error:
            self._damaged(str(error))
        records = dict(pairs)
        # format 0.0 of sparse files repeats these keys
        if b"GNU.sparse.offset" in records:
            keys = {b"GNU.sparse.offset", b"GNU.sparse.numbytes"}
            records[b"GNU.sparse.map"] = b",".join(value for key, value in pairs if key in keys)
        return records

    def _damaged(self, detail: str, name: bytes | None = None) -> NoReturn:
        raise self._refusal("is damaged", detail, name)

    def _refusal(self, what: str, detail: str, name: bytes | None = None) -> DataError:
        member = ""
        if name is not None:
            member = f"`{shown(name)}`: "
        elif self._last_name:
            member = f"at or behind `{shown(self._last_name)}`: "
        return DataError(f"tar stream {what}: {self._what}: {member}{detail}")


def _xattrs(records: Mapping[bytes, bytes]) -> Xattrs:
    return tuple(
        sorted((key[len(_XATTR) :], value) for key, value in records.items() if key.startswith(_XATTR))
    )


def _not_carried(records: Mapping[bytes, bytes]) -> tuple[str, ...]:
    found = {what for key in records for prefix, what in _NOT_CARRIED.items() if key.startswith(prefix)}
    # bsdtar writes xattrs in two forms
    if any(key.startswith(_XATTR) for key in records):
        found.discard(_NOT_CARRIED[b"LIBARCHIVE.xattr."])
    return tuple(sorted(found))


def shown(name: bytes) -> str:
    """A name for a message, in one line; the end is left out when it is very long."""
    text = name.decode("utf-8", "surrogateescape").replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= 200 else text[:200] + "..."
