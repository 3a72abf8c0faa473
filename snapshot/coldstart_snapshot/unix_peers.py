"""Unix connections that lead out of a process tree: criu 4.2 dumps them and only fails at the restore."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator

from coldstart_cli.errors import DataError, UnavailableError
from coldstart_snapshot.ports import holder_of_socket
from coldstart_snapshot.processes import OpenFile

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x1 | 0x300
_DONE, _ERROR = 3, 2
_SHOW_PEER = 0x4
_ATTRIBUTE_PEER = 2
_CLONE_NEWNET = 0x40000000
_ANSWER_SECONDS = 5.0
_BUFFER_BYTES = 1 << 16
_SOCKET = "socket:["

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBHIIIII")  # family, protocol, pad, states, inode, show, cookie
_MESSAGE = struct.Struct("=BBBBIII")  # family, type, state, pad, inode, cookie
_ATTRIBUTE = struct.Struct("=HH")  # length, type


def refuse_outside_peers(pid: int, files: Iterable[OpenFile]) -> None:
    """Refuse a tree that is connected by a unix socket to a process outside; `pid` lends its network."""
    owners = {int(file.path[len(_SOCKET) : -1]): file for file in files if file.path.startswith(_SOCKET)}
    if not owners:
        return
    for inode, peer in unix_peers(pid).items():
        file = owners.get(inode)
        if file is None or peer == 0 or peer in owners:
            continue
        other, name = holder_of_socket(str(peer))
        if other == 0:
            continue  # nobody holds the other end any more, or it waits to be accepted
        raise DataError(
            f"process {file.pid} holds a unix connection to process {other} ({name}), which is not in the"
            f" snapshot: descriptor {file.descriptor}",
            hint="close it before the capture: journal, D-Bus or a metrics agent",
        )


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
    body = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF)
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
    ) as channel:
        channel.settimeout(_ANSWER_SECONDS)
        channel.sendto(header + body, (0, 0))
        peers: dict[int, int] = {}
        while True:
            for kind, payload in _messages(channel.recv(_BUFFER_BYTES)):
                if kind == _DONE:
                    return peers
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", payload)[0]
                    raise OSError(number, os.strerror(number))
                inode = _MESSAGE.unpack_from(payload)[4]
                for attribute, value in _attributes(payload[_MESSAGE.size :]):
                    if attribute == _ATTRIBUTE_PEER:
                        peers[inode] = struct.unpack("=I", value)[0]


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : length]
        data = data[_aligned(length) :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[_aligned(max(length, _ATTRIBUTE.size)) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
