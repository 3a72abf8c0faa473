"""Tar archives byte by byte: what no well-behaved program writes, and what old ones wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

BLOCK = 512
USTAR = b"ustar\x0000"
GNU = b"ustar  \0"
V7 = bytes(8)

Records = Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]]


class RawTar:
    """Members in the order of the calls; every field can be given as a number or as raw bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def raw(self, data: bytes) -> RawTar:
        """Bytes as they are."""
        self._parts.append(data)
        return self

    def member(
        self,
        name: bytes,
        kind: bytes = b"0",
        content: bytes = b"",
        *,
        link: bytes = b"",
        pax: Records = (),
        xattrs: Mapping[bytes, bytes] | None = None,
        padded: bool = True,
        **fields: int | bytes,
    ) -> RawTar:
        records = list(pax.items() if isinstance(pax, Mapping) else pax)
        records += [(b"SCHILY.xattr." + key, value) for key, value in (xattrs or {}).items()]
        if records:
            self.pax(records)
        fields.setdefault("size", len(content))
        self._parts.append(header(name, kind, link=link, **fields) + content)
        if padded:
            self._parts.append(bytes(-len(content) % BLOCK))
        return self

    def file(self, name: bytes, content: bytes = b"", **fields: int | bytes) -> RawTar:
        return self.member(name, b"0", content, **fields)  # type: ignore[arg-type]

    def folder(self, name: bytes, **fields: int | bytes) -> RawTar:
        return self.member(name, b"5", **{"mode": 0o755, **fields})  # type: ignore[arg-type]

    def symlink(self, name: bytes, target: bytes, **fields: int | bytes) -> RawTar:
        return self.member(name, b"2", link=target, **{"mode": 0o777, **fields})  # type: ignore[arg-type]

    def link(self, name: bytes, target: bytes, **fields: int | bytes) -> RawTar:
        return self.member(name, b"1", link=target, **fields)  # type: ignore[arg-type]

    def pax(self, records: Records, kind: bytes = b"x") -> RawTar:
        """An extended header for the next member; kind `g` for all that follow."""
        pairs = records.items() if isinstance(records, Mapping) else records
        content = b"".join(record(key, value) for key, value in pairs)
        return self.member(b"PaxHeaders/x", kind, content)

    def gnu_name(self, name: bytes) -> RawTar:
        return self.member(b"././@LongLink", b"L", name + b"\0", magic=GNU)

    def gnu_link(self, target: bytes) -> RawTar:
        return self.member(b"././@LongLink", b"K", target + b"\0", magic=GNU)

    def content(self, end: bytes = bytes(2 * BLOCK)) -> bytes:
        return b"".join(self._parts) + end


def record(key: bytes, value: bytes) -> bytes:
    """One PAX record with its length in front, which counts itself."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def number(value: int | bytes, width: int) -> bytes:
    """Octal with a zero byte at the end; base-256 where that is too short or the value negative."""
    if isinstance(value, bytes):
        return value.ljust(width, b"\0")
    if 0 <= value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    return base_256(value, width)


def base_256(value: int, width: int) -> bytes:
    field = bytearray(value.to_bytes(width, "big", signed=True))
    field[0] |= 0x80
    return bytes(field)


def header(
    name: bytes,
    kind: bytes = b"0",
    *,
    link: bytes = b"",
    mode: int | bytes = 0o644,
    uid: int | bytes = 0,
    gid: int | bytes = 0,
    size: int | bytes = 0,
    mtime: int | bytes = 1_600_000_000,
    magic: bytes = USTAR,
    major: int | bytes = 0,
    minor: int | bytes = 0,
    prefix: bytes = b"",
    tail: bytes | None = None,
) -> bytes:
    """One block with the right checksum; `tail` replaces all that follows the minor device number."""
    block = bytearray(BLOCK)
    block[0:100] = name[:100].ljust(100, b"\0")
    block[100:108] = number(mode, 8)
    block[108:116] = number(uid, 8)
    block[116:124] = number(gid, 8)
    block[124:136] = number(size, 12)
    block[136:148] = number(mtime, 12)
    block[156:157] = kind
    block[157:257] = link[:100].ljust(100, b"\0")
    block[257:265] = magic
    if magic != V7:
        block[329:337] = number(major, 8)
        block[337:345] = number(minor, 8)
    block[345:512] = (prefix if tail is None else tail).ljust(167, b"\0")
    return with_checksum(bytes(block))


def with_checksum(block: bytes) -> bytes:
    total = sum(block[:148]) + 8 * 0x20 + sum(block[156:512])
    return block[:148] + b"%06o\0 " % total + block[156:]
