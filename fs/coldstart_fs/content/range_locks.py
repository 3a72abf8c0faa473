"""Locks on ranges of a file between processes: they belong to the open file, and end with their holder."""

from __future__ import annotations

import errno
import fcntl
from struct import Struct

_FLOCK = Struct("@hhqqi4x")
_BUSY = {errno.EAGAIN, errno.EACCES}


def lock_range(descriptor: int, offset: int, length: int) -> bool:
    """Take the range of a file that is open for writing, at once or not at all.

    A file system that knows no such locks is an `OSError`.
    """
    try:
        _set(descriptor, fcntl.F_WRLCK, offset, length)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def unlock_range(descriptor: int, offset: int, length: int) -> None:
    _set(descriptor, fcntl.F_UNLCK, offset, length)


def _set(descriptor: int, kind: int, offset: int, length: int) -> None:
    # with the process id 0, as locks of open files want it
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, 0, offset, length, 0))
