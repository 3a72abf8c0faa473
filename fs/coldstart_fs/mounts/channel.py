"""Short JSON messages between keepers, servers and commands, over Unix sockets that pass descriptors."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from coldstart_cli.errors import BusyError, IoFailure

_LARGEST_BYTES = 1 << 18
_MOST_DESCRIPTORS = 4


class Channel:
    """One end of a connection that keeps messages apart. A message is a JSON object."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Two connected ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Self:
        """An end that a parent handed down."""
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        self.socket.close()

    def send(self, content: dict[str, Any], descriptors: Sequence[int] = ()) -> bool:
        """False when nobody is at the other end any more, or the message is too long for the kernel."""
        try:
            # a message goes whole or not at all
            socket.send_fds(self.socket, [json.dumps(content).encode("ascii")], list(descriptors))
        except OSError:
            return False
        return True

    def receive(self, timeout_seconds: float | None) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and its descriptors; None when the other end has gone. Late is a `BusyError`."""
        self.socket.settimeout(timeout_seconds)
        try:
            data, descriptors, flags, _ = socket.recv_fds(self.socket, _LARGEST_BYTES, _MOST_DESCRIPTORS)
        except TimeoutError as error:
            raise BusyError("no answer in time") from error
        except OSError:
            return None
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        content = None if flags & socket.MSG_TRUNC else _parsed(data)
        if content is None:  # whoever speaks another language is as good as gone
            for descriptor in descriptors:
                os.close(descriptor)
            return None
        return content, list(descriptors)

    def peer(self) -> tuple[int, int]:
        """Process and user at the other end, as the kernel knows them."""
        packed = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", packed)
        return pid, uid

    def peer_is_trusted(self) -> bool:
        """Whether the other end is this user or root."""
        return self.peer()[1] in {0, os.geteuid()}


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(data)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def listen(path: Path) -> socket.socket:
    """A listening socket for this user alone; one that a dead process left there is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    try:
        with suppress(FileNotFoundError):
            path.unlink()
        _at(path, listener.bind)
        listener.listen(16)
    except OSError as error:
        listener.close()
        raise IoFailure(f"cannot listen at {path}: {error.strerror}") from error
    finally:
        os.umask(mask)
    return listener


def connect(path: Path, timeout_seconds: float = 5.0) -> Channel | None:
    """The way to whoever listens there; None when nobody does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(timeout_seconds)
    try:
        _at(path, connection.connect)
    except OSError as error:
        connection.close()
        if error.errno in {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN}:
            return None
        if isinstance(error, TimeoutError) or error.errno in {errno.ENOTDIR, errno.EPROTOTYPE}:
            return None
        raise IoFailure(f"cannot connect to {path}: {error.strerror}") from error
    return Channel(connection)


def _at(path: Path, call: Any) -> None:
    """Use a socket's path however long it is: the kernel takes 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        call(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
