"""The writable layer over an image: where it may lie, what its root looks like, and the mount itself."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

from coldstart_cli.errors import (
    BusyError,
    ColdstartError,
    IoFailure,
    PermissionNeededError,
    UnavailableError,
    UsageError,
)
from coldstart_cli.files import atomic_write, make_directory, mounts_below, remove_tree
from coldstart_cli.regular import read_regular
from coldstart_fs.mounts.kernel_mounts import (
    IMAGE_SOURCE_PREFIX,
    file_system_of,
    mount_at,
    mount_overlay,
    unmount_now,
)
from coldstart_fs.mounts.records import MountRecord, all_records

# beside `upper`: the digest of the image that it was written on
_IMAGE = ".coldstart-image"
# what overlayfs refuses as an upper layer: no whiteouts, no d_type, no xattrs, or an overlay itself
_UNSUITABLE = {
    "overlay",
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "vfat",
    "exfat",
    "msdos",
    "iso9660",
    "squashfs",
}


def check_overlay(folder: Path, mountpoint: Path, run_folder: Path) -> None:
    """Refuse a folder that cannot become, or already is, somebody's writable layer."""
    if os.geteuid() != 0:
        raise PermissionNeededError(
            "a writable overlay needs root", hint="run with sudo, or leave `--overlay` out"
        )
    real = Path(os.path.realpath(folder))
    if mountpoint.is_relative_to(real):
        raise UsageError(
            f"mount point lies inside of its own overlay folder: {mountpoint}",
            hint="choose another `--overlay`",
        )
    if real.exists() and not real.is_dir():
        raise UsageError(f"overlay is not a folder: {folder}", hint="choose another `--overlay`")
    if (work := real / "work").exists() and not {"work", "index"}.issuperset(os.listdir(work)):
        # overlayfs empties it, and we remove it at the end
        raise UsageError(
            f"folder for overlayfs itself is not empty: {work}", hint="choose another `--overlay`"
        )
    for _, record in all_records(run_folder):
        used = record.overlay is not None and os.path.realpath(record.overlay) == str(real)
        if used and record.mountpoint != mountpoint and record.server_lives():
            raise BusyError(
                f"overlay folder is in use at {record.mountpoint}: {folder}",
                hint="choose another `--overlay`: two mounts would damage each other's files",
            )
    kind = file_system_of(_existing(real))
    if kind in _UNSUITABLE:
        raise UnavailableError(
            f"overlay folder lies on {kind}, which cannot hold a writable layer: {folder}",
            hint="choose an `--overlay` on ext4, xfs, btrfs or tmpfs",
        )


def check_overlay_image(folder: Path, image: str) -> None:
    """Refuse a layer that was written on another image: overlayfs says nothing of what that shows."""
    note = folder / _IMAGE
    try:
        written_on = read_regular(note).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return  # nothing was ever mounted there, or by an older version
    except OSError as error:
        raise IoFailure(f"cannot read `{note}`: {error.strerror}") from error
    if written_on != image and _holds_anything(folder / "upper"):
        raise UsageError(
            f"overlay was written on another image: {folder}: on {written_on}, not {image}",
            hint=f"mount `NAME@{written_on}`, choose another `--overlay`, or, to use it all the same, "
            f"rm {shlex.quote(str(note))}",
        )


def _holds_anything(upper: Path) -> bool:
    with suppress(FileNotFoundError), os.scandir(upper) as entries:
        return any(True for _ in entries)
    return False


def add_overlay(record: MountRecord, *, suid: bool, dev: bool) -> None:
    """Mount the writable layer over the image at the record's mount point."""
    assert record.overlay is not None
    upper, work = record.overlay / "upper", record.overlay / "work"
    if not upper.exists():
        make_directory(record.overlay, mode=0o700)
        make_directory(upper)
        _copy_attributes(record.fuse_mountpoint, upper)
    make_directory(work, mode=0o700)
    # noted before anything can be written: a host may lose power
    atomic_write(record.overlay / _IMAGE, f"{record.image}\n".encode(), mode=0o600)
    source = IMAGE_SOURCE_PREFIX + record.image.removeprefix(IMAGE_SOURCE_PREFIX)
    mount_overlay(record.fuse_mountpoint, upper, work, record.mountpoint, source=source, suid=suid, dev=dev)
    if os.statvfs(record.mountpoint).f_flag & os.ST_RDONLY:
        # the kernel's answer to a file system without whiteouts or temporary files
        unmount_now(record.mountpoint, detach=True)
        kind = file_system_of(upper)
        raise UnavailableError(
            f"overlay folder lies on {kind}, where the kernel mounts it read-only: {record.overlay}",
            hint="choose an `--overlay` on ext4, xfs, btrfs or tmpfs",
        )


def has_overlay(record: MountRecord) -> bool:
    """Whether the record's overlay is mounted now."""
    found = mount_at(record.mountpoint)
    return record.overlay is not None and found is not None and found.kind == "overlay" and found.is_image


def remove_work(record: MountRecord) -> None:
    """Remove what the overlay keeps for itself; `upper` stays."""
    assert record.overlay is not None
    work = record.overlay / "work"
    if not mounts_below(work):
        with suppress(ColdstartError):
            remove_tree(work)


def _copy_attributes(image_root: Path, upper: Path) -> None:
    """The root of an overlay is `upper` itself: it must look like the image's root."""
    status = os.stat(image_root)
    try:
        os.chown(upper, status.st_uid, status.st_gid)
        os.chmod(upper, status.st_mode & 0o7777)
        for name in os.listxattr(image_root):
            if not name.startswith("trusted.overlay."):
                os.setxattr(upper, name, os.getxattr(image_root, name))
        os.utime(upper, ns=(status.st_atime_ns, status.st_mtime_ns))
    except OSError as error:
        raise IoFailure(f"cannot prepare the writable layer: {upper}: {error.strerror}") from error


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
