"""A link between a client and a server of this host: a TCP proxy that delays and paces as a network does.

    bench/link.py --listen 127.0.0.1:8001 --to 127.0.0.1:8000 --rtt-ms 50 --mbit 200

The rate is shared by all connections, for each direction. A connection costs a round trip before its first
byte, begins with ten segments in flight, and doubles them every round trip; after a silence it begins anew,
as on Linux. It runs in a process of its own, so that its cost is not the client's; `link` starts and ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_PIECE_BYTES = 64 << 10
_SEGMENT_BYTES = 1448
_FIRST_WINDOW_BYTES = 10 * _SEGMENT_BYTES
_LARGEST_WINDOW_BYTES = 6 << 20  # tcp_rmem's default end
_LEAST_QUEUE_SECONDS = 0.005


@dataclass(frozen=True)
class LinkKind:
    """What a link is like. No rate: only the delay counts."""

    rtt_seconds: float
    bytes_per_second: float | None


LAN = LinkKind(0.001, 125e6)
WAN = LinkKind(0.050, 25e6)


@contextmanager
def link(target: str, kind: LinkKind, *, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """A running link to `target`; yields the HOST:PORT to use in its place."""
    rate = [] if kind.bytes_per_second is None else ["--mbit", str(kind.bytes_per_second * 8 / 1e6)]
    pace = ["--rtt-ms", str(kind.rtt_seconds * 1000)]
    process = subprocess.Popen(
        [sys.executable, __file__, "--listen", listen, "--to", target, *pace, *rate],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise SystemExit(f"bench: the link to {target} does not start")
        yield address
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


class Lane:
    """One direction of the link: bytes leave one after the other, at its rate."""

    def __init__(self, kind: LinkKind) -> None:
        self.delay_seconds = kind.rtt_seconds / 2
        self._rate = kind.bytes_per_second
        self._queue_seconds = max(_LEAST_QUEUE_SECONDS, kind.rtt_seconds)
        self._free_at = 0.0
        self._turn = asyncio.Lock()

    async def book(self, size_bytes: int) -> float:
        """Wait for room in the queue, then for nothing: the time at which the last byte arrives."""
        loop = asyncio.get_running_loop()
        if self._rate is None:
            return loop.time() + self.delay_seconds
        async with self._turn:  # first come, first served
            ahead = self._free_at - loop.time() - self._queue_seconds
            if ahead > 0:
                await asyncio.sleep(ahead)
            self._free_at = max(loop.time(), self._free_at) + size_bytes / self._rate
            return self._free_at + self.delay_seconds


class Flow:
    """One direction of one connection: so much in flight, growing by what is acknowledged."""

    def __init__(self, lane: Lane, rtt_seconds: float) -> None:
        self._lane = lane
        self._rtt_seconds = rtt_seconds
        self._window = _FIRST_WINDOW_BYTES
        self._in_flight = 0
        self._room = asyncio.Event()
        self._acknowledged_at = 0.0

    async def carry(self, source: socket.socket, target: socket.socket) -> None:
        """Until the source ends; then the target hears so, as late as everything else."""
        arriving: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivery = asyncio.create_task(self._deliver(arriving, target))
        loop = asyncio.get_running_loop()
        try:
            while True:
                while self._in_flight >= self._window:
                    self._room.clear()
                    await self._room.wait()
                self._forget_after_silence(loop.time())
                data = await loop.sock_recv(source, min(_PIECE_BYTES, self._window - self._in_flight))
                self._in_flight += len(data)
                await arriving.put((await self._lane.book(len(data)), data))
                if not data:
                    break
            await delivery
        finally:
            delivery.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await delivery

    def _forget_after_silence(self, now: float) -> None:
        if not self._in_flight and now - self._acknowledged_at > 0.2 + self._rtt_seconds:
            self._window = _FIRST_WINDOW_BYTES

    async def _deliver(self, arriving: asyncio.Queue[tuple[float, bytes]], target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await arriving.get()
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(target, data)
            loop.call_later(self._lane.delay_seconds, self._acknowledge, len(data))

    def _acknowledge(self, size_bytes: int) -> None:
        self._acknowledged_at = asyncio.get_running_loop().time()
        self._in_flight -= size_bytes
        self._window = min(_LARGEST_WINDOW_BYTES, self._window + size_bytes)
        self._room.set()


class Link:
    def __init__(self, kind: LinkKind, target: tuple[str, int]) -> None:
        self._kind = kind
        self._target = target
        self._up, self._down = Lane(kind), Lane(kind)
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            task = asyncio.create_task(self._connection(client))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _connection(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = socket.socket()
        with client, server, suppress(OSError):
            for end in (client, server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.sleep(self._kind.rtt_seconds)
            await loop.sock_connect(server, self._target)
            flows = [
                asyncio.create_task(Flow(self._up, self._kind.rtt_seconds).carry(client, server)),
                asyncio.create_task(Flow(self._down, self._kind.rtt_seconds).carry(server, client)),
            ]
            try:
                await asyncio.gather(*flows)
            finally:
                for flow in flows:
                    flow.cancel()
                # before their sockets are closed: the loop would go on looking at them
                await asyncio.gather(*flows, return_exceptions=True)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", type=_address, default=("127.0.0.1", 0), metavar="HOST:PORT")
    parser.add_argument("--to", type=_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--rtt-ms", type=float, default=0.0)
    parser.add_argument("--mbit", type=float, help="per direction; without: no limit")
    given = parser.parse_args()
    kind = LinkKind(given.rtt_ms / 1000, given.mbit and given.mbit * 1e6 / 8)
    listener = socket.create_server(given.listen, backlog=1024)
    listener.setblocking(False)
    host, port = listener.getsockname()[:2]
    print(f"{host}:{port}", flush=True)
    # epoll's timeouts are whole milliseconds
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    with suppress(KeyboardInterrupt):
        loop.run_until_complete(Link(kind, given.to).serve(listener))


if __name__ == "__main__":
    main()
