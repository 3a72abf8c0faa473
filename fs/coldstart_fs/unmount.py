"""Ending mounts: overlay, FUSE, server, record; also what crashed servers left."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import BusyError, NotFoundError, PermissionNeededError
from coldstart_cli.files import remove_tree
from coldstart_cli.process import find_program, run
from coldstart_fs.kernel_mounts import KernelMount, mount_at, real_mountpoint, unmount_now
from coldstart_fs.overlay import has_overlay, remove_work
from coldstart_fs.records import MountRecord, all_records, read_record, record_folder, record_lock
from coldstart_fs.supervisor import stop_server, wait_for_server

# processes that are just ending are waited for; longer is for the user to decide
_PATIENCE_SECONDS = 2.0
_POLL_SECONDS = 0.02
_SWEEP_SECONDS = 5.0


@dataclass(frozen=True)
class UnmountReport:
    """How a mount ended. `in_use`: it was let go while processes still used it; they see errors."""

    record: MountRecord
    in_use: bool


def unmount(
    mountpoint: Path, *, run_folder: Path, lazy: bool = True, timeout_seconds: float = 20.0
) -> UnmountReport:
    """End a mount. What was written to an overlay's `upper` stays.

    A mount that stays in use is let go when `lazy`: its mount point is free, and who still uses it sees
    errors. Else it is refused, and everything stays as it is.
    """
    folder = record_folder(run_folder, real_mountpoint(mountpoint))
    require_mount(mountpoint, run_folder)  # before a lock is made for something that is no mount
    with record_lock(folder, wait_seconds=timeout_seconds):
        record = require_mount(mountpoint, run_folder)
        return UnmountReport(record, end_mount(record, folder, lazy=lazy, timeout_seconds=timeout_seconds))


def find_mount(path: Path, run_folder: Path) -> MountRecord | None:
    """The record of what is mounted exactly at `path`, live or dead."""
    return read_record(record_folder(run_folder, real_mountpoint(path)))


def require_mount(path: Path, run_folder: Path) -> MountRecord:
    """The record of the mount at `path`, or a refusal."""
    record = find_mount(path, run_folder)
    if record is not None:
        return record
    found = mount_at(real_mountpoint(path))
    if found is not None and found.is_image:
        raise NotFoundError(
            f"mount has no record in {run_folder}: {path}",
            hint=f"name the `run_dir` it was mounted with, or end it by hand: umount {path}",
        )
    raise NotFoundError(f"not a mount of coldstart: {path}", hint="`coldstart image status` lists them")


def live_mounts(run_folder: Path) -> list[MountRecord]:
    """Mounts whose server lives."""
    return [record for _, record in all_records(run_folder) if record.server_lives()]


def stale_mounts(run_folder: Path) -> list[Path]:
    """Mount points whose server died."""
    return [record.mountpoint for _, record in all_records(run_folder) if not record.server_lives()]


def sweep_stale(run_folder: Path) -> list[Path]:
    """End what crashed servers left; the mount points that were freed."""
    swept = []
    for folder, record in all_records(run_folder):
        if record.server_lives():
            continue
        # busy: somebody is mounting or unmounting there just now; no permission: it stays listed as dead
        with suppress(BusyError, PermissionNeededError), record_lock(folder):
            current = read_record(folder)
            if current is not None and not current.server_lives():
                end_mount(current, folder, timeout_seconds=_SWEEP_SECONDS)
                swept.append(current.mountpoint)
    return swept


def end_mount(record: MountRecord, folder: Path, *, timeout_seconds: float, lazy: bool = True) -> bool:
    """Take one mount down, its lock held; whether something still used it. The record goes last."""
    in_use = False
    dead = not record.server_lives()
    lazy = lazy or dead  # nobody can go on using what nobody serves
    patience_seconds = 0.0 if dead else _PATIENCE_SECONDS
    if has_overlay(record):
        in_use = _unmount(record.mountpoint, patience_seconds, lazy=lazy)
    if _has_fuse(record):
        if os.geteuid() == 0:
            in_use |= _unmount(record.fuse_mountpoint, 0.0 if in_use else patience_seconds, lazy=lazy)
            if not in_use:
                # it ends by itself with its mount, unless another mount namespace has a copy of that
                in_use = not wait_for_server(record, _PATIENCE_SECONDS)
        stop_server(record, timeout_seconds)
        if _has_fuse(record):
            _unmount_as_user(record.fuse_mountpoint)
    stop_server(record, timeout_seconds)
    if record.overlay is not None:
        remove_work(record)
    remove_tree(folder)
    return in_use and not dead


def _has_fuse(record: MountRecord) -> KernelMount | None:
    found = mount_at(record.fuse_mountpoint)
    return found if found is not None and found.kind.startswith("fuse") and found.is_image else None


def _unmount(mountpoint: Path, patience_seconds: float, *, lazy: bool) -> bool:
    """Unmount; whether it had to be detached from processes that use it."""
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            unmount_now(mountpoint)
        except BusyError:
            if time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                continue
            if not lazy:
                raise
            unmount_now(mountpoint, detach=True)
            return True
        else:
            return False


def _unmount_as_user(mountpoint: Path) -> None:
    """What a dead server left, also for a user who may not call umount2."""
    if os.geteuid() == 0:
        unmount_now(mountpoint, detach=True)
        return
    run([find_program("fusermount3"), "-u", "-z", mountpoint], deadline_seconds=20)
