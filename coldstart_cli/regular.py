"""Regular files and nothing else: a FIFO, a device or a dead link is neither waited for nor replaced."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from pathlib import Path

from coldstart_cli.errors import CannotCreateError, DataError, NotFoundError

# of the small JSON files that this tool keeps for itself
STATE_FILE_BYTES = 16 << 20
# of what people write by hand
INPUT_BYTES = 4 << 20


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


# done by the first of two openings
_ONCE = os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_own(
    path: Path | str, flags: int, mode: int = 0o600, *, dir_fd: int | None = None, owner: int = 0
) -> int:
    """A descriptor of a regular file of ours, root's or `owner`'s, open to others as `mode` says at most.

    `flags` are those of `os.open`. No link is followed, and what has a second name is refused: where others
    may make names, root would write to the file of their choice. Raises `OSError`.
    """
    wanted = flags & ~os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(path, wanted, mode, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegularError(Path(path), "a link, which is not followed") from None
        if error.errno == errno.ENXIO:  # a socket, or a FIFO that nobody reads
            raise NotRegularError(Path(path)) from None
        raise
    try:
        _require_own(path, os.fstat(descriptor), {0, os.geteuid(), owner})
        if flags & os.O_CREAT:
            _close_to_others(descriptor, 0o077 & ~mode)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        # again, without O_NOFOLLOW: criu records the flags of a container's output, and opens with them
        # what is a link by then
        return os.open(f"/proc/self/fd/{descriptor}", flags & ~_ONCE | os.O_CLOEXEC)
    finally:
        os.close(descriptor)


def _require_own(path: Path | str, status: os.stat_result, owners: set[int]) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(Path(path))
    if status.st_uid not in owners:
        raise NotRegularError(Path(path), f"a file of another user, uid {status.st_uid}")
    if status.st_nlink > 1:
        raise NotRegularError(Path(path), "a file with more than one name")


def _close_to_others(descriptor: int, unwanted: int) -> None:
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and status.st_mode & unwanted:
        os.fchmod(descriptor, status.st_mode & 0o7777 & ~unwanted)


def read_regular(path: Path, most_bytes: int = STATE_FILE_BYTES) -> bytes:
    """A file whole; EFBIG where it holds more than `most_bytes`."""
    with open(open_regular(path), "rb") as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", str(path))
    return content


def read_input(path: Path, what: str, most_bytes: int = INPUT_BYTES) -> bytes:
    """A file that an operator names, whole; `what` it is to be, in words, begins the refusal."""
    try:
        return read_regular(path, most_bytes)
    except FileNotFoundError as error:
        raise NotFoundError(f"{what} does not exist: {path}") from error
    except OSError as error:
        if isinstance(error, NotRegularError) or error.errno == errno.EFBIG:
            raise DataError(f"{what} cannot be used: {path}: {error.strerror}") from error
        raise NotFoundError(f"cannot read {what}: {path}: {error.strerror}") from error


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
