"""The local chunk cache: one file a chunk, named by its digest, trusted only after it was checked once."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock, get_ident

from coldstart_cli.files import make_directory
from coldstart_fs.chunk import chunk_digest
from coldstart_fs.page_cache import read_at

# the format's version is part of the path: two versions of coldstart never read each other's files
_CHUNKS = "chunks-v1"
_QUARANTINE = "quarantine-v1"
_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# written by coldstart, see https://bford.info/cachedir/\n"
)


class ChunkCache:
    """Chunks of any image, shared by all mounts of a host. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.quarantined = 0
        self.store_failure: str | None = None
        self._chunks = str(folder / _CHUNKS)
        self._verified: set[bytes] = set()
        self._folders: set[str] = set()
        self._lock = Lock()

    def prepare(self) -> None:
        """Make the folder and mark it so that backup programs leave it out."""
        make_directory(self.folder, mode=0o700)
        tag = self.folder / "CACHEDIR.TAG"
        if not tag.exists():
            with suppress(OSError):
                tag.write_bytes(_TAG)

    def read(
        self, digest: bytes, offset: int, length: int, *, size_bytes: int, wait: bool
    ) -> bytes | bytearray | None:
        """A part of a chunk of `size_bytes`, verified whole at its first use; None when it is not at hand.

        Without `wait` only what the page cache holds is at hand. A damaged chunk goes to quarantine.
        """
        try:
            descriptor = os.open(self._path(digest), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._forget(digest)
            return None
        try:
            if digest in self._verified:
                data = read_at(descriptor, offset, length, wait=wait)
                if data is not None and len(data) == length:
                    return data
                if data is not None:  # cut short behind our back: the next reading verifies it anew
                    self._forget(digest)
                return None
            data = read_at(descriptor, 0, size_bytes + 1, wait=wait)
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
            self._verified.add(digest)
        return data[offset : offset + length]

    def put(self, digest: bytes, data: bytes | bytearray) -> bool:
        """Keep a verified chunk; a full or read-only cache is remembered for the status, never raised."""
        path = self._path(digest)
        folder = path[:-65]
        temporary = ""
        try:
            if folder not in self._folders:
                os.makedirs(folder, exist_ok=True)
                self._folders.add(folder)
            # not mkstemp, which costs as much as the writing; other threads and servers have other names
            temporary = f"{folder}/.{os.getpid()}.{get_ident()}.tmp"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                written = os.write(descriptor, data)
                while written < len(data):
                    written += os.write(descriptor, data[written:])
            finally:
                os.close(descriptor)
            # no fsync: after a power loss the first use finds out and fetches again
            os.rename(temporary, path)
        except OSError as error:
            if temporary:
                with suppress(OSError):
                    os.unlink(temporary)
            self._folders.discard(folder)
            self.store_failure = f"{error.strerror}: {folder}"
            return False
        self.store_failure = None
        with self._lock:
            self._verified.add(digest)
        return True

    def _path(self, digest: bytes) -> str:
        text = digest.hex()
        return f"{self._chunks}/{text[:2]}/{text}"

    def _forget(self, digest: bytes) -> None:
        with self._lock:
            self._verified.discard(digest)

    def _quarantine(self, digest: bytes) -> None:
        path, target = self._path(digest), self.folder / _QUARANTINE
        with self._lock:
            self.quarantined += 1
        try:
            target.mkdir(parents=True, exist_ok=True)
            os.replace(path, target / os.path.basename(path))
        except OSError:
            with suppress(OSError):
                os.unlink(path)
