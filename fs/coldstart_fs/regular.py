"""Opening files of a store: what is no regular file is refused, not waited for and not read without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from coldstart_cli.errors import DataError

SMALL_DOCUMENT_BYTES = 1 << 20


def open_regular(path: Path) -> int:
    """A descriptor to read from; failures of the system come as they are."""
    # looked at first: already to open a device may do something
    if stat.S_ISREG(os.stat(path).st_mode):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise DataError(f"not a regular file: {path}", hint="remove it, and index the image again")


def read_regular(path: Path, *, most_bytes: int | None = None) -> bytes:
    """A file whole; one with more than `most_bytes` is refused."""
    with open(open_regular(path), "rb") as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        if most_bytes is not None and size_bytes > most_bytes:
            raise DataError(f"file has {size_bytes} bytes, at most {most_bytes} can be right: {path}")
        return stream.read(-1 if most_bytes is None else most_bytes)
