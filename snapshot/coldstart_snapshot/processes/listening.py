"""The listening TCP sockets of our network namespace, asked of the kernel.

/proc/net/tcp goes through the table of all connections, hundreds of thousands of slots on a large host: 3 ms
each time, and more with connections.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from coldstart_snapshot.processes.sock_diag import ask_sockets

_ONLY_LISTENING = 1 << 10
# family, protocol, extensions, padding, states; then which socket, that is any
_QUESTION = struct.Struct("=BBBxI48x")
# family, state and two more; port, the other one, address, the other one, interface, cookie; then the inode
_ANSWER = struct.Struct("=BBBB2s2s16s16s12s16xI")


def listening_sockets() -> tuple[tuple[str, str], ...] | None:
    """Address, as `127.0.0.1:8000`, and inode of each; None where this kernel does not tell all of them."""
    try:
        return (*_of_family(socket.AF_INET), *_of_family(socket.AF_INET6))
    except (OSError, struct.error):  # no such module, or not in this sandbox
        return None


def _of_family(family: int) -> Iterator[tuple[str, str]]:
    for body in ask_sockets(_QUESTION.pack(family, socket.IPPROTO_TCP, 0, _ONLY_LISTENING)):
        _, _, _, _, port, _, address, _, _, inode = _ANSWER.unpack_from(body)
        yield _address(family, address, int.from_bytes(port, "big")), str(inode)


def _address(family: int, address: bytes, port: int) -> str:
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(family, address[:4])}:{port}"
    return f"[{socket.inet_ntop(family, address)}]:{port}"
