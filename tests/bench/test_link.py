"""The links that benchmarks run over: whole bytes, and never sooner or faster than the link allows."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import REPOSITORY
from fs.servers import FaultyServer, faulty_server

RTT_SECONDS, BYTES_PER_SECOND = 0.05, 5e6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    with faulty_server(tmp_path) as server:
        yield server


@contextmanager
def link_to(port: int, *options: str) -> Iterator[int]:
    """The port of a running link."""
    command = [sys.executable, REPOSITORY / "bench/link.py", "--to", f"127.0.0.1:{port}", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


OPTIONS = ["--rtt-ms", str(RTT_SECONDS * 1000), "--mbit", str(BYTES_PER_SECOND * 8 / 1e6)]


@pytest.fixture
def linked(server: FaultyServer) -> Iterator[str]:
    """The server's address at the far end of a link."""
    with link_to(server.port, *OPTIONS) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server that is the test itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        yield listener


@pytest.fixture
def slow_link(listener: socket.socket) -> Iterator[int]:
    with link_to(listener.getsockname()[1], *OPTIONS) as port:
        yield port


@contextmanager
def both_ends(port: int, listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client of the link and its connection as the server sees it."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        server, _ = listener.accept()
        with server:
            server.settimeout(60)
            yield client, server


def receive(end: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        piece = end.recv(size_bytes - len(received))
        assert piece, f"ended after {len(received)} of {size_bytes} bytes"
        received += piece
    return bytes(received)


def carry(source: socket.socket, target: socket.socket, content: bytes) -> float:
    """Seconds from the first byte sent to the last received."""
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(source.sendall, content)
        assert receive(target, len(content)) == content
        sent.result(60)
    return time.monotonic() - began


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def test_a_link_is_never_faster_than_it_says(server: FaultyServer, linked: str) -> None:
    content = os.urandom(500_000)
    (server.root / "small").write_bytes(b"x")
    (server.root / "large").write_bytes(content)
    began = time.monotonic()
    assert get(f"{linked}/small") == b"x"
    assert time.monotonic() - began >= 2 * RTT_SECONDS  # a connection, then a request
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(get, [f"{linked}/large"] * 4)) == [content] * 4
    assert time.monotonic() - began >= 4 * len(content) / BYTES_PER_SECOND


def test_clients_that_leave_in_the_middle_do_not_end_the_link(server: FaultyServer, linked: str) -> None:
    (server.root / "small").write_bytes(b"x")
    host, port = linked.removeprefix("http://").split(":")
    for _ in range(10):
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET /small HTTP/1.1\r\nHost: link\r\n\r\n")
            while not client.recv(1000).endswith(b"x"):  # then both directions wait
                pass
    assert get(f"{linked}/small") == b"x"


def test_a_connection_begins_slowly_and_again_after_a_silence(
    slow_link: int, listener: socket.socket
) -> None:
    content = os.urandom(200_000)  # more than the first three windows, less than four
    slowly = 3.5 * RTT_SECONDS
    with both_ends(slow_link, listener) as (client, server):
        first = carry(server, client, content)
        assert first >= slowly
        assert carry(server, client, content) < first
        assert not select.select([client], [], [], 0.3 + RTT_SECONDS)[0]
        assert carry(server, client, content) >= slowly


def test_connections_share_the_rate(slow_link: int, listener: socket.socket) -> None:
    content = os.urandom(1_000_000)
    with both_ends(slow_link, listener) as one, both_ends(slow_link, listener) as other:
        began = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            took = list(pool.map(lambda ends: carry(ends[1], ends[0], content), [one, other]))
        assert time.monotonic() - began >= 2 * len(content) / BYTES_PER_SECOND
        assert min(took) > 1.5 * len(content) / BYTES_PER_SECOND  # neither goes first


def test_directions_do_not_share_the_rate(slow_link: int, listener: socket.socket) -> None:
    content = os.urandom(2_000_000)
    with both_ends(slow_link, listener) as (client, server), ThreadPoolExecutor(2) as pool:
        began = time.monotonic()
        list(pool.map(lambda ends: carry(*ends, content), [(client, server), (server, client)]))
        assert time.monotonic() - began < 2 * len(content) / BYTES_PER_SECOND


def test_one_direction_goes_on_after_the_other_has_ended(slow_link: int, listener: socket.socket) -> None:
    content = os.urandom(300_000)
    with both_ends(slow_link, listener) as (client, server):
        began = time.monotonic()
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        assert receive(server, 8) == b"question"
        assert server.recv(1) == b""
        assert time.monotonic() - began >= RTT_SECONDS / 2
        carry(server, client, content)
        server.sendall(b"last")
        server.close()
        assert receive(client, 4) == b"last"
        assert client.recv(1) == b""


@pytest.mark.parametrize("leaves", ["client", "server"])
def test_an_end_that_leaves_in_the_middle_of_a_body_is_noticed_by_the_other(
    slow_link: int, listener: socket.socket, leaves: str
) -> None:
    with both_ends(slow_link, listener) as ends:
        leaving, staying = ends if leaves == "client" else ends[::-1]
        with ThreadPoolExecutor(1) as pool, pytest.raises(OSError) as error:  # noqa: PT012
            body = pool.submit(staying.sendall, bytes(1 << 30))
            receive(leaving, 100_000)
            leaving.close()
            body.result(60)
        assert not isinstance(error.value, TimeoutError)
    with both_ends(slow_link, listener) as (client, server):
        carry(client, server, b"still there")


def test_a_server_that_is_not_there_ends_the_connection(listener: socket.socket) -> None:
    with link_to(listener.getsockname()[1]) as port:
        listener.close()
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                assert client.recv(1) == b""


def test_a_client_that_does_not_read_stops_the_server(listener: socket.socket) -> None:
    with link_to(listener.getsockname()[1]) as port, both_ends(port, listener) as (client, server):
        server.setblocking(False)
        piece, sent_bytes = bytes(1 << 20), 0
        while select.select([], [server], [], 1)[1]:
            sent_bytes += server.send(piece)
            assert sent_bytes < 100 << 20
        with ThreadPoolExecutor(1) as pool:
            received = pool.submit(receive, client, sent_bytes)
            assert received.result(60) == bytes(sent_bytes)
