"""The server for a mount: one that serves the same image already, or a new one."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_cli.files import make_directory
from coldstart_fs.mounts.image_host import ask_host
from coldstart_fs.mounts.prepared import drop_prepared
from coldstart_fs.mounts.server_end import end_server
from coldstart_fs.mounts.server_log import log_file
from coldstart_fs.mounts.server_records import (
    ServerRecord,
    log_path,
    read_server,
    server_folders,
    server_lock,
    servers_folder,
)
from coldstart_fs.mounts.server_request import KeeperOrder, ServerRequest
from coldstart_fs.mounts.supervisor import StartedKeeper, start_keeper, wait_answer
from coldstart_fs.mounts.users import users_of

_STDERR = 2


def obtain_server(
    request: ServerRequest,
    run_folder: Path,
    *,
    mountpoint: Path,
    alone: bool,
    foreground: bool,
    timeout_seconds: float,
    register: Callable[[ServerRecord], None],
) -> ServerRecord:
    """A server that answers. `register` puts the mount on record, while nobody can end the server.

    `alone`: for this mount only. In the `foreground` the messages of a server of our own go to stderr.
    """
    deadline = time.monotonic() + timeout_seconds
    # only root can make several mount points of one FUSE mount
    shareable = os.geteuid() == 0 and not alone
    key = request.key() if shareable else secrets.token_hex(8)
    with server_lock(run_folder, key, wait_seconds=timeout_seconds):
        server = _find(run_folder, key, request)
        if server is None:
            server = _start(request, run_folder, key, mountpoint, shareable, foreground, deadline, register)
        else:
            drop_prepared()
            register(server)
    wait_answer(server, deadline)
    return server


def take_over(
    server: ServerRecord, request: ServerRequest | None = None, *, timeout_seconds: float
) -> ServerRecord:
    """Give a server's connection to a new keeper and server of the installed version; readers just wait.

    A `request` for the same image changes where its bytes come from.
    """
    order = KeeperOrder(
        request=request or server.request,
        folder=server.folder,
        root=server.root,
        shared=server.shared,
        take_over=True,
        timeout_seconds=timeout_seconds,
    )
    deadline = time.monotonic() + timeout_seconds
    with _keeper(order, order, _run_folder(server), foreground=False, fresh_log=False) as keeper:
        taken = keeper.wait_ready(deadline)
    wait_answer(taken, deadline)
    return taken


def _find(run_folder: Path, key: str, request: ServerRequest) -> ServerRecord | None:
    """A live server with that key that we can reach; dead ones that nobody uses are cleaned up on the way."""
    for folder in server_folders(run_folder, key):
        server = read_server(folder)
        if server is None:
            continue
        if not server.lives():
            if not users_of(server):
                with suppress(ColdstartError):
                    end_server(server)
        elif _is_ready(server, request) and _sees_our_mounts(server):
            return server
    return None


def _is_ready(server: ServerRecord, request: ServerRequest) -> bool:
    """Whether others may use it, and it still serves what it was started for."""
    return server.shared and bool(server.negotiated) and server.request == request


def _start(
    request: ServerRequest,
    run_folder: Path,
    key: str,
    mountpoint: Path,
    shareable: bool,
    foreground: bool,
    deadline: float,
    register: Callable[[ServerRecord], None],
) -> ServerRecord:
    folder = servers_folder(run_folder) / f"{key}-{secrets.token_hex(4)}"
    make_directory(folder, mode=0o700)
    root = folder / "root" if os.geteuid() == 0 else mountpoint
    if root != mountpoint:
        make_directory(root, mode=0o700)
    order = KeeperOrder(
        request=request,
        folder=folder,
        root=root,
        shared=shareable,
        timeout_seconds=max(1.0, deadline - time.monotonic()),
    )
    # what the command or its service takes along when it ends must not be shared with others
    own = replace(order, shared=shareable and not foreground and not is_in_a_service())
    try:
        with _keeper(order, own, run_folder, foreground=foreground, fresh_log=True) as keeper:
            server = keeper.wait_ready(deadline)
            register(server)
    except BaseException:
        _remove_empty(folder)
        raise
    return server


def _keeper(
    order: KeeperOrder, own: KeeperOrder, run_folder: Path, *, foreground: bool, fresh_log: bool
) -> StartedKeeper:
    """A keeper from the image host with one order, or, where there is none, a process with its `own`."""
    path = log_path(order.folder)
    log = log_file(str(path), fresh=fresh_log)
    try:
        here = _STDERR if foreground and not order.shared else log
        if (channel := ask_host(run_folder, order, here)) is not None:
            return StartedKeeper(order, channel, path)
        return start_keeper(own, _STDERR if foreground else log, None if foreground else path)
    finally:
        os.close(log)


def _run_folder(server: ServerRecord) -> Path:
    return server.folder.parent.parent


def _sees_our_mounts(server: ServerRecord) -> bool:
    """Whether the server's mount is in our mount namespace."""
    try:
        return os.readlink(f"/proc/{server.guardian.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def is_in_a_service(groups: Path = Path("/proc/self/cgroup")) -> bool:
    """Whether we run in a systemd service, whose end is the end of all that it started."""
    try:
        lines = groups.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in {"", "name=systemd"}:
            continue
        for part in reversed(path.split("/")):
            if part.endswith((".service", ".scope")):
                return part.endswith(".service")
    return False


def _remove_empty(folder: Path) -> None:
    """A folder that no keeper has put anything on record in."""
    if read_server(folder) is None:
        for name in ("root", "log"):
            with suppress(OSError):
                (folder / name).rmdir() if name == "root" else (folder / name).unlink()
        with suppress(OSError):
            folder.rmdir()
