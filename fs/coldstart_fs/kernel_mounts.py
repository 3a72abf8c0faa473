"""mount(2) and umount2(2): the system calls themselves, since names may hold any byte but NUL."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from coldstart_cli.errors import BusyError, ColdstartError, IoFailure, PermissionNeededError, UnavailableError
from coldstart_cli.files import unescape_mountinfo

_MS_NODEV = 4
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_libc = ctypes.CDLL(None, use_errno=True)


def mount_overlay(lower: Path, upper: Path, work: Path, mountpoint: Path, *, dev: bool) -> None:
    """A writable overlay of `upper` over `lower`; names with separators are escaped as overlayfs wants it."""
    options = ",".join(
        f"{key}={_escape(path)}"
        for key, path in (("lowerdir", lower), ("upperdir", upper), ("workdir", work))
    )
    flags = 0 if dev else _MS_NODEV
    if _libc.mount(
        b"coldstart", os.fsencode(mountpoint), b"overlay", flags, options.encode("utf-8", "surrogateescape")
    ):
        raise _failure("cannot mount overlay", mountpoint, upper)


def mount_fusectl(mountpoint: Path) -> None:
    """The control file system of FUSE connections, where nobody has mounted it."""
    if _libc.mount(b"none", os.fsencode(mountpoint), b"fusectl", 0, None):
        raise _failure("cannot mount fusectl", mountpoint)


def unmount_now(mountpoint: Path, *, detach: bool = False) -> None:
    """Unmount; `detach` lets go at once and finishes when the last user is gone."""
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if detach else 0)
    if _libc.umount2(os.fsencode(mountpoint), flags):
        raise _failure("cannot unmount", mountpoint)


def filesystem_at(mountpoint: Path) -> tuple[str, str] | None:
    """Type and source of what is mounted exactly there, topmost first, from the mount table alone."""
    wanted = os.path.abspath(mountpoint)
    found = None
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        if unescape_mountinfo(left.split()[4]) == wanted:
            kind, source = right.split(" ")[:2]
            found = (kind, unescape_mountinfo(source))
    return found


def _escape(path: Path) -> str:
    text = str(path)
    for character in "\\:,":
        text = text.replace(character, "\\" + character)
    return text


def _failure(what: str, mountpoint: Path, detail: Path | None = None) -> ColdstartError:
    number = ctypes.get_errno()
    message = f"{what}: {mountpoint}: {os.strerror(number)}"
    if number in {errno.EPERM, errno.EACCES}:
        return PermissionNeededError(message, hint="run as root")
    if number == errno.EBUSY:
        return BusyError(message, hint=f"end what uses it: fuser -vm {mountpoint}")
    if number == errno.ENODEV:
        return UnavailableError(message, hint="load the kernel module: modprobe overlay")
    if number == errno.EINVAL and detail is not None:
        return UnavailableError(
            message, hint=f"put the writable layer on ext4, xfs or tmpfs: {detail} cannot be one"
        )
    return IoFailure(message)
