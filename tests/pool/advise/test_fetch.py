"""Looking at metrics over the network: one deadline, whatever a server does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coldstart_cli.errors import UnreachableError, UsageError
from coldstart_pool.advise.fetch import check_distinct, is_address, scrape_all

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
TEXT = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"


@contextmanager
def server(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """One that answers each connection by `answer`, until the event says that the test has ended."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)

        def serve() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.recv(65536)
                    try:
                        answer(connection, ended)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/metrics"
        finally:
            ended.set()
            thread.join(60)


def drip(piece: bytes, head: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def answer(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(head)
        while not ended.wait(0.1):
            connection.sendall(piece)

    return answer


@pytest.mark.parametrize(
    "answer",
    [drip(b"# x\n", HEAD), drip(b"X-A: b\r\n", HEAD[:-2]), drip(b"", b"")],
    ids=["body", "headers", "silence"],
)
def test_a_server_that_drips_ends_at_the_deadline(
    answer: Callable[[socket.socket, threading.Event], None],
) -> None:
    with server(answer) as address:
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="no whole answer within 1 s") as caught:
            scrape_all([address], deadline_seconds=1)
        assert time.monotonic() - began < 60
        assert address in str(caught.value)


def test_all_replicas_are_looked_at_together_and_the_slow_one_is_named() -> None:
    def whole(connection: socket.socket, _: threading.Event) -> None:
        connection.sendall(HEAD + TEXT)

    with server(whole) as good, server(drip(b"", b"")) as silent:
        assert [found.source for found in scrape_all([good])] == [good]
        with pytest.raises(UnreachableError, match=silent):
            scrape_all([good, silent], deadline_seconds=6)


@pytest.mark.parametrize("address", ["ftp://x/y", "file:///etc/passwd", "unix:///run/s"])
def test_only_http_is_fetched_and_said_so(address: str) -> None:
    with pytest.raises(UsageError, match=f"only http and https addresses are fetched: {address}"):
        is_address(address)


def test_an_address_without_its_scheme_is_pointed_out() -> None:
    with pytest.raises(UsageError) as caught:
        is_address("replica-1:8000/metrics")
    assert caught.value.hint == "http://replica-1:8000/metrics"


@pytest.mark.parametrize(
    "sources",
    [
        ["http://a:1/metrics", "http://b:1/metrics", "http://a:1/metrics"],
        ["http://a:1/metrics", "http://A:1/metrics/"],
        ["a.prom", "./a.prom"],
    ],
)
def test_a_replica_that_is_named_twice_is_refused(sources: list[str]) -> None:
    with pytest.raises(UsageError, match="named twice"):
        check_distinct(sources)


def test_the_second_look_at_a_file_is_another_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="named twice"):
        check_distinct([str(tmp_path / "a.prom")], [tmp_path / "a.prom"])
