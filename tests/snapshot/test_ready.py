"""Waiting until a server is ready, its process is gone, or time is up."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from coldstart_cli.errors import BusyError, UsageError
from coldstart_snapshot.answers.ready import ServerEndedError, _ask, wait_ready
from snapshot.servers import free_port, url


class _Handler(http.server.BaseHTTPRequestHandler):
    left = 0

    def do_GET(self) -> None:
        _Handler.left -= 1
        self.send_response(503 if _Handler.left > 0 else 200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_it_is_asked_until_it_answers_200(server: int) -> None:
    _Handler.left = 4
    wait_ready(url(server), 60)
    assert _Handler.left == 0


def test_the_last_answer_is_in_the_error(server: int) -> None:
    _Handler.left = 10_000
    with pytest.raises(BusyError, match=r"not ready after 3 s: http://127.0.0.1:\d+/health: 503"):
        wait_ready(url(server), 3)


def test_a_server_that_ended_is_not_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(ServerEndedError, match=f"process {child.pid}"):
        wait_ready(url(free_port()), 60, pid=child.pid)


@pytest.mark.parametrize(
    "bad",
    [
        "8000",
        "ftp://x/",
        "http://",
        "http://127.0.0.1:0/",
        "http://h:99999/",
        f"http://{'h' * 64}/",
        "http://h/ü",
    ],
)
def test_an_url_that_cannot_be_asked_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="ready URL cannot be used"):
        wait_ready(bad, 1)


def test_an_address_that_cannot_be_encoded_is_an_answer_and_no_traceback() -> None:
    assert "label" in _ask(urlsplit(f"http://{'h' * 64}/"), 1)
