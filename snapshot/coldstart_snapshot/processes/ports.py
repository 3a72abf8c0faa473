"""Who listens where: TCP addresses of a tree, and the holder of an address or socket on this host."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_snapshot.processes.tree import all_pids, open_files, process_name

_TCP_LISTEN = "0A"
_TCP_CLOSED = "07"
_MAPPED = "[::ffff:"


@dataclass(frozen=True)
class Connection:
    """One end of a TCP connection; addresses as `127.0.0.1:8000`, also where the socket is one of IPv6."""

    inode: int
    local: str
    remote: str


def listening_ports(pids: Iterable[int]) -> tuple[str, ...]:
    """TCP addresses that these processes listen on, as `127.0.0.1:8000`."""
    numbers = tuple(pids)
    inodes = {
        file.path.removeprefix("socket:[").rstrip("]")
        for file in open_files(numbers)
        if file.path.startswith("socket:")
    }
    found = set()
    for table in ("tcp", "tcp6"):
        for address, inode in _listeners(Path(f"/proc/{numbers[0]}/net/{table}")):
            if inode in inodes:
                found.add(address)
    return tuple(sorted(found))


def port_holder(address: str) -> tuple[int, str] | None:
    """Who listens on a TCP address of this host: pid and name; pid 0 where it cannot be told."""
    port = address.rpartition(":")[2]
    for taken, inode in _all_listeners():
        if taken.rpartition(":")[2] == port and _collide(taken, address):
            return holder_of_socket(inode)
    return None


def _all_listeners() -> Iterable[tuple[str, str]]:
    from coldstart_snapshot.processes.listening import listening_sockets

    told = listening_sockets()
    if told is not None:
        return told
    return (found for table in ("tcp", "tcp6") for found in _listeners(Path(f"/proc/net/{table}")))


def tcp_connections(pid: int) -> tuple[Connection, ...]:
    """Every TCP connection in the network namespace of a process, in whatever state."""
    found = []
    for table in ("tcp", "tcp6"):
        for fields in _rows(Path(f"/proc/{pid}/net/{table}")):
            if fields[3] not in {_TCP_LISTEN, _TCP_CLOSED}:
                local, remote = _plain_address(fields[1]), _plain_address(fields[2])
                found.append(Connection(int(fields[9]), local, remote))
    return tuple(found)


def _plain_address(text: str) -> str:
    """An address of IPv4 that an IPv6 socket has, as the other end writes it."""
    host, _, port = _address(text).rpartition(":")
    return f"{host[len(_MAPPED) : -1]}:{port}" if host.startswith(_MAPPED) else f"{host}:{port}"


def _collide(one: str, other: str) -> bool:
    hosts = {one.rpartition(":")[0], other.rpartition(":")[0]}
    return len(hosts) == 1 or bool(hosts & {"0.0.0.0", "[::]"})  # noqa: S104 - compared, not bound


def holder_of_socket(inode: str) -> tuple[int, str]:
    """A process that has this socket open: pid and name, or pid 0."""
    link = f"socket:[{inode}]"
    for pid in all_pids():
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{number}") == link:
                    return pid, process_name(pid)
    return 0, "?"


def _listeners(table: Path) -> Iterator[tuple[str, str]]:
    for fields in _rows(table):
        if fields[3] == _TCP_LISTEN:
            yield _address(fields[1]), fields[9]


def _rows(table: Path) -> Iterator[list[str]]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        yield line.split()


def _address(text: str) -> str:
    import socket

    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    raw = b"".join(words)
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"
