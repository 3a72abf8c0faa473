"""Scratch folders for stores that are not on this host; what a killed writer left is removed by the next."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coldstart_cli.errors import CannotCreateError

_PREFIX = "coldstart-writing-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder below TMPDIR, else below /var/tmp, that ends with the block."""
    # not /tmp, which is often memory: a scratch folder may hold what is new in a whole image
    parent = Path(os.environ.get("TMPDIR") or "/var/tmp")  # noqa: S108 - the folder below is ours alone
    _sweep(parent)
    # named before it is made: a signal may come at any moment
    path = parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = -1
    try:
        try:
            path.mkdir(mode=0o700)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # for as long as we live
        except OSError as error:
            raise CannotCreateError(
                f"cannot create scratch folder: {path}: {error.strerror}",
                hint="set TMPDIR to a folder with room for what is to be written",
            ) from error
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Remove folders of ours whose writer is gone: nobody holds their lock."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else's, or gone already
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
