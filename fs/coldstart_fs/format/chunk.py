"""Chunk bodies: digests, encodings, and the proof that they are what was asked for."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from coldstart_cli.errors import DataError, UnavailableError, UsageError
from coldstart_fs.format.locator import ChunkLocation
from coldstart_fs.format.names import digest_text

DEFAULT_CHUNK_BYTES = 131072
# a part of some file's content: its bytes, or how many zero bytes
Piece = bytes | memoryview | int
RAW = 0
ZSTD = 1


def chunk_digest(data: bytes | bytearray | memoryview) -> bytes:
    from blake3 import blake3

    return blake3(data).digest()


def verify(digest: bytes, data: bytes | bytearray | memoryview) -> None:
    """Raise `DataError` unless `data` is the chunk named `digest`."""
    if chunk_digest(data) != digest:
        raise DataError(f"chunk is damaged: {digest_text(digest)}")


@dataclass(frozen=True)
class Compression:
    """zstd at one level; a chunk that does not shrink by a sixteenth stays as it is."""

    level: int = 3

    @classmethod
    def parse(cls, text: str) -> Compression | None:
        """`none`, `zstd` or `zstd:LEVEL`."""
        if text == "none":
            return None
        match = re.fullmatch(r"zstd(?::(\d{1,2}))?", text)
        if not match or not 1 <= (level := int(match[1] or cls.level)) <= _HIGHEST_LEVEL:
            raise UsageError(
                f"not a compression: {text}", hint=f"`none`, `zstd` or `zstd:LEVEL`, 1 to {_HIGHEST_LEVEL}"
            )
        _zstandard()
        return cls(level)


_HIGHEST_LEVEL = 19
_SMALLEST_GAIN = 16


class _Compressors(threading.local):
    """One thread's, by level: making one costs more than a small chunk."""

    def __init__(self) -> None:
        self.by_level: dict[int, Any] = {}


class _Decompressor(threading.local):
    """One thread's: a new one for each chunk makes reading half as slow again."""

    def __init__(self) -> None:
        self.own: Any = None


_compressors = _Compressors()
_decompressor = _Decompressor()


def encode_chunk(data: bytes | memoryview, compression: Compression) -> tuple[int, bytes | memoryview]:
    """Encoding and stored form; for threads, since zstd works without the interpreter's lock."""
    compressor = _compressors.by_level.get(compression.level)
    if compressor is None:
        compressor = _zstandard().ZstdCompressor(level=compression.level)
        _compressors.by_level[compression.level] = compressor
    packed: bytes = compressor.compress(data)
    if len(packed) > len(data) - max(1, len(data) // _SMALLEST_GAIN):
        return RAW, data
    return ZSTD, packed


def decode_chunk(
    location: ChunkLocation, stored: bytes | bytearray | memoryview
) -> bytes | bytearray | memoryview:
    """A chunk's bytes from its stored form; the right size is checked here, its digest by `verify`."""
    if len(stored) != location.stored_bytes:
        raise DataError(
            f"chunk is cut short: {len(stored)} of {location.stored_bytes} bytes, "
            f"offset {location.offset} of pack {digest_text(location.pack)}"
        )
    data: bytes | bytearray | memoryview
    if location.encoding == RAW:
        data = stored
    elif location.encoding == ZSTD:
        data = _decompress(location, stored)
    else:
        raise DataError(
            f"unknown chunk encoding {location.encoding} in pack {digest_text(location.pack)}",
            hint="install a newer coldstart",
        )
    if len(data) != location.size_bytes:
        raise DataError(
            f"chunk has {len(data)} bytes instead of {location.size_bytes}: "
            f"offset {location.offset} of pack {digest_text(location.pack)}"
        )
    return data


def _decompress(location: ChunkLocation, stored: bytes | bytearray | memoryview) -> bytes:
    zstandard = _zstandard()
    try:
        return _inflated(zstandard, stored, location.size_bytes)
    except zstandard.ZstdError as error:
        raise DataError(
            f"chunk cannot be decompressed: offset {location.offset} of pack {digest_text(location.pack)}: "
            f"{error}"
        ) from error


def _inflated(zstandard: Any, stored: bytes | bytearray | memoryview, size_bytes: int) -> bytes:
    data: bytes
    if zstandard.get_frame_parameters(stored).content_size <= size_bytes:
        if _decompressor.own is None:
            _decompressor.own = zstandard.ZstdDecompressor()
        data = _decompressor.own.decompress(stored, max_output_size=size_bytes)
        return data
    # a header that lies, or does not say, must not make us allocate more than the chunk
    with zstandard.ZstdDecompressor().stream_reader(stored) as stream:
        data = stream.read(size_bytes + 1)
        return data


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise UnavailableError(
            "Python package is not installed: zstandard", hint='pip install "coldstart[image]"'
        ) from error
    return zstandard


def split(pieces: Iterable[Piece], chunk_bytes: int) -> Iterator[Piece]:
    """Regroup pieces into chunks of `chunk_bytes`, the last one as it comes; zeros stay a number of bytes."""
    held: list[bytes | memoryview] = []
    missing = chunk_bytes
    for piece in pieces:
        if isinstance(piece, int):
            rest = piece
            if missing < chunk_bytes or rest < chunk_bytes:
                filling = min(missing, rest)
                held.append(bytes(filling))
                missing, rest = missing - filling, rest - filling
                if not missing:
                    yield b"".join(held)
                    held, missing = [], chunk_bytes
            if whole := rest - rest % chunk_bytes:
                yield whole
                rest -= whole
            if rest:
                held.append(bytes(rest))
                missing -= rest
            continue
        view = memoryview(piece)
        while len(view) >= missing:
            part, view = view[:missing], view[missing:]
            yield b"".join((*held, part)) if held else part
            held, missing = [], chunk_bytes
        if view:
            held.append(view)
            missing -= len(view)
    if missing < chunk_bytes:
        yield b"".join(held)
