"""Regular files and nothing else: a FIFO, a device or a dead link is neither waited for nor replaced."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from pathlib import Path

from coldstart_cli.errors import CannotCreateError

# of the small JSON files that this tool keeps for itself
STATE_FILE_BYTES = 16 << 20


class NotRegularError(OSError):
    """Something else stands where a regular file should."""

    def __init__(self, path: Path, what: str = "not a regular file") -> None:
        super().__init__(errno.EINVAL, what, str(path))


def open_regular(path: Path) -> int:
    """A descriptor to read from. FileNotFoundError only where nothing has the name, also no dead link."""
    try:
        # looked at first: already to open a device may do something
        if stat.S_ISREG(os.stat(path).st_mode):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
    except FileNotFoundError:
        for place in (path, *path.parents):
            if os.path.lexists(place):
                if place.is_symlink() and not place.exists():
                    raise NotRegularError(path, f"a link to nothing: {place}") from None
                break
        raise
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotRegularError(path)


def read_regular(path: Path, most_bytes: int = STATE_FILE_BYTES) -> bytes:
    """A file whole; EFBIG where it holds more than `most_bytes`."""
    with open(open_regular(path), "rb") as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", str(path))
    return content


def require_output(path: Path) -> None:
    """Refuse a place for an output that is no new name in a folder and no regular file.

    Root would put a file in the place of a device or a link, and make the folders of a mistyped name.
    """
    parent = path.absolute().parent
    if not parent.is_dir():
        what = "not a folder" if os.path.lexists(parent) else "folder does not exist"
        raise CannotCreateError(
            f"cannot write `{path}`: {what}: {parent}", hint=f"mkdir -p {shlex.quote(str(parent))}"
        )
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotCreateError(f"cannot write `{path}`: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        what = "a link" if stat.S_ISLNK(mode) else "not a regular file"
        raise CannotCreateError(
            f"cannot write `{path}`: it is {what}", hint="name a regular file, or a new one"
        )
