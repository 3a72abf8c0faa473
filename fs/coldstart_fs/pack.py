"""Writing packs: chunk bodies back to back, a table, a footer; named by the digest of the file."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import IO, TYPE_CHECKING

from coldstart_cli.errors import IoFailure
from coldstart_fs.chunk import RAW
from coldstart_fs.locator import RECORD, ChunkLocation

if TYPE_CHECKING:
    from blake3 import blake3 as Blake3  # noqa: N812 - a class with a lower-case name

FOOTER_MAGIC = b"CSPACK\0\0"
VERSION = 1
FOOTER = Struct("<8sIIQ8x")
FULL_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FinishedPack:
    """A pack in the scratch folder, complete, not yet published."""

    digest: bytes
    path: Path
    records: tuple[tuple[bytes, int, int], ...]
    """Digest, offset and size of every chunk in it."""


class PackWriter:
    """Collects chunks into pack files of a scratch folder; nothing of it is in the store yet."""

    def __init__(self, scratch: Path, *, full_bytes: int = FULL_BYTES) -> None:
        self._scratch = scratch
        self._full_bytes = full_bytes
        self._stream: IO[bytes] | None = None
        self._hasher: Blake3
        self._records: list[tuple[bytes, int, int]] = []
        self._offset = self._count = 0
        self.locations: dict[bytes, ChunkLocation] = {}
        self.finished: list[FinishedPack] = []

    def add(self, digest: bytes, data: bytes | memoryview) -> None:
        """Append one chunk; where it came to lie is known when its pack is finished."""
        if self._stream is None:
            self._begin()
        self._records.append((digest, self._offset, len(data)))
        self._write(data)
        if self._offset >= self._full_bytes:
            self.finish()

    def finish(self) -> None:
        """Complete the pack at hand, if there is one."""
        if self._stream is None:
            return
        table_offset = self._offset
        self._write(
            b"".join(
                RECORD.pack(digest, offset, size, size, 0, RAW, 0) for digest, offset, size in self._records
            )
            + FOOTER.pack(FOOTER_MAGIC, VERSION, len(self._records), table_offset)
        )
        path = Path(self._stream.name)
        try:
            self._stream.close()
        except OSError as error:
            raise IoFailure(f"cannot write `{path}`: {error.strerror}") from error
        pack = self._hasher.digest()
        for digest, offset, size in self._records:
            self.locations[digest] = ChunkLocation(pack, offset, size, size, RAW)
        self.finished.append(FinishedPack(pack, path, tuple(self._records)))
        self._stream, self._records, self._offset = None, [], 0

    def discard(self, unused: AbstractSet[bytes]) -> None:
        """Write those finished packs anew, without them, that hold chunks which nobody uses after all."""
        finished, self.finished = self.finished, []
        for pack in finished:
            if unused.isdisjoint(digest for digest, _, _ in pack.records):
                self.finished.append(pack)
                continue
            self._copy_used(pack, unused)
        self.finish()

    def _copy_used(self, pack: FinishedPack, unused: AbstractSet[bytes]) -> None:
        try:
            with pack.path.open("rb") as stream:
                for digest, offset, size in pack.records:
                    if digest in unused:
                        del self.locations[digest]
                    else:
                        stream.seek(offset)
                        self.add(digest, stream.read(size))
            pack.path.unlink()
        except OSError as error:
            raise IoFailure(f"cannot read `{pack.path}`: {error.strerror}") from error

    def close(self) -> None:
        """Let go of an unfinished pack; the scratch folder's owner removes the file."""
        if self._stream is not None:
            try:
                self._stream.close()
            except OSError:  # a full disk was already reported by the write that met it
                return
            finally:
                self._stream = None

    def _begin(self) -> None:
        from blake3 import blake3

        path = self._scratch / f"{self._count}.pack"
        self._count += 1
        try:
            self._stream = path.open("wb", buffering=1 << 20)
        except OSError as error:
            raise IoFailure(f"cannot write `{path}`: {error.strerror}") from error
        self._hasher = blake3()

    def _write(self, data: bytes | memoryview) -> None:
        assert self._stream is not None
        try:
            self._stream.write(data)
        except OSError as error:
            raise IoFailure(f"cannot write `{self._stream.name}`: {error.strerror}") from error
        self._hasher.update(data)
        self._offset += len(data)
