"""The local chunk cache: one file a chunk, named by its digest, trusted while it is what was checked."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock, get_ident

from coldstart_cli.files import make_directory
from coldstart_fs.chunk import chunk_digest
from coldstart_fs.kernel_mounts import file_system_of
from coldstart_fs.names import digest_text
from coldstart_fs.page_cache import read_at

# the format's version is part of the path: two versions of coldstart never read each other's files
_CHUNKS = "chunks-v1"
_QUARANTINE = "quarantine-v1"
_TEMPORARY = ".tmp"
_TEMPORARY_SECONDS = 3600.0
_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# written by coldstart, see https://bford.info/cachedir/\n"
)
_Stamp = tuple[int, int]


class ChunkCache:
    """Chunks of any image, shared by all mounts of a host. Thread-safe."""

    def __init__(self, folder: Path, log: Callable[[str], None] = lambda _: None) -> None:
        self.folder = folder
        self._log = log
        self.quarantined = 0
        self.store_failure: str | None = None
        self._chunks = str(folder / _CHUNKS)
        self._verified: dict[bytes, _Stamp] = {}
        # pids repeat in pid namespaces that share a cache
        self._writer = f"{os.getpid()}.{secrets.token_hex(4)}"
        self._folders: set[str] = set()
        self._in_memory = False
        self._lock = Lock()

    def prepare(self) -> None:
        """Make the folder and mark it so that backup programs leave it out."""
        make_directory(self.folder, mode=0o700)
        tag = self.folder / "CACHEDIR.TAG"
        if not tag.exists():
            with suppress(OSError):
                tag.write_bytes(_TAG)
        # a tmpfs knows no reading without waiting (Linux 6.18), and never waits for a disk
        self._in_memory = file_system_of(self.folder) == "tmpfs"
        self._sweep()

    def read(
        self, digest: bytes, offset: int, length: int, *, size_bytes: int, wait: bool
    ) -> bytes | bytearray | None:
        """A part of a chunk of `size_bytes`; None when it is not at hand. A damaged chunk goes to quarantine.

        Without `wait` only what the page cache holds is at hand, and a file that was verified as it is
        now is trusted; with `wait`, which may mean the disk, the chunk is verified.
        """
        try:
            descriptor = os.open(self._path(digest), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._forget(digest)
            return None
        try:
            stamp = _stamp(descriptor)
            if not wait and self._verified.get(digest) == stamp:
                part = read_at(descriptor, offset, length, wait=self._in_memory)
                return part if part is None or len(part) == length else None
            data = read_at(descriptor, 0, size_bytes + 1, wait=wait or self._in_memory)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        if data is None:
            return None
        if chunk_digest(data) != digest:
            self._quarantine(digest)
            return None
        with self._lock:
            self._verified[digest] = stamp
        return data[offset : offset + length]

    def put(self, digest: bytes, data: bytes | bytearray) -> bool:
        """Keep a verified chunk; a full or read-only cache is remembered for the status, never raised."""
        folder = self._path(digest)[:-65]
        try:
            try:
                stamp = self._write(digest, data)
            except FileNotFoundError:  # somebody cleared the cache under us
                self._folders.clear()
                stamp = self._write(digest, data)
        except OSError as error:
            self.store_failure = f"{error.strerror}: {folder}"
            return False
        self.store_failure = None
        with self._lock:
            self._verified[digest] = stamp
        return True

    def _write(self, digest: bytes, data: bytes | bytearray) -> _Stamp:
        path = self._path(digest)
        folder = path[:-65]
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        # not mkstemp, which costs as much as the writing
        temporary = f"{self._chunks}/{self._writer}.{get_ident()}{_TEMPORARY}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            written = os.write(descriptor, data)
            while written < len(data):
                written += os.write(descriptor, data[written:])
            # no fsync: after a power loss the first use finds out and fetches again
            os.rename(temporary, path)
            return _stamp(descriptor)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what servers that were killed left half-written."""
        long_ago = time.time() - _TEMPORARY_SECONDS
        with suppress(OSError):
            for entry in os.scandir(self._chunks):
                if entry.name.endswith(_TEMPORARY) and entry.stat(follow_symlinks=False).st_mtime < long_ago:
                    os.unlink(entry.path)

    def _path(self, digest: bytes) -> str:
        text = digest.hex()
        return f"{self._chunks}/{text[:2]}/{text}"

    def _forget(self, digest: bytes) -> None:
        with self._lock:
            self._verified.pop(digest, None)

    def _quarantine(self, digest: bytes) -> None:
        path, target = self._path(digest), self.folder / _QUARANTINE
        with self._lock:
            self.quarantined += 1
        self._log(f"cached chunk is damaged, fetching it again: {digest_text(digest)}")
        try:
            target.mkdir(parents=True, exist_ok=True)
            os.replace(path, target / os.path.basename(path))
        except OSError:
            with suppress(OSError):
                os.unlink(path)


def _stamp(descriptor: int) -> _Stamp:
    """What changes whenever somebody writes to a file or puts another in its place."""
    status = os.fstat(descriptor)
    return status.st_ino, status.st_ctime_ns
