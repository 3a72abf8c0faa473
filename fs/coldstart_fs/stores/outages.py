"""A store that is down is found out once, for all processes of a host that have copies to go on with."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coldstart_cli.errors import UnreachableError
from coldstart_cli.own_folders import open_folder_beneath, open_own_beneath
from coldstart_fs.format.chunk import chunk_digest
from coldstart_fs.stores import answers
from coldstart_fs.stores.store import Store

_FOLDER = "outages-v1"
KNOWN_SECONDS = 10.0


@contextmanager
def asking(store: Store, cache: Path, *, known: bool) -> Iterator[Store]:
    """The store to ask. Who has a copy asks once, and nobody that did not answer a moment ago.

    Without a copy the store is asked with all patience; either way, what comes of it is noted for the others.
    """
    note = cache / _FOLDER / chunk_digest(store.url.encode())[:8].hex()
    if known and _is_fresh(note):
        raise answers.unreachable(store.url, answers.NO_ANSWER_BEFORE)
    try:
        yield store.hasty() if known else store
    except UnreachableError:
        with suppress(OSError):  # a cache that nobody has made yet is not made for this
            os.close(open_folder_beneath(cache, Path(_FOLDER), create=True))
            descriptor = open_own_beneath(cache, note.relative_to(cache), os.O_RDWR | os.O_CREAT)
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)
        raise
    with suppress(OSError):
        os.unlink(note)


def _is_fresh(note: Path) -> bool:
    try:
        age = time.time() - note.stat().st_mtime
    except OSError:
        return False
    return 0 <= age < KNOWN_SECONDS
