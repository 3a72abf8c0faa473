"""Ending mounts: overlay, bind mount, the server when nobody else uses it, record; also what crashes left."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import BusyError, ColdstartError, NotFoundError, PermissionNeededError
from coldstart_cli.files import remove_tree
from coldstart_fs.mounts.holders import Sought, find_holder
from coldstart_fs.mounts.kernel_mounts import covering, mount_at, real_mountpoint, unmount_now
from coldstart_fs.mounts.overlay import has_overlay, remove_work
from coldstart_fs.mounts.records import MountRecord, all_records, read_record, record_folder, record_lock
from coldstart_fs.mounts.server_end import end_server
from coldstart_fs.mounts.server_records import key_of, read_server, server_folders, server_lock
from coldstart_fs.mounts.users import others_use, users_of

# processes that are just ending are waited for; longer is for the user to decide
_PATIENCE_SECONDS = 2.0
_POLL_SECONDS = 0.02
_HOLDERS_POLL_SECONDS = 0.2
_SWEEP_SECONDS = 5.0


@dataclass(frozen=True)
class UnmountReport:
    """How a mount ended. `in_use`: it was let go while processes still used it.

    They see errors, unless the server goes on for other mounts (`served_on`).
    """

    record: MountRecord
    in_use: bool
    served_on: bool = False


def unmount(
    mountpoint: Path,
    *,
    run_folder: Path,
    lazy: bool = True,
    force: bool = False,
    timeout_seconds: float = 20.0,
) -> UnmountReport:
    """End a mount. What was written to an overlay's `upper` stays.

    A mount that stays in use is let go when `lazy`: its mount point is free, and who still uses it sees
    errors. Else it is refused, and everything stays as it is. With `force` nobody is waited for: what hangs
    in the mount fails; a server that others use too goes on for them.
    """
    folder = record_folder(run_folder, real_mountpoint(mountpoint))
    require_mount(mountpoint, run_folder)  # before a lock is made for something that is no mount
    with record_lock(folder, wait_seconds=timeout_seconds):
        record = require_mount(mountpoint, run_folder)
        return end_mount(record, folder, lazy=lazy, force=force, timeout_seconds=timeout_seconds)


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
    """End what crashes left; the mount points that were freed. What hangs or is busy stays for next time."""
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
    for folder in server_folders(run_folder):
        server = read_server(folder)
        if server is not None and not server.lives() and not users_of(server):
            with suppress(ColdstartError), server_lock(run_folder, key_of(folder)):
                end_server(server)
    return swept


def end_mount(
    record: MountRecord, folder: Path, *, timeout_seconds: float, lazy: bool = True, force: bool = False
) -> UnmountReport:
    """Take one mount down, its lock held. The record goes last."""
    in_use = served_on = False
    dead = not record.server_lives()
    lazy = lazy or force or dead  # nobody can go on using what nobody serves
    patience_seconds = 0.0 if dead or force else _PATIENCE_SECONDS
    _refuse_covered(record)
    if not lazy:
        _wait_for_holders(record, folder, patience_seconds)
    elif not dead:
        in_use = find_holder(_sought(record, folder)) is not None
    if has_overlay(record) or _is_bind(record):
        in_use |= _unmount(record.mountpoint, patience_seconds, lazy=lazy)
    run_folder = folder.parent.parent
    if record.server_folder.exists():
        with server_lock(run_folder, key_of(record.server_folder), wait_seconds=timeout_seconds):
            server = read_server(record.server_folder)
            if server is not None:
                served_on = server.lives() and others_use(server, folder)
                # a dead one stays until its last mount is cleaned up: its log may be asked for
                if not served_on and (server.lives() or not users_of(server, besides=folder)):
                    in_use |= end_server(server, force=force)
            _forget(record, folder)
    if record.overlay is not None:
        remove_work(record)
    _forget(record, folder)
    return UnmountReport(record, in_use and not dead, served_on)


def _forget(record: MountRecord, folder: Path) -> None:
    """Remove the record of a mount that has gone; one that leads elsewhere has ended nothing."""
    found = mount_at(record.mountpoint)
    if found is not None and found.is_image:
        raise ColdstartError(
            f"mount is still there, its record does not lead to its server: {record.mountpoint}",
            hint=f"end it by hand: umount -l {shlex.quote(str(record.mountpoint))}",
        )
    remove_tree(folder)


def _refuse_covered(record: MountRecord) -> None:
    """What lies over a mount is unmounted in its place, and whoever takes that away meets a dead one."""
    over = covering(record.mountpoint)
    if over is not None:
        raise BusyError(
            f"cannot unmount: {record.mountpoint}: {over.kind} lies over it, mounted at {over.point}",
            hint=f"end that first: umount {shlex.quote(over.point)}",
        )


def _wait_for_holders(record: MountRecord, folder: Path, patience_seconds: float) -> None:
    """Until nobody else has the mount, such as a container; whoever still has it is named."""
    deadline = time.monotonic() + patience_seconds
    while (holder := find_holder(_sought(record, folder))) is not None:
        if time.monotonic() >= deadline:
            raise BusyError(
                f"cannot unmount: {record.mountpoint}: {holder}", hint=_hint(record, folder.parent.parent)
            )
        time.sleep(_HOLDERS_POLL_SECONDS)


def _sought(record: MountRecord, folder: Path) -> Sought:
    """The overlay, and the connection where it would end with this mount."""
    found = mount_at(record.mountpoint)
    devices = {found.device} if found is not None and found.kind == "overlay" else set()
    places, below = {str(record.mountpoint)}, {str(record.mountpoint)}
    server = record.server()
    if server is not None and not others_use(server, folder):
        devices.add(server.device)
        places.add(str(server.root))
        places |= {str(user.mountpoint) for user in users_of(server)}
        below |= places
    return Sought(frozenset(devices), frozenset(places), frozenset(below))


def _hint(record: MountRecord, run_folder: Path) -> str:
    if record.mountpoint.parent.parent == run_folder / "replicas":
        name = shlex.quote(record.mountpoint.parent.name)
        return f"it is the root of replica {name}: `coldstart launch SPEC --stop` ends it"
    return "end what uses it; `--lazy` lets go of it all the same"


def _is_bind(record: MountRecord) -> bool:
    found = mount_at(record.mountpoint)
    return found is not None and found.is_image and record.mountpoint != record.fuse_mountpoint


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
