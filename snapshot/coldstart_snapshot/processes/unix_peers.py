"""Which unix socket is connected to which, as the kernel tells by netlink."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator

from coldstart_cli.errors import UnavailableError
from coldstart_snapshot.processes.sock_diag import aligned, ask_sockets

_SHOW_PEER = 0x4
_ATTRIBUTE_PEER = 2
_CLONE_NEWNET = 0x40000000

_REQUEST = struct.Struct("=BBHIIIII")  # family, protocol, pad, states, inode, show, cookie
_MESSAGE = struct.Struct("=BBBBIII")  # family, type, state, pad, inode, cookie
_ATTRIBUTE = struct.Struct("=HH")  # length, type


def unix_peers(pid: int) -> dict[int, int]:
    """The peer of each connected unix socket in the network namespace of a process, by inode."""
    found: dict[int, int] = {}
    failures: list[OSError] = []

    def look() -> None:
        # a thread of its own may change its network namespace without anybody noticing
        try:
            _enter_network(pid)
            found.update(_query())
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=look, name="unix-peers")
    thread.start()
    thread.join()
    if failures:
        raise UnavailableError(
            f"cannot see unix connections: {failures[0].strerror}", hint="modprobe unix_diag, and run as root"
        )
    return found


def _enter_network(pid: int) -> None:
    if os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        return
    libc = ctypes.CDLL(None, use_errno=True)  # Python has setns since 3.12
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def _query() -> dict[int, int]:
    question = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF)
    peers: dict[int, int] = {}
    for answer in ask_sockets(question):
        inode = _MESSAGE.unpack_from(answer)[4]
        for attribute, value in _attributes(answer[_MESSAGE.size :]):
            if attribute == _ATTRIBUTE_PEER:
                peers[inode] = struct.unpack("=I", value)[0]
    return peers


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[aligned(max(length, _ATTRIBUTE.size)) :]
