"""Opening files of a store: what is no regular file is refused, not waited for and not read without end."""

from __future__ import annotations

import os
from pathlib import Path

from coldstart_cli import regular
from coldstart_cli.errors import DataError

SMALL_DOCUMENT_BYTES = 1 << 20


def open_regular(path: Path) -> int:
    """A descriptor to read from; failures of the system come as they are."""
    try:
        return regular.open_regular(path)
    except regular.NotRegularError as error:
        raise DataError(f"{error.strerror}: {path}", hint="remove it, and index the image again") from error


def read_regular(path: Path, *, most_bytes: int | None = None) -> bytes:
    """A file whole; one with more than `most_bytes` is refused."""
    with open(open_regular(path), "rb") as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        if most_bytes is not None and size_bytes > most_bytes:
            raise DataError(f"file has {size_bytes} bytes, at most {most_bytes} can be right: {path}")
        return stream.read(-1 if most_bytes is None else most_bytes)
