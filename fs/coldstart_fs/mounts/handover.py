"""A connection goes from one keeper to another: over a socket, or out of a server whose keeper is dead."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

from coldstart_cli.errors import BusyError, ColdstartError, NotFoundError, PermissionNeededError
from coldstart_cli.version import __version__
from coldstart_fs.mounts.channel import Channel, connect
from coldstart_fs.mounts.processes import end_process
from coldstart_fs.mounts.server_records import ServerRecord, read_server, socket_path

_ASK_SECONDS = 2.0
# a keeper does nothing that takes longer, but for ending a server that does not want to
_ANSWER_SECONDS = 10.0
_DECIDE_SECONDS = 30.0
_TERM_SECONDS = 1.5
_KILL_SECONDS = 2.0
_SYS_PIDFD_GETFD = 438  # the same on every architecture since Linux 5.6
_libc = ctypes.CDLL(None, use_errno=True)


class Handover:
    """The keeper's side. Until `complete` has said yes, the connection is still its own to serve."""

    def __init__(self, channel: Channel, descriptor: int, journal: int) -> None:
        self._channel = channel
        self._descriptors = [descriptor, journal]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def is_wanted(self) -> bool:
        """Whether somebody who may have it asks for the connection, and has a server ready for it."""
        if not self._channel.peer_is_trusted():
            return False
        if "take_over" not in self._hear(_ASK_SECONDS):
            return False
        given = {"version": __version__, "environment": dict(os.environ)}
        return self._channel.send(given, self._descriptors) and "stop" in self._hear()

    def complete(self) -> bool:
        """Our server has stopped; whether theirs serves."""
        return self._channel.send({"stopped": True}) and "serving" in self._hear()

    def _hear(self, timeout_seconds: float = _DECIDE_SECONDS) -> dict[str, object]:
        try:
            message = self._channel.receive(timeout_seconds)
        except BusyError:
            return {}
        return {} if message is None else message[0]


@dataclass
class TakenConnection:
    """The successor's side: the connection, and the predecessor, which serves until it is stopped."""

    record: ServerRecord
    descriptor: int
    journal: int
    channel: Channel | None
    environment: dict[str, str] = field(default_factory=dict)
    kept: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.channel is not None:
            self.channel.close()
        if not self.kept:
            os.close(self.descriptor)
            os.close(self.journal)

    def ask(self, deadline: float) -> bool:
        """Ask the predecessor for the connection; whether it gave it."""
        assert self.channel is not None
        self.channel.send({"take_over": __version__})
        answer = self._hear(deadline)
        if answer is None or len(answer[1]) != 2:
            return False
        (self.descriptor, self.journal), self.kept = answer[1], False
        self.environment = cast("dict[str, str]", answer[0].get("environment", {}))
        return True

    def stop_predecessor(self, deadline: float) -> None:
        """From here on nobody else answers requests."""
        if self.channel is None:
            end_process(self.record.server, (signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS))
            return
        if not self.channel.send({"stop": True}) or self._hear(deadline) is None:
            raise BusyError(f"keeper went away while it handed over: {self.record.root}")

    def confirm(self) -> None:
        """Our server serves: the predecessor may go."""
        self.kept = True
        if self.channel is not None:
            self.channel.send({"serving": True})

    def _hear(self, deadline: float) -> tuple[dict[str, object], list[int]] | None:
        assert self.channel is not None
        return self.channel.receive(max(0.1, deadline - time.monotonic()))


def receive_connection(folder: Path, deadline: float) -> TakenConnection:
    """The connection of the server whose record lies in `folder`."""
    record = read_server(folder)
    if record is None:
        raise NotFoundError(f"there is no image server on record: {folder}")
    if record.keeper.is_stopped() and record.server.lives():
        # it would hand over nothing; as after its death the server has a copy of all there is
        end_process(record.keeper, (signal.SIGKILL, _KILL_SECONDS))
    if not record.keeper.lives():
        return TakenConnection(record, *_descriptors_of(record), None)
    channel = connect(socket_path(folder))
    if channel is None:
        raise _no_answer(record, "listen")
    taken = TakenConnection(record, -1, -1, channel, kept=True)
    try:
        given = taken.ask(min(deadline, time.monotonic() + _ANSWER_SECONDS))
    except BusyError:
        channel.close()
        raise _no_answer(record, "answer") from None
    if not given:
        channel.close()
        raise _no_answer(record, "hand over")
    return taken


def _no_answer(record: ServerRecord, what: str) -> BusyError:
    return BusyError(
        f"keeper does not {what}: {record.root}: pid {record.keeper.pid}",
        hint="`coldstart image unmount --force` ends the mount whatever hangs",
    )


def _descriptors_of(record: ServerRecord) -> tuple[int, int]:
    """Copies of the connection and the journal that a server has whose keeper is dead."""
    process = record.server.open()
    if process is None:
        raise NotFoundError(f"image server is dead: {record.root}", hint="coldstart image unmount --stale")
    try:
        return _copied(process, record.descriptor, record), _copied(process, record.journal, record)
    finally:
        os.close(process)


def _copied(process: int, number: int, record: ServerRecord) -> int:
    descriptor: int = _libc.syscall(_SYS_PIDFD_GETFD, process, number, 0)
    if descriptor >= 0:
        return descriptor
    failure = ctypes.get_errno()
    text = f"cannot take the connection of pid {record.server.pid}: {os.strerror(failure)}"
    if failure in {errno.EPERM, errno.EACCES}:
        raise PermissionNeededError(text, hint="run as root")
    raise ColdstartError(text)
