"""Who uses a server: the mount points that are bind mounts or overlays of its connection."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coldstart_cli.errors import BusyError, ColdstartError
from coldstart_fs.fuse.device import unmount_as_user
from coldstart_fs.mounts.holders import Holder, Sought, find_holder
from coldstart_fs.mounts.kernel_mounts import mount_at, unmount_now
from coldstart_fs.mounts.records import MountRecord, all_records, lock_path
from coldstart_fs.mounts.server_records import ServerRecord, key_of, server_lock, write_server


def users_of(server: ServerRecord, *, besides: Path | None = None) -> list[MountRecord]:
    """The mounts on record for a server, without the one whose record lies in `besides`."""
    return [record for _, record in _records(server, besides)]


def others_use(server: ServerRecord, besides: Path) -> bool:
    """Whether another mount of this server is there, or is just being made."""
    return any(_is_there(folder, record) for folder, record in _records(server, besides))


def is_unmounted(server: ServerRecord) -> bool:
    """Whether none of its mount points is there, nor being made."""
    return not any(_is_there(folder, record) for folder, record in _records(server, None))


def holder_of(server: ServerRecord) -> Holder | None:
    """A container or another namespace that still uses the connection."""
    places = {str(server.root), *(str(user.mountpoint) for user in users_of(server))}
    return find_holder(Sought(frozenset({server.device}), frozenset(places), frozenset(places)))


def retire(server: ServerRecord, reason: str) -> bool | None:
    """Put an end on record for a server that nobody uses, so that nobody joins it; None: ask again later."""
    try:
        with server_lock(_run_folder(server), key_of(server.folder)):
            if any(_is_there(folder, record) for folder, record in _records(server, None)):
                return False
            write_server(replace(server, failure=reason))
            return True
    except BusyError:  # somebody joins or leaves just now
        return None


def unmount_users(server: ServerRecord) -> None:
    """Let go of every mount point of a server, also of those in use."""
    for record in users_of(server):
        if record.mountpoint != server.root:
            _let_go(record.mountpoint)


def unmount_root(server: ServerRecord) -> None:
    """Let go of the FUSE mount itself. The connection lives on as long as somebody uses a copy."""
    _let_go(server.root)


def _let_go(mountpoint: Path) -> None:
    found = mount_at(mountpoint)
    if found is None or not found.is_image:
        return
    with suppress(ColdstartError):  # somebody else was faster
        if os.geteuid() == 0:
            unmount_now(mountpoint, detach=True)
        else:
            unmount_as_user(str(mountpoint))


def _records(server: ServerRecord, besides: Path | None) -> list[tuple[Path, MountRecord]]:
    return [
        (folder, record)
        for folder, record in all_records(_run_folder(server))
        if record.server_folder == server.folder and folder != besides
    ]


def _run_folder(server: ServerRecord) -> Path:
    return server.folder.parent.parent


def _is_there(folder: Path, record: MountRecord) -> bool:
    found = mount_at(record.mountpoint)
    return (found is not None and found.is_image) or _is_locked(lock_path(folder))


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
