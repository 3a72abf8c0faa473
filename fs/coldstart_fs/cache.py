"""The local chunk cache: one file a chunk, named by its digest, trusted only after it was checked once."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock

from coldstart_cli.files import make_directory
from coldstart_fs.chunk import chunk_digest

# the format's version is part of the path: two versions of coldstart never read each other's files
_CHUNKS = "chunks-v1"
_QUARANTINE = "quarantine-v1"
_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# written by coldstart, see https://bford.info/cachedir/\n"
)
# the cache is of no use any more, but reads go on: serve through
_CANNOT_STORE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}


class ChunkCache:
    """Chunks of any image, shared by all mounts of a host. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.quarantined = 0
        self.store_failure: str | None = None
        self._verified: set[bytes] = set()
        self._lock = Lock()

    def prepare(self) -> None:
        """Make the folder and mark it so that backup programs leave it out."""
        make_directory(self.folder, mode=0o700)
        tag = self.folder / "CACHEDIR.TAG"
        if not tag.exists():
            with suppress(OSError):
                tag.write_bytes(_TAG)

    def is_verified(self, digest: bytes) -> bool:
        """Whether this process has seen the right bytes under this name."""
        return digest in self._verified

    def read_verified(self, digest: bytes, offset: int, length: int) -> bytes | None:
        """A part of a chunk that was verified before; None when it is gone."""
        try:
            descriptor = os.open(self._path(digest), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._forget(digest)
            return None
        try:
            data = os.pread(descriptor, length, offset)
        except OSError:
            data = b""
        finally:
            os.close(descriptor)
        if len(data) != length:  # truncated behind our back
            self._forget(digest)
            return None
        return data

    def load(self, digest: bytes) -> bytes | None:
        """A whole chunk, verified now; a damaged one goes to quarantine and counts as absent."""
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if chunk_digest(data) != digest:
            self._quarantine(path)
            return None
        with self._lock:
            self._verified.add(digest)
        return data

    def put(self, digest: bytes, data: bytes) -> None:
        """Keep a verified chunk; a full or read-only cache is remembered for the status, not raised."""
        path = self._path(digest)
        temporary: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            # no fsync: after a power loss the first use finds out and fetches again
            os.replace(temporary, path)
        except OSError as error:
            if temporary is not None:
                with suppress(OSError):
                    os.unlink(temporary)
            if error.errno not in _CANNOT_STORE:
                raise
            self.store_failure = f"{error.strerror}: {path.parent}"
            return
        with self._lock:
            self._verified.add(digest)

    def _path(self, digest: bytes) -> Path:
        text = digest.hex()
        return self.folder / _CHUNKS / text[:2] / text

    def _forget(self, digest: bytes) -> None:
        with self._lock:
            self._verified.discard(digest)

    def _quarantine(self, path: Path) -> None:
        self.quarantined += 1
        target = self.folder / _QUARANTINE
        try:
            target.mkdir(parents=True, exist_ok=True)
            os.replace(path, target / path.name)
        except OSError:
            with suppress(OSError):
                path.unlink()
