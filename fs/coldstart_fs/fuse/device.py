"""`/dev/fuse`: mounting on it as root with mount(2), as a user through fusermount3."""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import socket
import stat
from pathlib import Path

from coldstart_cli.errors import (
    BusyError,
    ColdstartError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UnavailableError,
)
from coldstart_cli.process import ProgramFailedError, find_program, run

_DEVICE = "/dev/fuse"
_SUBTYPE = "coldstart"
_ROOT_OPTIONS = "user_id=0,group_id=0,default_permissions,allow_other"
_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NODEV = 4
_FUSERMOUNT_SECONDS = 20.0
_libc = ctypes.CDLL(None, use_errno=True)


def mount_fuse(mountpoint: str, *, source: str, suid: bool = False, dev: bool = False) -> int:
    """Mount read-only at a folder, `source` shown in the mount table; the descriptor of the new connection.

    The mount lives as long as any copy of the descriptor. Nothing answers before INIT was.
    """
    if os.geteuid() == 0:
        return _mount(mountpoint, source, suid=suid, dev=dev)
    if suid or dev:
        raise PermissionNeededError("set-user-ID files and devices need root", hint="run with sudo")
    return _mount_as_user(mountpoint, source)


def unmount_as_user(mountpoint: str) -> None:
    """Let go of a mount of one's own, also while it is in use."""
    run([find_program("fusermount3"), "-u", "-z", "--", mountpoint], deadline_seconds=_FUSERMOUNT_SECONDS)


def _mount(mountpoint: str, source: str, *, suid: bool, dev: bool) -> int:
    descriptor = _open_device()
    try:
        options = f"fd={descriptor},rootmode={_kind_of(mountpoint):o},{_ROOT_OPTIONS}"
        flags = _MS_RDONLY | (0 if suid else _MS_NOSUID) | (0 if dev else _MS_NODEV)
        _mount_now(source, mountpoint, flags, options)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _mount_now(source: str, mountpoint: str, flags: int, options: str) -> None:
    kind = f"fuse.{_SUBTYPE}".encode()
    if _libc.mount(os.fsencode(source), os.fsencode(mountpoint), kind, flags, options.encode()):
        raise _failure(mountpoint, ctypes.get_errno())


def _open_device() -> int:
    try:
        return os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENODEV, errno.ENXIO}:
            raise UnavailableError(
                f"this host has no FUSE: {_DEVICE} is absent", hint="modprobe fuse"
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM}:
            raise PermissionNeededError(
                f"cannot open {_DEVICE}", hint=f"run as root, or open it to users: chmod 666 {_DEVICE}"
            ) from error
        raise IoFailure(f"cannot open {_DEVICE}: {error.strerror}") from error


def _kind_of(mountpoint: str) -> int:
    try:
        return stat.S_IFMT(os.stat(mountpoint).st_mode)
    except OSError as error:
        raise _failure(mountpoint, error.errno or errno.EIO) from error


def _mount_as_user(mountpoint: str, source: str) -> int:
    """fusermount3 mounts and sends the descriptor back over a socket."""
    options = ["ro", "default_permissions", f"fsname={_escaped(source)}", f"subtype={_SUBTYPE}"]
    if _others_are_allowed():
        options.append("allow_other")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        try:
            run(
                [find_program("fusermount3"), "-o", ",".join(options), "--", mountpoint],
                deadline_seconds=_FUSERMOUNT_SECONDS,
                environment={"_FUSE_COMMFD": str(theirs.fileno())},
                pass_descriptors=[theirs.fileno()],
            )
        except ProgramFailedError as error:
            text = f"cannot mount: {mountpoint}: {error.completed.error_text}"
            raise PermissionNeededError(text, hint="run as root") from error
        theirs.close()
        ours.settimeout(_FUSERMOUNT_SECONDS)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        raise IoFailure(f"cannot mount: {mountpoint}: fusermount3 sent no descriptor")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(",", "\\,")


def _others_are_allowed() -> bool:
    """Whether fusermount3 lets users mount for others too."""
    try:
        lines = Path("/etc/fuse.conf").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def _failure(mountpoint: str, number: int) -> ColdstartError:
    text = f"cannot mount: {mountpoint}: {os.strerror(number)}"
    if number in {errno.EPERM, errno.EACCES}:
        return PermissionNeededError(text, hint="run as root")
    if number == errno.ENOENT:
        return NotFoundError(text, hint=f"mkdir -p {shlex.quote(mountpoint)}")
    if number == errno.ENODEV:
        return UnavailableError(text, hint="modprobe fuse")
    if number in {errno.EBUSY, errno.ENOTCONN}:
        return BusyError(text, hint=f"umount -l {shlex.quote(mountpoint)}")
    return IoFailure(text)
