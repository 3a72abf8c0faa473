"""The links that benchmarks run over: whole bytes, and never sooner or faster than the link allows."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import REPOSITORY
from fs.servers import FaultyServer, faulty_server

RTT_SECONDS, BYTES_PER_SECOND = 0.05, 5e6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    with faulty_server(tmp_path) as server:
        yield server


@pytest.fixture
def linked(server: FaultyServer) -> Iterator[str]:
    """The server's address at the far end of a link."""
    command = [sys.executable, REPOSITORY / "bench/link.py", "--to", f"127.0.0.1:{server.port}"]
    command += ["--rtt-ms", str(RTT_SECONDS * 1000), "--mbit", str(BYTES_PER_SECOND * 8 / 1e6)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


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
