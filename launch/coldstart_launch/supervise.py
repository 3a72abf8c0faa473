"""A replica's life after ready: waiting in the foreground, moving to the background, being stopped."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, NotFoundError, near_matches_hint
from coldstart_cli.regular import open_own
from coldstart_launch.replica import TAKE_DOWN_SECONDS, Replica, replica_names

if TYPE_CHECKING:
    from coldstart_fs.mounts.server_records import ServerRecord
    from coldstart_launch.chain import Running

_STOP_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.05


def wait_for_end(*pids: int) -> int:
    """Block until one of these processes, which need not be our children, has ended; which one it was.

    Signals unwind through here.
    """
    descriptors: dict[int, int] = {}
    try:
        for pid in pids:
            try:
                descriptors[os.pidfd_open(pid)] = pid
            except ProcessLookupError:
                return pid
        ended, _, _ = select.select(list(descriptors), [], [])
        return descriptors[ended[0]]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def replica_ends(running: Running) -> bool:
    """Block until the replica has ended (true), or until nobody serves the files of its root any more.

    Signals unwind through here.
    """
    from coldstart_snapshot.containers.network import foreign_network, inside

    # by what is on record: a server that ended before we looked would pass for a root without one
    is_image = running.image_mount() is not None
    while True:
        server = _live_server(running)
        if is_image and server is None:
            return False
        forwarders = running.publisher.pids
        watched = [running.outcome.pid, *([server.guardian.pid] if server is not None else []), *forwarders]
        ended = wait_for_end(*watched)
        if ended == running.outcome.pid:
            return True
        if ended in forwarders:
            with inside(foreign_network(running.outcome.pid)):
                running.publisher.revive(ended)


def _live_server(running: Running) -> ServerRecord | None:
    mount = running.image_mount()
    server = None if mount is None else mount.server()
    return server if server is not None and server.lives() else None


def move_to_background(replica: Replica, log: Path) -> bool:
    """Fork: False in the caller, which must leave at once without cleaning up, True in the supervisor.

    The flock on the replica's name belongs to the open file that both share, so the name stays held.
    """
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os.read(reading, 1)  # the supervisor's pid is on record before anybody can ask to stop it
        os.close(reading)
        return False
    os.close(reading)
    os.setsid()
    os.chdir("/")
    descriptor = open_own(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.close(descriptor)
    replica.record_supervisor()
    os.write(writing, b".")
    os.close(writing)
    return True


def _wait_taken_down(replica: Replica) -> None:
    """Until whoever takes down what a killed launch left is done, or a launch is under way."""
    deadline = time.monotonic() + TAKE_DOWN_SECONDS
    while replica.is_held() and not replica.supervised() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def stop_replica(name: str, config: Config) -> None:
    """Ask a replica's supervisor to take it down, or take down what a dead one left."""
    replica = Replica(name, config)
    record = replica.read()
    if not replica.left_anything() and not replica.is_held():
        hint = near_matches_hint(name, replica_names(config))
        raise NotFoundError(f"no replica of that name runs here: {name}", hint=hint)
    if replica.is_held() and not replica.supervised():
        _wait_taken_down(replica)
        record = replica.read()
        if not replica.left_anything() and not replica.is_held():
            return
    if replica.is_held():
        if record is None or not record.supervisor_lives():
            raise BusyError(f"replica is being started or taken down: {name}", hint="try again in a moment")
        with suppress(ProcessLookupError):
            os.kill(record.supervisor_pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_SECONDS
        while replica.is_held():
            if time.monotonic() > deadline:
                raise BusyError(
                    f"replica is still being taken down after {_STOP_TIMEOUT_SECONDS:g} s: {name}"
                )
            time.sleep(_POLL_SECONDS)
        return
    with replica.claim(lambda _: None):
        return
