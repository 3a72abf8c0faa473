"""Reading what is in memory already: a wait for the disk belongs into a thread, a copy does not."""

from __future__ import annotations

import os


def read_at(descriptor: int, offset: int, length: int, *, wait: bool) -> bytes | bytearray | None:
    """Up to `length` bytes, less only at the end of the file; without `wait` None where a disk is needed."""
    if wait:
        return os.pread(descriptor, length, offset)
    buffer = bytearray(length)
    try:
        count = os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError:  # a file system that knows no such reading: None sends the caller to a thread
        return None
    # less than asked for is the end of the file, or where the page cache ends
    if count < length and count < os.fstat(descriptor).st_size - offset:
        return None
    del buffer[count:]
    return buffer
