"""Writing packs: chunk bodies back to back, a table, a footer; named by the digest of the file."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

from coldstart_cli.errors import DataError
from coldstart_fs.format.chunk import RAW, Compression, encode_chunk
from coldstart_fs.format.gathered import GatheredWriter
from coldstart_fs.format.locator import RECORD

if TYPE_CHECKING:
    from blake3 import blake3 as Blake3  # noqa: N812 - a class with a lower-case name

FOOTER_MAGIC = b"CSPACK\0\0"
VERSION = 1
FOOTER = Struct("<8sIIQ8x")
FULL_BYTES = 64 << 20
_Body = bytes | memoryview


@dataclass(frozen=True, slots=True)
class FinishedPack:
    """A pack in the scratch folder, complete, not yet published; `records` is its table."""

    digest: bytes
    path: Path
    size_bytes: int
    records: bytes | bytearray


def pack_body_bytes(end: bytes, size_bytes: int) -> int:
    """How many bytes of chunks a pack of this size holds, by its footer, the last bytes of it."""
    if len(end) < FOOTER.size:
        raise DataError("it is shorter than a footer")
    magic, version, records, table = FOOTER.unpack(end)
    if (magic, version) != (FOOTER_MAGIC, VERSION):
        raise DataError("it does not end as a pack")
    if table + records * RECORD.size + FOOTER.size != size_bytes:
        raise DataError(f"it has {size_bytes} bytes, not what its footer says")
    return int(table)


def pack_end(body_bytes: int, records: bytes | bytearray) -> bytes:
    """What follows the chunks of a pack: its table and its footer."""
    return bytes(records) + FOOTER.pack(FOOTER_MAGIC, VERSION, len(records) // RECORD.size, body_bytes)


class PackWriter:
    """Collects chunks into pack files of a scratch folder; nothing of it is in the store yet.

    The order of `add` is the order in the packs. Compression runs in threads, a few chunks ahead.
    """

    def __init__(
        self, scratch: Path, *, full_bytes: int = FULL_BYTES, compression: Compression | None = None
    ) -> None:
        self._scratch = scratch
        self._full_bytes = full_bytes
        self._writer: GatheredWriter | None = None
        self._hasher: Blake3
        self._records = bytearray()
        self._count = 0
        self._finished: list[FinishedPack] = []
        self._compression = compression
        threads = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(threads, "compress") if compression else None
        self._most_ahead = 8 * threads
        self._ahead: deque[tuple[bytes, int, Future[tuple[int, _Body]]]] = deque()

    def add(self, digest: bytes, data: _Body) -> None:
        """Append one chunk; `data` may not change afterwards."""
        if self._pool is None or self._compression is None:
            self._append(digest, len(data), RAW, data)
            return
        encoded = self._pool.submit(encode_chunk, data, self._compression)
        self._ahead.append((digest, len(data), encoded))
        if len(self._ahead) > self._most_ahead:
            self._append_next()

    def cut(self) -> None:
        """Complete the pack at hand, if there is one."""
        while self._ahead:
            self._append_next()
        self._finish()

    def taken(self) -> list[FinishedPack]:
        """The packs that were completed since the last call, in order."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Let go of what is unfinished; the scratch folder's owner removes the file."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _append_next(self) -> None:
        digest, size_bytes, encoded = self._ahead.popleft()
        encoding, body = encoded.result()
        self._append(digest, size_bytes, encoding, body)

    def _append(self, digest: bytes, size_bytes: int, encoding: int, body: _Body) -> None:
        writer = self._writer or self._begin()
        self._hasher.update(body)
        offset = writer.write(body)
        self._records += RECORD.pack(digest, offset, len(body), size_bytes, 0, encoding, 0)
        if writer.size_bytes >= self._full_bytes:
            self._finish()

    def _begin(self) -> GatheredWriter:
        from blake3 import blake3

        self._writer = GatheredWriter(self._scratch / f"{self._count}.pack")
        self._count += 1
        self._hasher = blake3()
        return self._writer

    def _finish(self) -> None:
        writer, records = self._writer, self._records
        if writer is None:
            return
        end = pack_end(writer.size_bytes, records)
        self._hasher.update(end)
        writer.write(end)
        writer.flush()
        self._finished.append(FinishedPack(self._hasher.digest(), writer.path, writer.size_bytes, records))
        writer.close()
        self._writer, self._records = None, bytearray()
