"""Mounting an image: a server for it, the mount point, the overlay on top; detached or in the foreground."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_cli.files import make_directory
from coldstart_fs.mounts.kernel_mounts import bind_mount, mount_at, real_mountpoint
from coldstart_fs.mounts.mount_request import MountRequest, check_request
from coldstart_fs.mounts.obtain import obtain_server, take_over
from coldstart_fs.mounts.overlay import add_overlay
from coldstart_fs.mounts.prepared import keeper_at_hand
from coldstart_fs.mounts.records import MountRecord, read_record, record_folder, record_lock, write_record
from coldstart_fs.mounts.server_records import ServerRecord, key_of, server_lock
from coldstart_fs.mounts.server_request import ServerRequest
from coldstart_fs.mounts.unmount import (
    UnmountReport,
    end_mount,
    find_mount,
    live_mounts,
    require_mount,
    stale_mounts,
    sweep_stale,
    unmount,
)
from coldstart_fs.mounts.users import users_of

__all__ = [
    "MountRecord",
    "MountRequest",
    "UnmountReport",
    "check_request",
    "find_mount",
    "live_mounts",
    "mount_detached",
    "replace_mount",
    "require_mount",
    "serve",
    "stale_mounts",
    "sweep_stale",
    "unmount",
    "wait_for_end",
]
_CLEAN_UP_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 5.0


def mount_detached(
    request: MountRequest,
    *,
    before_overlay: Callable[[], None] | None = None,
    timeout_seconds: float = 30.0,
) -> MountRecord:
    """Mount and return once the mount answers; processes of their own serve it until `unmount`.

    `before_overlay` runs while the server starts and ends before the overlay is mounted: the time
    to fill `upper`.
    """
    return _mount(request, before_overlay, timeout_seconds, foreground=False)


def serve(
    request: MountRequest,
    *,
    on_ready: Callable[[MountRecord], None],
    on_end: Callable[[], object] = lambda: None,
    timeout_seconds: float = 30.0,
) -> None:
    """Mount, and unmount when an exception unwinds, as the signal handlers of commands raise them.

    The messages of a server of our own go to stderr. Returns when somebody else unmounts; a mount that
    ends otherwise is an error.
    """
    record = _mount(request, None, timeout_seconds, foreground=True)
    try:
        on_ready(record)
        wait_for_end(record, request.run_folder)
    finally:
        on_end()
        folder = record_folder(request.run_folder, record.mountpoint)
        with record_lock(folder, wait_seconds=timeout_seconds):
            left = read_record(folder)
            if left is not None and left.server_folder == record.server_folder:
                end_mount(left, folder, timeout_seconds=timeout_seconds)
    if left is not None:
        raise ColdstartError(f"image server ended: {record.mountpoint}", hint="mount it again")


def replace_mount(request: MountRequest, *, timeout_seconds: float = 30.0) -> MountRecord:
    """Give a mount a new server of the installed version while it is in use: its readers just wait.

    Store, cache and tiers may be others than before. Where that is not possible, since its server is dead or
    the image is another one, it is mounted anew.
    """
    folder = record_folder(request.run_folder, real_mountpoint(request.mountpoint))
    with record_lock(folder, wait_seconds=timeout_seconds):
        record = read_record(folder)
        if record is not None:
            wanted = check_request(request, replacing=True)
            server = record.server()
            if server is not None and server.lives() and _is_same(record, wanted):
                with server_lock(request.run_folder, key_of(server.folder), wait_seconds=timeout_seconds):
                    take_over(server, _server_request(wanted), timeout_seconds=timeout_seconds)
                    return _put_on_record(server, record, wanted)
            end_mount(record, folder, lazy=False, timeout_seconds=timeout_seconds)
    return mount_detached(request, timeout_seconds=timeout_seconds)


def wait_for_end(record: MountRecord, run_folder: Path) -> None:
    """Block until the mount has ended: unmounted, or without a server. Signals unwind through here."""
    folder = record_folder(run_folder, record.mountpoint)
    with open("/proc/self/mountinfo", "rb", buffering=0) as table:
        while True:
            current = read_record(folder)
            server = None if current is None else current.server()
            if server is None or not server.lives() or mount_at(record.mountpoint) is None:
                return
            process = server.guardian.open()
            poll = select.poll()
            poll.register(table, select.POLLPRI)
            if process is not None:
                poll.register(process, select.POLLIN)
            try:
                poll.poll(_LOOK_AGAIN_SECONDS * 1000)
            finally:
                if process is not None:
                    os.close(process)


def _is_same(record: MountRecord, wanted: MountRecord) -> bool:
    """Whether a mount shows what is wanted, wherever it comes from; it may have more."""
    return (
        wanted.image == record.image
        and wanted.overlay in {None, record.overlay}
        and wanted.suid <= record.suid
        and wanted.dev <= record.dev
    )


def _put_on_record(server: ServerRecord, record: MountRecord, wanted: MountRecord) -> MountRecord:
    """Where the bytes of a server's mounts come from now, for each of them; its lock is held."""
    changes = {name: getattr(wanted, name) for name in ("name", "store", "cache", "tiers", "traces", "fetch")}
    run_folder = server.folder.parent.parent
    for user in users_of(server):
        write_record(record_folder(run_folder, user.mountpoint), replace(user, **changes))
    return replace(record, **changes)


def _mount(
    request: MountRequest,
    before_overlay: Callable[[], None] | None,
    timeout_seconds: float,
    *,
    foreground: bool,
) -> MountRecord:
    with keeper_at_hand(request.run_folder):
        folder = record_folder(request.run_folder, real_mountpoint(request.mountpoint))
        with record_lock(folder):
            record = check_request(request)
            if (left := read_record(folder)) is not None:  # its server died
                end_mount(left, folder, timeout_seconds=_CLEAN_UP_SECONDS)
                record = check_request(request)
            try:
                return _start(request, record, folder, before_overlay, timeout_seconds, foreground=foreground)
            except BaseException:
                if (left := read_record(folder)) is not None:
                    with suppress(ColdstartError):
                        end_mount(left, folder, timeout_seconds=_CLEAN_UP_SECONDS)
                raise


def _start(
    request: MountRequest,
    plan: MountRecord,
    folder: Path,
    before_overlay: Callable[[], None] | None,
    timeout_seconds: float,
    *,
    foreground: bool,
) -> MountRecord:
    registered: list[MountRecord] = []

    def register(server: ServerRecord) -> None:
        notes = tuple(dict.fromkeys((*plan.notes, *server.notes)))
        record = replace(plan, fuse_mountpoint=server.root, server_folder=server.folder, notes=notes)
        make_directory(folder, mode=0o700)
        write_record(folder, record)
        registered.append(record)

    def obtain() -> ServerRecord:
        return obtain_server(
            _server_request(plan),
            request.run_folder,
            mountpoint=plan.mountpoint,
            alone=request.alone,
            foreground=foreground,
            timeout_seconds=timeout_seconds,
            register=register,
        )

    if before_overlay is None:
        obtain()
    else:
        with ThreadPoolExecutor(1) as beside:  # both take their time, and neither needs the other
            obtaining = beside.submit(obtain)
            before_overlay()
            obtaining.result()
    record = registered[0]
    if record.overlay is not None:
        add_overlay(record, suid=request.suid, dev=request.dev)
    elif record.fuse_mountpoint != record.mountpoint:
        bind_mount(record.fuse_mountpoint, record.mountpoint, suid=request.suid, dev=request.dev)
    return record


def _server_request(record: MountRecord) -> ServerRequest:
    return ServerRequest(
        image=record.image,
        store=record.store,
        cache=str(record.cache),
        tiers=record.tiers,
        cache_quota_bytes=record.cache_quota_bytes,
        cache_free_bytes=record.cache_free_bytes,
        fetch=record.fetch,
        lease=record.lease,
        traces=record.traces,
    )
