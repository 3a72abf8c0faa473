"""Maps of sparse files, in the four ways in which GNU tar has written them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coldstart_fs.indexing.sources.tar_fields import FieldError, LimitError, decimal, number

Extents = list[tuple[int, int]]
"""Offset and length of every piece of data, in order; the rest of the file is zeros."""
Take = Callable[[int], bytes]

_BLOCK = 512
_LARGEST_MAP_BYTES = 8 << 20
_CUT_SHORT = "its sparse map is cut short"


def is_sparse(records: Mapping[bytes, bytes]) -> bool:
    return b"GNU.sparse.major" in records or b"GNU.sparse.size" in records


def old_map(header: bytes, take: Take) -> tuple[int, Extents]:
    """Size and map of a member of type S, whose map goes on in blocks behind the header."""
    parts, more = [header[386:482]], header[482]
    while more:
        block = take(_BLOCK)
        if len(block) != _BLOCK:
            raise FieldError(_CUT_SHORT)
        if len(parts) * _BLOCK > _LARGEST_MAP_BYTES:
            raise LimitError(f"its sparse map has more than {_LARGEST_MAP_BYTES} bytes")
        parts.append(block[:504])
        more = block[504]
    fields = b"".join(parts)
    extents = [
        (number(fields[at : at + 12], "sparse map"), number(fields[at + 12 : at + 24], "sparse map"))
        for at in range(0, len(fields), 24)
        if fields[at]
    ]
    return number(header[483:495], "size"), extents


def pax_map(records: Mapping[bytes, bytes], take: Take) -> tuple[int, Extents]:
    """Size and map from PAX records: formats 0.0 and 0.1 keep it there, 1.0 in front of the data."""
    version = records.get(b"GNU.sparse.major", b"0"), records.get(b"GNU.sparse.minor", b"0")
    if version == (b"1", b"0"):
        return decimal(records.get(b"GNU.sparse.realsize", b""), "size"), _leading_map(take)
    if version[0] != b"0":
        raise FieldError(f"its sparse format {version[0]!r} is unknown")
    text = records.get(b"GNU.sparse.map", b"")  # absent when the whole file is a hole
    return decimal(records.get(b"GNU.sparse.size", b""), "size"), _pairs(text.split(b",") if text else [])


def check(size: int, extents: Extents, data_bytes: int) -> None:
    position = total = 0
    for offset, length in extents:
        if offset < position or length < 0 or offset + length > size:
            raise FieldError("its sparse map cannot be right")
        position, total = offset + length, total + length
    if total != data_bytes:
        raise FieldError("its sparse map does not fit its data")


def _leading_map(take: Take) -> Extents:
    """Decimal lines, the number of pairs first, padded to whole blocks."""
    blocks: list[bytes] = []
    lines, wanted = 0, 1
    while lines < wanted:
        block = take(_BLOCK)
        if len(block) != _BLOCK:
            raise FieldError(_CUT_SHORT)
        blocks.append(block)
        if wanted == 1 and b"\n" in block:
            wanted = 1 + 2 * decimal(b"".join(blocks).partition(b"\n")[0], "sparse map")
        lines += block.count(b"\n")
        if len(blocks) * _BLOCK > _LARGEST_MAP_BYTES:
            raise LimitError(f"its sparse map has more than {_LARGEST_MAP_BYTES} bytes")
    return _pairs(b"".join(blocks).split(b"\n")[1:wanted])


def _pairs(texts: list[bytes]) -> Extents:
    numbers = [decimal(text, "sparse map") for text in texts]
    if len(numbers) % 2:
        raise FieldError("its sparse map cannot be right")
    return list(zip(numbers[::2], numbers[1::2], strict=True))
