"""Ending servers, within seconds whatever state they are in: stopped, hung, without keeper, dead."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from coldstart_cli.errors import BusyError, ColdstartError
from coldstart_cli.files import remove_tree
from coldstart_fs.fuse.device import unmount_as_user
from coldstart_fs.mounts.connections import abort
from coldstart_fs.mounts.kernel_mounts import mount_at, unmount_now
from coldstart_fs.mounts.processes import ProcessIdentity, end_process
from coldstart_fs.mounts.server_records import ServerRecord, read_server

# a keeper gives its server this long for its last answers and then kills it
_KEEPER_SECONDS = 8.0
_SERVER_SECONDS = 1.5
_KILL_SECONDS = 2.0
# a connection ends with its last mount, unless a process or another mount namespace has a copy of that
_LAST_USER_SECONDS = 2.0
# so soon has the primer of a replay ended that was told to stop
_PRIMER_SECONDS = 2.0
_POLL_SECONDS = 0.02


def end_server(server: ServerRecord, *, force: bool = False) -> bool:
    """Take down a server that nobody needs; whether its mount was still in use. Its folder goes last.

    With `force` nothing is waited for: requests that hang fail, and the processes are killed.
    """
    in_use = False
    dead = not server.lives()
    if not force and not dead and os.geteuid() == 0:
        for process in (server.keeper, server.server):
            _send(process, signal.SIGCONT)  # one that is stopped would not see the end of its mount
        _send(server.server, signal.SIGURG)  # the primer of its replay is the mount's last user
        in_use = _let_go(server, _PRIMER_SECONDS)
        _ends_by_itself(server)
    if force:
        abort_connection(server)
        end_process(server.keeper, (signal.SIGKILL, _KILL_SECONDS))
        end_process(_current(server).server, (signal.SIGKILL, _KILL_SECONDS))
    end_process(server.keeper, (signal.SIGTERM, _KEEPER_SECONDS), (signal.SIGKILL, _KILL_SECONDS))
    end_process(_current(server).server, (signal.SIGTERM, _SERVER_SECONDS), (signal.SIGKILL, _KILL_SECONDS))
    _let_go(server)
    with suppress(FileNotFoundError):
        remove_tree(server.folder)
    return in_use and not dead


def abort_connection(server: ServerRecord) -> bool:
    """Fail what waits for a server; only where the mount table still shows that very connection."""
    found = mount_at(server.root)
    return found is not None and found.is_image and found.device == server.device and abort(found.device)


def _current(server: ServerRecord) -> ServerRecord:
    return read_server(server.folder) or server


def _send(process: ProcessIdentity, number: signal.Signals) -> None:
    descriptor = process.open()
    if descriptor is not None:
        try:
            with suppress(OSError):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _let_go(server: ServerRecord, patience_seconds: float = 0.0) -> bool:
    """Unmount the FUSE mount itself; whether it had to be detached from processes that use it."""
    found = mount_at(server.root)
    if found is None or not found.is_image:
        return False
    if os.geteuid() != 0:
        unmount_as_user(str(server.root))
        return False
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            unmount_now(server.root)
        except BusyError:
            if time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                continue
            unmount_now(server.root, detach=True)
            return True
        return False


def _ends_by_itself(server: ServerRecord) -> bool:
    """Whether the connection ended with its mount: the keeper has ended, or says so in its record.

    It does not while a mount namespace has a copy of the mount that nobody in it uses.
    """
    deadline = time.monotonic() + _LAST_USER_SECONDS
    while server.keeper.lives():
        current = read_server(server.folder)
        if current is None or current.failure is not None:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    process = server.server.open()  # without a keeper it is the server that sees the end
    if process is None:
        return True
    try:
        return bool(select.select([process], [], [], max(0.0, deadline - time.monotonic()))[0])
    finally:
        os.close(process)


def end_quietly(server: ServerRecord) -> None:
    """Clean up after a server that did not come to serve; what cannot be ended stays on record."""
    with suppress(ColdstartError):
        end_server(server, force=True)
