"""The image host: a process that has imported everything, and forks a keeper for each mount."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Any, NoReturn

from coldstart_cli.errors import BusyError, ExitCode, Terminated
from coldstart_cli.version import __version__
from coldstart_fs.mounts.channel import Channel, connect, listen
from coldstart_fs.mounts.server_request import KeeperOrder

_REQUEST_SECONDS = 5.0
_FIRST_PASSED_DESCRIPTOR = 3
# what speaks to the service manager, or about descriptors, is the asker's alone
_NOT_PASSED_ON = (
    "NOTIFY_SOCKET",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
)


def host_socket(run_folder: Path) -> Path:
    return Path(os.path.realpath(run_folder)) / "image-server.socket"


def ask_host(run_folder: Path, order: KeeperOrder, log: int) -> Channel | None:
    """Have the host fork a keeper; None where there is no host of this user, version and mount namespace."""
    path = host_socket(run_folder)
    if not path.parent.is_dir():
        return None
    channel = connect(path)
    if channel is None:
        return None
    accepted = False
    try:
        if channel.peer()[1] != os.geteuid():
            return None
        environment = {key: value for key, value in os.environ.items() if key not in _NOT_PASSED_ON}
        if not channel.send(
            {"version": __version__, "order": order.to_json(), "environment": environment}, [log]
        ):
            return None
        with suppress(BusyError):
            answer = channel.receive(_REQUEST_SECONDS)
            # the peer of a socket that a service manager made is the manager: the keeper says who it is
            accepted = answer is not None and _same_mounts(answer[0].get("pid", 0))
        return channel if accepted else None
    finally:
        if not accepted:
            channel.close()


def passed_socket() -> socket | None:
    """The listening socket that a service manager passed, if it did."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    os.set_inheritable(_FIRST_PASSED_DESCRIPTOR, False)
    return socket(fileno=_FIRST_PASSED_DESCRIPTOR)


def serve_host(
    run_folder: Path,
    *,
    passed: socket | None,
    on_ready: Callable[[], object],
    beside: Sequence[Callable[[], object]],
    log: Callable[[str], None],
) -> None:
    """Listen until an exception unwinds, as the signal handlers of commands raise them. Keepers go on.

    What is to be done `beside` runs in processes of its own meanwhile, and may ask us for keepers.
    """
    # everything at once: a fork costs milliseconds, an import hundreds of them
    from coldstart_fs.mounts import keeper  # noqa: F401
    from coldstart_fs.stores import object_clients, object_store  # noqa: F401
    from coldstart_fs.tiers import http_source  # noqa: F401

    path = host_socket(run_folder)
    listener = passed if passed is not None else _listen(path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a keeper that ends is collected by the kernel
    try:
        on_ready()
        for work in beside:
            _fork_beside(work, listener)
        while True:
            _answer(listener, log)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if passed is None:
            with suppress(OSError):
                path.unlink()
        listener.close()


def _listen(path: Path) -> socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    if (other := connect(path)) is not None:
        pid, _ = other.peer()
        other.close()
        raise BusyError(f"an image server listens there already: {path}: pid {pid}")
    return listen(path)


def _fork_beside(work: Callable[[], object], listener: socket) -> None:
    if os.fork():
        return
    status: int = ExitCode.SOFTWARE
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listener.close()
        work()
        status = ExitCode.OK
    except (KeyboardInterrupt, Terminated):
        status = ExitCode.TERMINATED
    except BaseException:  # noqa: BLE001 - nothing of the host's may run in its child
        traceback.print_exc()
    finally:
        os._exit(status)


def _answer(listener: socket, log: Callable[[str], None]) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return
    with Channel(connection) as channel:
        if not channel.peer_is_trusted():
            log(f"refused a request of user {channel.peer()[1]}")
            return
        try:
            message = channel.receive(_REQUEST_SECONDS)
        except BusyError:
            return
        if message is None:
            return
        content, descriptors = message
        try:
            if content.get("version") != __version__ or len(descriptors) != 1:
                channel.send({"accepted": False, "version": __version__})
                return
            if (pid := os.fork()) == 0:
                _keep(content, channel, descriptors[0], listener)
            log(f"pid {pid} keeps {content['order']['root']}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _keep(content: dict[str, Any], channel: Channel, log: int, listener: socket) -> NoReturn:
    """In the child: become a keeper as if we had been started for this mount alone."""
    from coldstart_fs.mounts.keeping import keep

    status: int = ExitCode.SOFTWARE
    try:
        os.setsid()
        listener.close()
        null = os.open(os.devnull, os.O_RDWR)
        for source, number in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, number)
        os.close(null)
        os.close(log)
        os.chdir("/")
        os.environ.clear()
        os.environ.update(content["environment"])
        if channel.send({"accepted": True, "pid": os.getpid()}):
            status = keep(content["order"], channel)
    except BaseException:  # noqa: BLE001 - nothing of the host's may run in its child
        traceback.print_exc()
    finally:
        os._exit(status)


def _same_mounts(pid: int) -> bool:
    """Whether a process has our mount namespace: else we would not see what it mounts."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False
