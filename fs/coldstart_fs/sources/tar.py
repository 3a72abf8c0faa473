"""Reading tar streams exactly: byte names, nanoseconds, binary xattrs, sparse files.

Not Python's tarfile: it ends silently at a damaged header, takes times through floats, and differs
between the Python versions we support.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from coldstart_cli.errors import DataError
from coldstart_fs.chunk import Piece
from coldstart_fs.entry import Xattrs
from coldstart_fs.index import NANOSECONDS
from coldstart_fs.sources.stream import ByteStream

_BLOCK = 512
_ZERO_BLOCK = bytes(_BLOCK)
_LARGEST_EXTENSION_BYTES = 8 << 20
_XATTR = b"SCHILY.xattr."
_RECORD_LENGTH = re.compile(rb"(\d{1,20}) ")
_TIME = re.compile(rb"(-?)(\d+)(?:\.(\d*))?")

REGULAR, LINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
_HEADER_ONLY = frozenset((LINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO))
_KINDS = _HEADER_ONLY | {REGULAR}
_SAME_AS = {b"\0": REGULAR, b"7": REGULAR, b"S": REGULAR}


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
    extents: list[tuple[int, int]] | None
    has_text_acl: bool


class TarReader:
    """Members in order; `content` gives the one at hand, and may be used in part or not at all."""

    def __init__(self, stream: ByteStream, what: str) -> None:
        self._stream = stream
        self._what = what
        self._left = 0  # stored bytes of the member at hand that were not read yet
        self._padding = 0
        self._globals: dict[bytes, bytes] = {}

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
            self._damaged(f"it ends inside of {_shown(name)}")

    def _next(self) -> Member | None:
        extended: dict[bytes, bytes] = {}
        long_name = long_link = None
        self._skip_rest()
        while True:
            header = self._stream.take(_BLOCK)
            if not header or header == _ZERO_BLOCK:
                if extended or long_name or long_link:
                    self._damaged("it ends after an extended header")
                return None
            self._check_header(header)
            kind = header[156:157]
            if kind in {b"x", b"X", b"g"}:
                (self._globals if kind == b"g" else extended).update(self._extended_records(header))
            elif kind == b"L":
                long_name = self._extension(header).partition(b"\0")[0]
            elif kind == b"K":
                long_link = self._extension(header).partition(b"\0")[0]
            elif kind == b"V":  # a volume label, not a file
                self._extension(header)
            else:
                break
        # an empty value takes a key back, but an xattr may well be empty
        merged = {
            key: value for key, value in (self._globals | extended).items() if value or key.startswith(_XATTR)
        }
        return self._member(header, merged, long_name, long_link)

    def _skip_rest(self) -> None:
        length = self._left + self._padding
        if length and self._stream.skip(length) != length:
            self._damaged("it ends inside of a file")
        self._left = self._padding = 0

    def _check_header(self, header: bytes) -> None:
        if len(header) != _BLOCK:
            self._damaged("it ends inside of a header")
        stored = self._octal(header[148:156], "checksum")
        if sum(header[:148]) + 256 + sum(header[156:]) != stored:
            # some old programs summed signed bytes
            signed = sum(byte - 256 if byte > 127 else byte for byte in header[:148] + header[156:]) + 256
            if signed != stored:
                self._damaged("a header's checksum is wrong")

    def _member(
        self,
        header: bytes,
        records: dict[bytes, bytes],
        long_name: bytes | None,
        long_link: bytes | None,
    ) -> Member:
        name = records.get(b"GNU.sparse.name") or records.get(b"path") or long_name or _header_name(header)
        kind = _SAME_AS.get(header[156:157], header[156:157])
        if header[156:157] == b"\0" and name.endswith(b"/"):
            kind = DIRECTORY  # how V7 tar wrote directories
        if kind not in _KINDS:
            self._damaged(f"{_shown(name)} has unknown type {header[156:157]!r}")
        size = self._decimal(records, b"size", None)
        stored_bytes = self._octal(header[124:136], "size") if size is None else size
        if stored_bytes < 0:
            self._damaged(f"{_shown(name)} has a negative size")
        if kind in _HEADER_ONLY:
            stored_bytes = 0
        self._left, self._padding = stored_bytes, -stored_bytes % _BLOCK
        size, extents = self._extents(header, records, stored_bytes)
        if b"\0" in name:
            self._damaged(f"a name holds a zero byte: {_shown(name)}")
        return Member(
            kind=kind,
            name=name,
            link=records.get(b"linkpath") or long_link or header[157:257].partition(b"\0")[0],
            mode=self._octal(header[100:108], "mode") & 0o7777,
            uid=self._owner(records, b"uid", header[108:116]),
            gid=self._owner(records, b"gid", header[116:124]),
            mtime_ns=self._time(records, header),
            size=size,
            stored_bytes=self._left,
            device=(self._octal(header[329:337], "major"), self._octal(header[337:345], "minor"))
            if kind in {CHARACTER, BLOCK_DEVICE}
            else (0, 0),
            xattrs=tuple(
                sorted(
                    (key[len(_XATTR) :], value) for key, value in records.items() if key.startswith(_XATTR)
                )
            ),
            extents=extents,
            has_text_acl=any(key.startswith(b"SCHILY.acl.") for key in records),
        )

    # --- extended headers ---

    def _extension(self, header: bytes) -> bytes:
        length = self._octal(header[124:136], "size")
        if not 0 <= length <= _LARGEST_EXTENSION_BYTES:
            self._damaged(f"an extended header has {length} bytes")
        content = self._stream.take(length + -length % _BLOCK)
        if len(content) < length:
            self._damaged("it ends inside of an extended header")
        return content[:length]

    def _extended_records(self, header: bytes) -> dict[bytes, bytes]:
        content = self._extension(header)
        records: dict[bytes, bytes] = {}
        offsets: list[bytes] = []
        position = 0
        while position < len(content):
            match = _RECORD_LENGTH.match(content, position)
            end = position + int(match[1]) if match else 0
            if not match or not match.end() < end <= len(content) or content[end - 1 : end] != b"\n":
                self._damaged("an extended header cannot be read")
            key, equals, value = content[match.end() : end - 1].partition(b"=")
            if not equals:
                self._damaged("an extended header cannot be read")
            if key in {b"GNU.sparse.offset", b"GNU.sparse.numbytes"}:  # format 0.0 repeats these keys
                offsets.append(value)
            records[key] = value
            position = end
        if offsets:
            records[b"GNU.sparse.map"] = b",".join(offsets)
        return records

    # --- sparse files ---

    def _extents(
        self, header: bytes, records: dict[bytes, bytes], stored_bytes: int
    ) -> tuple[int, list[tuple[int, int]] | None]:
        if header[156:157] == b"S":
            size, extents = self._octal(header[483:495], "size"), self._old_sparse_map(header)
        elif records.get(b"GNU.sparse.major") == b"1":
            size = self._decimal(records, b"GNU.sparse.realsize", 0) or 0
            extents = self._leading_sparse_map()
        elif b"GNU.sparse.size" in records:
            size = self._decimal(records, b"GNU.sparse.size", 0) or 0
            text = records.get(b"GNU.sparse.map")  # absent when the whole file is a hole
            extents = self._pairs(text.split(b",")) if text else []
        else:
            return stored_bytes, None
        position = total = 0
        for offset, length in extents:
            if offset < position or length < 0 or offset + length > size:
                self._damaged("a sparse file's map cannot be right")
            position, total = offset + length, total + length
        if total != self._left:
            self._damaged("a sparse file's map does not fit its data")
        return size, extents

    def _old_sparse_map(self, header: bytes) -> list[tuple[int, int]]:
        fields, more = header[386:482], header[482]
        while more:
            block = self._stream.take(_BLOCK)
            if len(block) != _BLOCK:
                self._damaged("it ends inside of a sparse file's map")
            fields, more = fields + block[:504], block[504]
        pairs = [
            (self._octal(fields[at : at + 12], "offset"), self._octal(fields[at + 12 : at + 24], "length"))
            for at in range(0, len(fields), 24)
            if fields[at]
        ]
        return [(offset, length) for offset, length in pairs if offset >= 0]

    def _leading_sparse_map(self) -> list[tuple[int, int]]:
        """Format 1.0 puts the map before the data, as decimal lines padded to whole blocks."""
        text = b""
        lines: list[bytes] = []
        wanted = 1
        while len(lines) < wanted:
            block = b"".join(self._stored(min(_BLOCK, self._left), b"a sparse file"))
            if not block or len(text) > _LARGEST_EXTENSION_BYTES:
                self._damaged("a sparse file's map cannot be read")
            text += block
            lines = text.split(b"\n")[:-1]
            if lines:
                wanted = 1 + 2 * self._number(lines[0])
        return self._pairs(lines[1:wanted])

    def _pairs(self, texts: list[bytes]) -> list[tuple[int, int]]:
        numbers = [self._number(text) for text in texts]
        if len(numbers) % 2:
            self._damaged("a sparse file's map cannot be read")
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    # --- numbers ---

    def _octal(self, field: bytes, what: str) -> int:
        if field[0] & 0x80:  # GNU's base-256, two's complement below the marker bit
            value = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
            return value - (1 << (8 * len(field) - 1)) if field[0] & 0x40 else value
        text = field.partition(b"\0")[0].strip(b" ")
        try:
            return int(text, 8) if text else 0
        except ValueError:
            self._damaged(f"a header's {what} is not a number")

    def _number(self, text: bytes) -> int:
        if not text.isdigit() or len(text) > 20:
            self._damaged("an extended header's number cannot be read")
        return int(text)

    def _decimal(self, records: dict[bytes, bytes], key: bytes, default: int | None) -> int | None:
        text = records.get(key)
        return default if text is None else self._number(text)

    def _owner(self, records: dict[bytes, bytes], key: bytes, field: bytes) -> int:
        decimal = self._decimal(records, key, None)
        value = self._octal(field, "owner") if decimal is None else decimal
        if not 0 <= value < 1 << 32:
            self._damaged(f"a header's {key.decode()} is out of range: {value}")
        return value

    def _time(self, records: dict[bytes, bytes], header: bytes) -> int:
        text = records.get(b"mtime")
        if text is None:
            total = self._octal(header[136:148], "mtime") * NANOSECONDS
        else:
            match = _TIME.fullmatch(text)
            if not match or len(match[2]) > 20:
                self._damaged("an extended header's mtime cannot be read")
            total = int(match[2]) * NANOSECONDS + int((match[3] or b"").ljust(9, b"0")[:9])
            total = -total if match[1] else total
        if not -(1 << 63) <= total // NANOSECONDS < 1 << 63:
            self._damaged("an mtime is out of range")
        return total

    def _damaged(self, detail: str) -> NoReturn:
        raise DataError(f"tar stream is damaged: {self._what}: {detail}")


def _header_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] != b"ustar\0":  # V7 has no prefix, GNU keeps times in its place
        return name
    # star keeps times behind a shorter prefix
    prefix = header[345:476] if header[508:512] == b"tar\0" else header[345:500]
    prefix = prefix.partition(b"\0")[0]
    return prefix + b"/" + name if prefix else name


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
