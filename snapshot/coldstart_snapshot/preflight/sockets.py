"""Findings about sockets: families that criu lacks, and connections that lead out of the tree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from coldstart_snapshot.criu.program import network_lock
from coldstart_snapshot.preflight.finding import Finding, Peer, finding
from coldstart_snapshot.preflight.scene import Scene
from coldstart_snapshot.processes.ports import Connection, port_holder, tcp_connections
from coldstart_snapshot.processes.tree import OpenFile, process_name
from coldstart_snapshot.processes.unix_peers import unix_peers

_SOCKET = "socket:["
# the kernel's names of the protocols that criu 4.2 dumps
_KNOWN = frozenset(
    ("UNIX", "UNIX-STREAM", "TCP", "TCPv6", "UDP", "UDPv6", "UDP-Lite", "UDPLITEv6", "RAW", "RAWv6",
     "NETLINK", "PACKET")
)  # fmt: skip
_REMEDIES = {"MPTCP": "set GODEBUG=multipathtcp=0 in the environment of a Go server"}


@dataclass(frozen=True)
class _Way:
    """Connections of one process to one place."""

    file: OpenFile
    peer: Peer
    count: int
    local: str


def check(scene: Scene) -> Iterator[Finding]:
    sockets = {
        int(file.path[len(_SOCKET) : -1]): file for file in scene.files if file.path.startswith(_SOCKET)
    }
    if not sockets:
        return
    yield from _families(sockets)
    yield from _unix(scene, sockets)
    yield from _tcp(scene, sockets)


def _families(sockets: dict[int, OpenFile]) -> Iterator[Finding]:
    for file in sockets.values():
        with suppress(OSError):
            raw = os.getxattr(f"/proc/{file.pid}/fd/{file.descriptor}", "system.sockprotoname")
            name = raw.rstrip(b"\0").decode("ascii", "replace")
            if name and name not in _KNOWN:
                word = name.removeprefix("AF_").lower()
                what = (
                    f"a socket of a family that cannot be captured is open: {word}:"
                    f" descriptor {file.descriptor} of {_who(file)}"
                )
                yield finding(
                    "socket-family",
                    what,
                    remedy=_REMEDIES.get(name),
                    pid=file.pid,
                    descriptor=file.descriptor,
                    path=file.path,
                )


def _unix(scene: Scene, sockets: dict[int, OpenFile]) -> Iterator[Finding]:
    """Stream connections to the outside are dumped by criu 4.2 with status 0, and fail at the restore."""
    for inode, other in unix_peers(scene.target.pid).items():
        file = sockets.get(inode)
        if file is None or other == 0 or other in sockets:
            continue
        pid = scene.outside.get(f"{_SOCKET}{other}]")
        if pid is None:
            continue  # nobody holds the other end any more, or it waits to be accepted
        name = process_name(pid)
        what = (
            f"process {file.pid} holds a unix connection to process {pid} ({name}), which is not in the"
            f" snapshot: descriptor {file.descriptor}"
        )
        yield finding(
            "unix-peer-outside",
            what,
            pid=file.pid,
            descriptor=file.descriptor,
            path=file.path,
            peer=Peer(pid, name),
        )


def _tcp(scene: Scene, sockets: dict[int, OpenFile]) -> Iterator[Finding]:
    """The restored server goes on with them: its first packet is answered by a reset, or not at all."""
    table = tcp_connections(scene.target.pid)
    mine = [connection for connection in table if connection.inode in sockets]
    if not mine:
        return
    if network_lock(scene.criu) == "skip":
        what = f"TCP connections cannot be held still during the capture: {len(mine)} are open"
        yield finding("network-lock", what)
    ends = {(end.local, end.remote): end.inode for end in (*tcp_connections(os.getpid()), *table)}
    ways: dict[tuple[int, str], _Way] = {}
    for connection in mine:
        other = ends.get((connection.remote, connection.local))
        if other in sockets:
            continue
        file = sockets[connection.inode]
        peer = _peer(scene, connection, other)
        key = (file.pid, f"{peer.pid} {connection.remote.rpartition(':')[0]}")
        before = ways.get(key)
        ways[key] = _Way(file, peer, before.count + 1 if before else 1, connection.local)
    for way in ways.values():
        yield _leads_out(way)


def _leads_out(way: _Way) -> Finding:
    file, peer = way.file, way.peer
    connections = "a TCP connection" if way.count == 1 else f"{way.count} TCP connections"
    whom = f"process {peer.pid} ({peer.program}), {peer.address}" if peer.pid else peer.address
    what = f"{_who(file)} holds {connections} to {whom}, not in the snapshot: descriptor {file.descriptor}"
    if not way.local.startswith(("127.", "[::1]")):
        what += f"; a restore elsewhere fails unless {way.local.rpartition(':')[0]} is there"
    return finding(
        "tcp-peer-outside", what, pid=file.pid, descriptor=file.descriptor, path=file.path, peer=peer
    )


def _peer(scene: Scene, connection: Connection, inode: int | None) -> Peer:
    """Who is at the other end, where that is on this host: `inode` is 0 while nobody has accepted it."""
    pid = scene.outside.get(f"{_SOCKET}{inode}]", 0) if inode else 0
    if inode == 0 and (holder := port_holder(connection.remote)):
        pid = holder[0]
    return Peer(pid, process_name(pid) if pid else "?", connection.remote)


def _who(file: OpenFile) -> str:
    return f"process {file.pid} ({process_name(file.pid)})"
