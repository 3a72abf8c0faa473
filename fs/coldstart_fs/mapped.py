"""A read-only mmap of one of our files; what cannot be mapped is refused by name."""

from __future__ import annotations

import mmap
from pathlib import Path

from coldstart_cli.errors import DataError, IoFailure, NotFoundError
from coldstart_cli.version import __version__
from coldstart_fs.regular import open_regular


def map_file(path: Path, what: str, *, header_bytes: int) -> mmap.mmap:
    """Map `path` whole; a file shorter than its header is damaged."""
    try:
        with open(open_regular(path), "rb") as stream:
            stream.seek(0, 2)
            if stream.tell() < header_bytes:
                raise DataError(f"{what} is damaged: {path}: it is shorter than its header")
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise NotFoundError(f"{what} does not exist: {path}") from error
    except OSError as error:
        raise IoFailure(f"cannot read {what}: {path}: {error.strerror}") from error


def check_version(path: Path, what: str, found: int, known: int) -> None:
    """Refuse a file of a newer format by name."""
    if found > known:
        raise DataError(
            f"{what} has format {found}, coldstart {__version__} reads up to {known}: {path}",
            hint="install a newer coldstart",
        )
    if found != known:
        raise DataError(f"{what} is damaged: {path}: unknown format {found}")
