"""Reading what is in memory already: a wait for the disk belongs into a thread, a copy does not."""

from __future__ import annotations

import os


def read_in_memory(descriptor: int, offset: int, length: int) -> bytearray | None:
    """Exactly these bytes; None where a disk is needed, or the file ends.

    A file system that knows no such reading is an `OSError`.
    """
    buffer = bytearray(length)
    try:
        count = os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    return buffer if count == length else None
