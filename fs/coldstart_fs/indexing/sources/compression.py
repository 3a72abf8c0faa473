"""Decompression by first bytes, in blocks of bounded size: plain, gzip, zstd, xz, bzip2."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from coldstart_cli.errors import DataError, UnavailableError

_BLOCK_BYTES = 1 << 20
# a zstd block of 4 bytes may stand for 128 KiB: a feed of this size gives 64 MiB at the very most
_ZSTD_FEED_BYTES = 2 << 10
_ZSTD_WINDOW_BYTES = 128 << 20  # what zstd itself decompresses without being asked to
_XZ_MEMORY_BYTES = 512 << 20  # xz -9 needs 65 MiB to decompress
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_MAGIC = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_XZ_MAGIC = b"\xfd7zXZ\0"
_BZIP2_MAGIC = re.compile(rb"BZh[1-9]1AY&SY")
_LONGEST_MAGIC_BYTES = 10


def decompressed(blocks: Iterator[bytes], what: str) -> Iterator[bytes]:
    """The bytes behind any compression; media types and names are often wrong. `what` names the blob."""
    first = next(blocks, b"")
    while len(first) < _LONGEST_MAGIC_BYTES and (more := next(blocks, b"")):
        first += more
    chained = _chain(first, blocks)
    if first.startswith(_GZIP_MAGIC):
        return _inflate(chained, what)
    if first.startswith(_ZSTD_MAGIC) or _SKIPPABLE_MAGIC.match(first):
        return _zstd(chained, what)
    if first.startswith(_XZ_MAGIC):
        return _xz(chained, what)
    if _BZIP2_MAGIC.match(first):
        return _bzip2(chained, what)
    return chained


def is_compressed(first: bytes) -> bool:
    """Whether a file that begins with these bytes is decompressed by `decompressed`."""
    return bool(
        first.startswith((_GZIP_MAGIC, _ZSTD_MAGIC, _XZ_MAGIC))
        or _SKIPPABLE_MAGIC.match(first)
        or _BZIP2_MAGIC.match(first)
    )


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _inflate(blocks: Iterator[bytes], what: str) -> Iterator[bytes]:
    inflater = _inflater()
    member = inflater.decompressobj(wbits=31)
    between = False  # at the start of a member that is not the first
    try:
        for block in blocks:
            data = block
            while data:
                if between and not data.strip(b"\0"):
                    break  # gzip files may be padded with zeros
                plain = member.decompress(data, _BLOCK_BYTES)
                between = False
                if plain:
                    yield plain
                data = member.unconsumed_tail
                if member.eof:
                    data, member, between = member.unused_data, inflater.decompressobj(wbits=31), True
    except (zlib.error, inflater.error) as error:
        raise DataError(f"gzip stream is damaged: {what}: {error}", hint="copy the image again") from error
    if not between:
        raise DataError(f"gzip stream is cut short: {what}", hint="copy the image again")


def _inflater() -> Any:
    """ISA-L behind zlib's interface takes half of zlib's time; it is not made for every processor."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def _zstd(blocks: Iterator[bytes], what: str) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise UnavailableError(
            f"zstd is needed to read it: {what}", hint='pip install "coldstart[image]"'
        ) from error
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    frame: Any = context.decompressobj()
    between = False
    try:
        for block in blocks:
            for start in range(0, len(block), _ZSTD_FEED_BYTES):
                data = block[start : start + _ZSTD_FEED_BYTES]
                while data:
                    plain = frame.decompress(data)
                    between, data = False, b""
                    for offset in range(0, len(plain), _BLOCK_BYTES):
                        yield plain[offset : offset + _BLOCK_BYTES]
                    if frame.eof:
                        data, frame, between = frame.unused_data, context.decompressobj(), True
    except zstandard.ZstdError as error:
        if "too much memory" in str(error):
            raise DataError(
                f"zstd stream needs a window of more than {_ZSTD_WINDOW_BYTES >> 20} MiB: {what}",
                hint="compress it again with `zstd --long=27` or without `--long`",
            ) from error
        raise DataError(f"zstd stream is damaged: {what}: {error}", hint="copy the image again") from error
    if not between:
        raise DataError(f"zstd stream is cut short: {what}", hint="copy the image again")


def _xz(blocks: Iterator[bytes], what: str) -> Iterator[bytes]:
    import lzma

    def stream() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)

    try:
        yield from _streams(blocks, stream, "xz", what)
    except lzma.LZMAError as error:
        if "limit" in str(error):
            raise DataError(
                f"xz stream needs more than {_XZ_MEMORY_BYTES >> 20} MiB of memory: {what}",
                hint="compress it again with `xz -9` or less",
            ) from error
        raise DataError(f"xz stream is damaged: {what}: {error}", hint="copy the image again") from error


def _bzip2(blocks: Iterator[bytes], what: str) -> Iterator[bytes]:
    import bz2

    try:
        yield from _streams(blocks, bz2.BZ2Decompressor, "bzip2", what)
    except OSError as error:
        raise DataError(f"bzip2 stream is damaged: {what}: {error}", hint="copy the image again") from error


def _streams(blocks: Iterator[bytes], make: Callable[[], Any], kind: str, what: str) -> Iterator[bytes]:
    """One stream after the other, zeros between them or not, through the standard library."""
    stream = make()
    between = False
    for block in blocks:
        data = block
        while data or not (between or stream.needs_input):
            if between:
                data = data.lstrip(b"\0")
                if not data:
                    break
                stream, between = make(), False
            plain = stream.decompress(data, _BLOCK_BYTES)
            data = b""
            if plain:
                yield plain
            if stream.eof:
                data, between = stream.unused_data, True
    if not between:
        raise DataError(f"{kind} stream is cut short: {what}", hint="copy the image again")
