"""Chunk bodies: digests, encodings, and the proof that they are what was asked for."""

from __future__ import annotations

from coldstart_cli.errors import DataError, UnavailableError
from coldstart_fs.locator import ChunkLocation
from coldstart_fs.names import digest_text

DEFAULT_CHUNK_BYTES = 131072
RAW = 0
ZSTD = 1


def chunk_digest(data: bytes | bytearray | memoryview) -> bytes:
    from blake3 import blake3

    return blake3(data).digest()


def verify(digest: bytes, data: bytes | bytearray | memoryview) -> None:
    """Raise `DataError` unless `data` is the chunk named `digest`."""
    if chunk_digest(data) != digest:
        raise DataError(f"chunk is damaged: {digest_text(digest)}")


def decode_chunk(location: ChunkLocation, stored: bytes) -> bytes:
    """A chunk's bytes from its stored form; the right size is checked here, its digest by `verify`."""
    if len(stored) != location.stored_bytes:
        raise DataError(
            f"chunk is cut short: {len(stored)} of {location.stored_bytes} bytes, "
            f"offset {location.offset} of pack {digest_text(location.pack)}"
        )
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


def _decompress(location: ChunkLocation, stored: bytes) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise UnavailableError(
            "Python package is not installed: zstandard", hint='pip install "coldstart[image]"'
        ) from error
    try:
        # read through a stream: a lying frame header must not make us allocate more than the chunk
        with zstandard.ZstdDecompressor().stream_reader(stored) as stream:
            return stream.read(location.size_bytes + 1)
    except zstandard.ZstdError as error:
        raise DataError(
            f"chunk cannot be decompressed: offset {location.offset} of pack {digest_text(location.pack)}: "
            f"{error}"
        ) from error
