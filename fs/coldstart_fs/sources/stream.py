"""Bytes of a blob on their way to a parser: verified, decompressed, read ahead by a thread, taken exactly."""

from __future__ import annotations

import hashlib
import os
import queue
import re
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, UnavailableError

_READ_BYTES = 256 << 10
_BLOCK_BYTES = 1 << 20
_BLOCKS_AHEAD = 8
# a zstd block of 4 bytes may stand for 128 KiB: a feed of this size gives 64 MiB at the very most
_ZSTD_FEED_BYTES = 2 << 10
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_MAGIC = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_DIGEST = re.compile(r"(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})")


@dataclass(frozen=True)
class Blob:
    """A file that must have this size and this digest (`sha256:HEX`)."""

    path: Path
    digest: str
    size_bytes: int

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest):
            raise DataError(f"not a digest that can be checked: {self.digest}")

    def read(self, limit_bytes: int) -> bytes:
        """The whole blob, verified; for documents, which are small."""
        if self.size_bytes > limit_bytes:
            raise DataError(f"blob has {self.size_bytes} bytes, at most {limit_bytes} expected: {self.path}")
        return b"".join(self.blocks())

    def blocks(self) -> Iterator[bytes]:
        """The blob's bytes; ends with a `DataError` when size or digest are not as promised."""
        algorithm, _, expected = self.digest.partition(":")
        hasher = hashlib.new(algorithm)
        try:
            with self.path.open("rb", buffering=0) as stream:
                size_bytes = os.fstat(stream.fileno()).st_size
                if size_bytes != self.size_bytes:
                    raise DataError(
                        f"blob has {size_bytes} bytes instead of {self.size_bytes}: {self.path}",
                        hint="copy the image again",
                    )
                while block := stream.read(_READ_BYTES):
                    hasher.update(block)
                    yield block
        except FileNotFoundError as error:
            raise NotFoundError(f"blob is missing: {self.path}", hint="copy the image again") from error
        except OSError as error:
            raise IoFailure(f"cannot read blob: {self.path}: {error.strerror}") from error
        if hasher.hexdigest() != expected:
            raise DataError(
                f"blob is damaged: {self.path}: its {algorithm} is {hasher.hexdigest()}",
                hint="copy the image again",
            )


def decompressed(blocks: Iterator[bytes], what: str) -> Iterator[bytes]:
    """Plain, gzip and zstd by their first bytes, since media types are often wrong; `what` names the blob."""
    first = next(blocks, b"")
    while len(first) < 4 and (more := next(blocks, b"")):
        first += more
    chained = _chain(first, blocks)
    if first.startswith(_GZIP_MAGIC):
        return _inflate(chained, what)
    if first.startswith(_ZSTD_MAGIC) or _SKIPPABLE_MAGIC.match(first):
        return _zstd(chained, what)
    return chained


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
    context = zstandard.ZstdDecompressor()
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
        raise DataError(f"zstd stream is damaged: {what}: {error}", hint="copy the image again") from error
    if not between:
        raise DataError(f"zstd stream is cut short: {what}", hint="copy the image again")


class Ahead:
    """Runs an iterator of blocks in a thread, a few blocks ahead; hashing and inflating release the GIL."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_BLOCKS_AHEAD)
        self._stopped = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(blocks,), name="blob reader", daemon=True)
        self._thread.start()

    def _run(self, blocks: Iterator[bytes]) -> None:
        last: BaseException | None = None
        try:
            for block in blocks:
                if not self._put(block):
                    return
        except BaseException as error:  # noqa: BLE001 - raised again where the blocks are used
            last = error
        self._put(last)

    def _put(self, item: bytes | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._ended:
            raise StopIteration
        item = self._queue.get()
        if isinstance(item, bytes):
            return item
        self._ended = True
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()


class ByteStream:
    """Takes exact numbers of bytes from an iterator of blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._block = b""
        self._position = 0

    def take(self, length: int) -> bytes:
        """`length` bytes, fewer only at the end of the stream."""
        end = self._position + length
        if end <= len(self._block):
            data = self._block[self._position : end]
            self._position = end
            return data
        return b"".join(self.pieces(length))

    def pieces(self, length: int) -> Iterator[bytes | memoryview]:
        """`length` bytes in pieces as they come, fewer only at the end of the stream."""
        while length:
            if self._position == len(self._block):
                self._block, self._position = next(self._blocks, b""), 0
                if not self._block:
                    return
            piece = memoryview(self._block)[self._position : self._position + length]
            self._position += len(piece)
            length -= len(piece)
            yield piece

    def skip(self, length: int) -> int:
        """Pass over `length` bytes; how many there were."""
        return sum(len(piece) for piece in self.pieces(length))

    def drain(self) -> None:
        """Read to the end, where digests are checked."""
        for _ in self._blocks:
            pass
