"""Mounting an image: the server, the kernel's settings, the overlay on top; detached or in the foreground."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_cli.files import make_directory
from coldstart_fs.kernel_mounts import real_mountpoint
from coldstart_fs.mount_request import MountRequest, check_request
from coldstart_fs.overlay import add_overlay
from coldstart_fs.records import (
    MountRecord,
    counters_path,
    log_path,
    read_record,
    record_folder,
    record_lock,
    write_record,
)
from coldstart_fs.server_log import log_file
from coldstart_fs.server_request import ServerRequest
from coldstart_fs.supervisor import StartedServer, wait_for_server
from coldstart_fs.tuning import tune
from coldstart_fs.unmount import (
    UnmountReport,
    end_mount,
    find_mount,
    live_mounts,
    require_mount,
    stale_mounts,
    sweep_stale,
    unmount,
)

__all__ = [
    "MountRecord",
    "MountRequest",
    "UnmountReport",
    "check_request",
    "find_mount",
    "live_mounts",
    "mount_detached",
    "require_mount",
    "serve",
    "stale_mounts",
    "sweep_stale",
    "unmount",
    "wait_for_server",
]
_CLEAN_UP_SECONDS = 5.0


def mount_detached(
    request: MountRequest,
    *,
    before_overlay: Callable[[], None] | None = None,
    timeout_seconds: float = 30.0,
) -> MountRecord:
    """Mount and return once the mount answers; a process of its own serves it until `unmount`.

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

    The server's messages go to stderr. Returns when somebody else unmounts; a server that dies is an error.
    """
    record = _mount(request, None, timeout_seconds, foreground=True)
    try:
        on_ready(record)
        wait_for_server(record)
    finally:
        on_end()
        folder = record_folder(request.run_folder, record.mountpoint)
        with record_lock(folder, wait_seconds=timeout_seconds):
            left = read_record(folder)
            if left is not None and left.server_pid == record.server_pid:
                end_mount(left, folder, timeout_seconds=timeout_seconds)
    if left is not None:
        raise ColdstartError(f"image server ended: {record.mountpoint}", hint="mount it again")


def _mount(
    request: MountRequest,
    before_overlay: Callable[[], None] | None,
    timeout_seconds: float,
    *,
    foreground: bool,
) -> MountRecord:
    folder = record_folder(request.run_folder, real_mountpoint(request.mountpoint))
    with record_lock(folder):
        record = check_request(request)
        if (left := read_record(folder)) is not None:  # its server died
            end_mount(left, folder, timeout_seconds=_CLEAN_UP_SECONDS)
            record = check_request(request)
        make_directory(folder, mode=0o700)
        try:
            return _start(request, record, folder, before_overlay, timeout_seconds, foreground=foreground)
        except BaseException:
            with suppress(ColdstartError):
                end_mount(read_record(folder) or record, folder, timeout_seconds=_CLEAN_UP_SECONDS)
            raise


def _start(
    request: MountRequest,
    record: MountRecord,
    folder: Path,
    before_overlay: Callable[[], None] | None,
    timeout_seconds: float,
    *,
    foreground: bool,
) -> MountRecord:
    if record.overlay is not None:
        make_directory(record.fuse_mountpoint, mode=0o700)
    order = ServerRequest(
        image=record.image,
        store=record.store,
        cache=str(record.cache),
        mountpoint=str(record.fuse_mountpoint),
        counters=str(counters_path(folder)),
        suid=request.suid,
        dev=request.dev,
        ready_descriptor=-1,
    )
    log = 2 if foreground else log_file(str(log_path(folder)))
    try:
        server = StartedServer(order, log, None if foreground else log_path(folder))
    finally:
        if not foreground:
            os.close(log)
    with server:
        record = replace(record, server_pid=server.pid, server_start_ticks=server.start_ticks)
        write_record(folder, record)
        if before_overlay is not None:
            before_overlay()  # takes as long as it takes: the server waits in the meantime
        deadline = time.monotonic() + timeout_seconds
        notes = server.wait_mounted(deadline)
        status = server.wait_answer(record.fuse_mountpoint, deadline)
        record = replace(record, settings=tune(status.st_dev), notes=(*record.notes, *notes))
        if record.overlay is not None:
            add_overlay(record, suid=request.suid, dev=request.dev)
        write_record(folder, record)
    return record
