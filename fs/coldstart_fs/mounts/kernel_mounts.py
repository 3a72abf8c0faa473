"""mount(2), umount2(2) and the mount table: the calls themselves, since names may hold any byte but NUL."""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import BusyError, ColdstartError, IoFailure, PermissionNeededError, UnavailableError
from coldstart_cli.files import mountinfo, unescape_mountinfo

IMAGE_SOURCE_PREFIX = "coldstart:"
_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_REMOUNT = 32
_MS_BIND = 4096
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class KernelMount:
    """One line of the mount table, as far as it matters here."""

    point: str
    kind: str
    source: str
    device: int
    number: int = 0
    parent: int = 0
    options: str = ""
    """Those of the file system itself."""

    @property
    def is_image(self) -> bool:
        """Whether it is one of ours: the FUSE file system of an image, or the overlay on top."""
        return self.source.startswith(IMAGE_SOURCE_PREFIX)


def mount_at(mountpoint: Path | str) -> KernelMount | None:
    """What is mounted exactly there, topmost first, from the mount table alone."""
    wanted = os.path.abspath(mountpoint)
    found = None
    for mount in mount_table():
        if mount.point == wanted:
            found = mount
    return found


def file_system_of(path: Path) -> str | None:
    """The type of the file system that an existing path lies on."""
    device = os.stat(path).st_dev
    return next((mount.kind for mount in mount_table() if mount.device == device), None)


def real_mountpoint(path: Path) -> Path:
    """`path` with symlinks followed, without touching a mount there that may be dead or hung."""
    name = path.name
    if name not in {"", "..", "."}:
        place = Path(os.path.realpath(path.parent)) / name
        if mount_at(place) is not None:
            return place
    return Path(os.path.realpath(path))


def mount_overlay(
    lower: Path,
    upper: Path,
    work: Path,
    mountpoint: Path,
    *,
    dev: bool,
    suid: bool = True,
    source: str = "coldstart",
) -> None:
    """A writable overlay of `upper` over `lower`; separators in names are escaped as overlayfs wants it."""
    options = ",".join(
        f"{key}={_escape(path)}"
        for key, path in (("lowerdir", lower), ("upperdir", upper), ("workdir", work))
    )
    # flags of the lower mount do not reach through an overlay: they are the overlay's own
    flags = (0 if suid else _MS_NOSUID) | (0 if dev else _MS_NODEV)
    if _libc.mount(
        source.encode(),
        os.fsencode(mountpoint),
        b"overlay",
        flags,
        options.encode("utf-8", "surrogateescape"),
    ):
        raise _failure("cannot mount overlay", mountpoint, upper)


def bind_mount(source: Path, mountpoint: Path, *, suid: bool, dev: bool) -> None:
    """Make a read-only folder tree visible at another place, with flags of its own."""
    flags = _MS_RDONLY | (0 if suid else _MS_NOSUID) | (0 if dev else _MS_NODEV)
    if _libc.mount(os.fsencode(source), os.fsencode(mountpoint), None, _MS_BIND, None):
        raise _failure("cannot mount", mountpoint)
    # the first call takes over the flags of the source, and no others
    if _libc.mount(None, os.fsencode(mountpoint), None, _MS_BIND | _MS_REMOUNT | flags, None):
        failure = _failure("cannot mount", mountpoint)
        unmount_now(mountpoint, detach=True)
        raise failure


def mount_fusectl(mountpoint: Path) -> None:
    """The control file system of FUSE connections."""
    if _libc.mount(b"none", os.fsencode(mountpoint), b"fusectl", 0, None):
        raise _failure("cannot mount fusectl", mountpoint)


def unmount_now(mountpoint: Path, *, detach: bool = False) -> None:
    """Unmount; `detach` lets go at once and finishes when the last user is gone."""
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if detach else 0)
    if _libc.umount2(os.fsencode(mountpoint), flags):
        raise _failure("cannot unmount", mountpoint)


def covering(mountpoint: Path | str) -> KernelMount | None:
    """What lies over an image that is mounted there, so that its path leads elsewhere."""
    wanted = os.path.abspath(mountpoint)
    table = mount_table()
    numbers = {mount.number: mount for mount in table}
    ours = [mount for mount in table if mount.point == wanted and mount.is_image]
    if not ours:
        return None
    below: set[int] = set()  # ours, and what it stands on
    step: KernelMount | None = ours[-1]
    while step is not None and step.number not in below:
        below.add(step.number)
        step = numbers.get(step.parent)
    return next(
        (
            mount
            for mount in table
            if mount.number not in below
            and mount.parent in below
            and (mount.point == wanted or wanted.startswith(mount.point.rstrip("/") + "/"))
        ),
        None,
    )


def mount_table(table: Path = Path("/proc/self/mountinfo")) -> list[KernelMount]:
    """All mounts that a process sees, as a table of the kernel lists them."""
    found = []
    for fields in mountinfo(table):
        separator = fields.index("-", 6)
        major, minor = fields[2].split(":")
        found.append(
            KernelMount(
                point=unescape_mountinfo(fields[4]),
                kind=fields[separator + 1],
                source=unescape_mountinfo(fields[separator + 2]),
                device=os.makedev(int(major), int(minor)),
                number=int(fields[0]),
                parent=int(fields[1]),
                options=unescape_mountinfo(" ".join(fields[separator + 3 :])),
            )
        )
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
        return BusyError(message, hint=f"`fuser -vm {shlex.quote(str(mountpoint))}` names what uses it")
    if number == errno.ENODEV:
        return UnavailableError(message, hint="load the kernel module: modprobe overlay")
    if number == errno.EINVAL and detail is not None:
        return UnavailableError(
            message, hint=f"put the writable layer on ext4, xfs or tmpfs: {detail} cannot be one"
        )
    return IoFailure(message)
