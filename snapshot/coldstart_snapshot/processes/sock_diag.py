"""What the kernel tells of sockets by sock_diag(7), in the network namespace of the calling thread."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

_NETLINK_SOCK_DIAG = 4  # Python has no name for it
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x1 | 0x300
_INTERRUPTED = 0x10
_ERROR, _DONE = 2, 3
_ANSWER_SECONDS = 5.0
_BUFFER_BYTES = 1 << 16
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port


def ask_sockets(question: bytes) -> Iterator[bytes]:
    """Each answer to a question, which begins with a family; `OSError` where not all are told."""
    header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
    ) as channel:
        channel.settimeout(_ANSWER_SECONDS)
        channel.sendto(header + question, (0, 0))
        while True:
            for kind, flags, body in _messages(channel.recv(_BUFFER_BYTES)):
                if flags & _INTERRUPTED:
                    raise OSError(errno.EINTR, "sockets were not told whole")
                if kind in {_ERROR, _DONE}:
                    number = -struct.unpack_from("=i", body)[0]
                    if kind == _ERROR or number > 0:
                        raise OSError(number, os.strerror(number))
                    return
                yield body


def aligned(length: int) -> int:
    """Where what follows begins."""
    return (length + 3) & ~3


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind, flags, *_ = _HEADER.unpack_from(data)
        yield kind, flags, data[_HEADER.size : length]
        data = data[aligned(max(length, _HEADER.size)) :]
