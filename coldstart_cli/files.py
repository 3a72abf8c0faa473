"""Files that survive a crash: atomic replacement, atomic publication of folders, flock locks."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from coldstart_cli.errors import BusyError, CannotCreateError, IoFailure, PermissionNeededError
from coldstart_cli.regular import open_own

_LOCK_POLL_SECONDS = 0.05


def fsync_directory(path: Path) -> None:
    """Make renames inside `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, *, mode: int = 0o755) -> Path:
    """Create `path` and its parents; refuse by name when that cannot be done."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except PermissionError as error:
        raise PermissionNeededError(
            f"cannot create folder: {path}", hint="run as root, or choose another folder"
        ) from error
    except OSError as error:
        raise CannotCreateError(f"cannot create folder: {path}: {error.strerror}") from error
    return path


def make_private(path: Path) -> Path:
    """Create a folder for us alone; one of ours that others may look into is closed to them."""
    make_directory(path.parent)
    make_directory(path, mode=0o700)
    with suppress(OSError):  # somebody else's, or of a file system without modes
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_uid == os.geteuid() and status.st_mode & 0o077:
                os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
    return path


@contextmanager
def atomic_writer(path: Path, *, mode: int = 0o644, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yield a file that becomes `path` only when the block ends without an exception.

    One that is not `durable` may have lost its content after a power failure: its readers can tell.
    """
    make_directory(path.parent)
    try:
        # only the beginning of the name: a name may already be as long as the file system takes
        prefix = f".{path.name[:32]}."
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=".tmp")
    except PermissionError as error:
        raise PermissionNeededError(
            f"cannot write `{path}`: {error.strerror}", hint="run as root, or choose another folder"
        ) from error
    except OSError as error:
        raise CannotCreateError(f"cannot write `{path}`: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise IoFailure(f"cannot write `{path}`: {error.strerror}") from error
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    if durable:
        fsync_directory(path.parent)


def atomic_write(path: Path, content: bytes | bytearray, *, mode: int = 0o644, durable: bool = True) -> None:
    """Replace `path` with `content` whole: temp file, fsync, rename, fsync of the folder."""
    with atomic_writer(path, mode=mode, durable=durable) as stream:
        stream.write(content)


def remove_tree(path: Path) -> None:
    """Remove a folder of ours; one that is already gone is fine. Never crosses a mount point."""
    if not path.exists():
        return
    if mounts := mounts_below(path):
        raise BusyError(
            f"cannot remove `{path}`: something is mounted below it: {mounts[0]}",
            hint=f"umount {mounts[0]}",
        )
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise IoFailure(f"cannot remove `{path}`: {error.strerror or error}") from error


def mounts_below(path: Path) -> list[str]:
    """Mount points at or below `path`, deepest first, without touching the file systems themselves."""
    # the table has no symlinks; the last name may be a mount that hangs, and is not asked
    absolute = Path(os.path.abspath(path))
    prefix = os.path.join(os.path.realpath(absolute.parent), absolute.name)
    found = []
    for fields in mountinfo():
        point = unescape_mountinfo(fields[4])
        if point == prefix or point.startswith(prefix.rstrip("/") + "/"):
            found.append(point)
    return sorted(found, key=len, reverse=True)


def mountinfo(table: Path = Path("/proc/self/mountinfo")) -> Iterator[list[str]]:
    """The fields of each mount, still escaped; see `unescape_mountinfo`."""
    # by b"\n" and " " alone: names may hold every other character that str.split takes for a separator
    for line in table.read_bytes().split(b"\n"):
        if line:
            yield line.decode("utf-8", "surrogateescape").split(" ")


def unescape_mountinfo(field: str) -> str:
    """A field of mountinfo with its octal escapes (blank, tab, newline, backslash) undone."""
    return (
        field.encode("utf-8", "surrogateescape")
        .decode("unicode_escape")
        .encode("latin-1")
        .decode("utf-8", "surrogateescape")
    )


@contextmanager
def exclusive_lock(path: Path, *, wait_seconds: float = 0.0, shared: bool = False) -> Iterator[None]:
    """Hold an flock on `path`; raise `BusyError` naming the holder when it is not free in time.

    Its holder may remove the file: who waited for it then takes a new one.
    """
    make_directory(path.parent)
    deadline = time.monotonic() + wait_seconds
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        descriptor = _open_lock(path)
        try:
            _flock(descriptor, path, operation, deadline)
            if not _is_file(descriptor, path):
                continue
            if not shared:
                command = " ".join(sys.argv)[:512]
                _name_holder(descriptor, f"pid {os.getpid()}: {command}\n")
            try:
                yield
            finally:
                if not shared:  # the next one to wait, for a reader, must not be told about us
                    _name_holder(descriptor, "")
            return
        finally:
            # a child that another thread has forked, and that is not yet another program, has the lock too
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _open_lock(path: Path) -> int:
    try:
        # close-on-exec keeps a child from holding the lock after we are gone; who may open it could hold it
        return open_own(path, os.O_RDWR | os.O_CREAT, owner=path.parent.stat().st_uid)
    except PermissionError as error:
        raise PermissionNeededError(
            f"cannot create lock `{path}`: {error.strerror}", hint="run as root, or choose another run_dir"
        ) from error
    except OSError as error:
        raise CannotCreateError(f"cannot create lock `{path}`: {error.strerror}") from error


def _flock(descriptor: int, path: Path, operation: int, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EINTR}:
                raise IoFailure(f"cannot lock `{path}`: {error.strerror}") from error
            if time.monotonic() >= deadline:
                raise BusyError(
                    f"locked by another process: {_holder(descriptor)}",
                    hint="wait for it, or pass `--lock-wait SECONDS`",
                ) from error
        time.sleep(_LOCK_POLL_SECONDS)


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    with suppress(OSError):
        if holder := os.pread(descriptor, 4096, 0).decode("utf-8", "replace").strip():
            return holder
    with suppress(OSError, ValueError):  # who shares a lock, or took it with another program
        if pid := _pid_of_holder(descriptor):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
            return f"pid {pid}: {' '.join(command.split(chr(0))).strip()[:512]}"
    return "unknown process"


def _pid_of_holder(descriptor: int) -> int:
    """The first process that the kernel names for an flock on the file; 0 where it names none of ours."""
    status = os.fstat(descriptor)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in Path("/proc/locks").read_text("ascii", "replace").splitlines():
        fields = line.split()
        if "->" not in fields and fields[1] == "FLOCK" and fields[5] == file:
            return max(0, int(fields[4]))
    return 0


def _name_holder(descriptor: int, text: str) -> None:
    """Say in the lock file who holds it; only a message needs it, so a full disk is no failure."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode("utf-8", "replace"), 0)
