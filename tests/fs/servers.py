"""Real servers for stores: moto's S3, nginx over a folder, and one that answers wrongly when told to."""

from __future__ import annotations

import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import wait_until
from ports import free_port

_LINE = re.compile(r'"(?:\x1b\[\d+m)*([A-Z]+) (\S+) HTTP/1\.1(?:\x1b\[0m)?" (\d+)')


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server as a process, once it answers on its port."""
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
    try:
        wait_until(
            lambda: answers(port) or process.poll() is not None, f"{command[0]} on port {port}: {log}", 60
        )
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    status: int


@dataclass
class S3Server:
    """moto's server; it asks for no valid credentials."""

    port: int
    log: Path

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "a-secret-that-nobody-may-see",
            "AWS_REGION": "us-east-1",
            "GOOGLE_BASE_URL": self.endpoint,
            "GOOGLE_BEARER_TOKEN": "another-secret",
        }

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=60):
            pass

    def requests(self, bucket: str) -> list[Request]:
        """What was asked of a bucket so far, in order."""
        found = _LINE.findall(self.log.read_text("utf-8", "replace"))
        return [
            Request(method, path, int(status))
            for method, path, status in found
            if path.startswith(f"/{bucket}")
        ]


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    if find_spec("moto") is None or find_spec("flask") is None:
        pytest.skip("moto's server is not installed")
    server = S3Server(free_port(), folder / "moto.log")
    program = str(Path(sys.executable).parent / "moto_server")
    with running([program, "-H", "127.0.0.1", "-p", str(server.port)], server.port, server.log):
        yield server


_NGINX = """
daemon off;
user root;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log {folder}/access.log;
  default_type application/octet-stream;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port} {options}; root {root}; {more} }}
}}
"""


@dataclass
class Nginx:
    url: str
    access_log: Path


@contextmanager
def nginx(folder: Path, root: Path, *, more: str = "", options: str = "") -> Iterator[Nginx]:
    """nginx serving a folder, as a store is published over HTTP; `more` goes into its server block."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if program is None:
        pytest.skip("nginx is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(_NGINX.format(folder=folder, root=root, port=port, more=more, options=options))
    with running([program, "-e", f"{folder}/error.log", "-c", str(configuration)], port, folder / "out.log"):
        yield Nginx(f"http://127.0.0.1:{port}", folder / "access.log")


Fault = Callable[["FaultyHandler"], bool]
"""Answers a request wrongly, or leaves it alone and says so by false."""


@dataclass
class FaultyServer:
    """Serves a folder with ranges, except where `fault` takes a request over."""

    root: Path
    port: int = 0
    fault: Fault = lambda _: False
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and range of every request."""
    silent_seconds: float = 60.0
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class FaultyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # heads and bodies are written apart: 40 ms a request
    faulty: FaultyServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.faulty.requests.append((self.command, self.path, self.headers.get("Range")))
        with suppress(ConnectionError):
            if not self.faulty.fault(self):
                self.serve()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def do_POST(self) -> None:
        self.do_PUT()

    def content(self) -> bytes | None:
        path = self.faulty.root / self.path.partition("?")[0].lstrip("/")
        return path.read_bytes() if path.is_file() else None

    def wanted(self, content: bytes) -> tuple[int, int]:
        """The range that is asked for, its end exclusive."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        assert match is not None
        end = int(match[2]) + 1 if match[2] else len(content)
        return int(match[1]), min(end, len(content))

    def serve(self) -> None:
        content = self.content()
        if content is None:
            self.say(404, b"")
        elif self.headers.get("Range") is None:
            self.say(200, content)
        else:
            start, end = self.wanted(content)
            self.say_range(content[start:end], start, end, len(content))

    def say_range(self, body: bytes, start: int, end: int, size: int) -> None:
        self.say(206, body, {"Content-Range": f"bytes {start}-{end - 1}/{size}"})

    def say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def faulty_server(root: Path) -> Iterator[FaultyServer]:
    faulty = FaultyServer(root)
    handler = type("Handler", (FaultyHandler,), {"faulty": faulty})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    faulty.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield faulty
    finally:
        faulty.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join(60)


def reset(handler: FaultyHandler) -> bool:
    """The connection ends with an RST, as when a server's process dies."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True
    return True


def silence(handler: FaultyHandler) -> bool:
    """Nothing at all, for longer than anybody waits."""
    handler.faulty.stopping.wait(handler.faulty.silent_seconds)
    handler.close_connection = True
    return True


def answer(status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> Fault:
    def fault(handler: FaultyHandler) -> bool:
        handler.say(status, body, headers)
        return True

    return fault


def whole(handler: FaultyHandler) -> bool:
    """The whole object with status 200, whatever range is asked for."""
    content = handler.content()
    if content is None:
        return False
    handler.say(200, content)
    return True


def short_body(handler: FaultyHandler) -> bool:
    """Fewer bytes than announced, then the end of the connection."""
    content = handler.content()
    if content is None:
        return False
    start, end = handler.wanted(content)
    headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}", "Content-Length": str(end - start)}
    handler.say(206, content[start : end - 5], headers)
    handler.close_connection = True
    return True


def short_range(handler: FaultyHandler) -> bool:
    """Fewer bytes than the range that the answer says it is."""
    content = handler.content()
    if content is None:
        return False
    start, end = handler.wanted(content)
    handler.say_range(content[start : end - 5], start, end, len(content))
    return True


def other_range(handler: FaultyHandler) -> bool:
    """The range one byte further on."""
    content = handler.content()
    if content is None:
        return False
    start, end = handler.wanted(content)
    handler.say_range(content[start + 1 : end + 1], start + 1, end + 1, len(content))
    return True


def claimed_range(handler: FaultyHandler) -> bool:
    """Other bytes than the range that the answer says it is: only a digest finds that out."""
    content = handler.content()
    if content is None:
        return False
    start, end = handler.wanted(content)
    handler.say_range(content[start + 1 : end] + b"x", start, end, len(content))
    return True


def page(handler: FaultyHandler) -> bool:
    """A login page, with the status and the range that were asked for."""
    body = b"<html>please log in</html>"
    if (asked := handler.headers.get("Range")) is None:
        handler.say(200, body, {"Content-Type": "text/html; charset=utf-8"})
    else:
        span = asked.removeprefix("bytes=")
        handler.say(206, body, {"Content-Type": "text/html", "Content-Range": f"bytes {span}/9999999"})
    return True


def flipped_bit(handler: FaultyHandler) -> bool:
    """The right range with one bit wrong."""
    content = handler.content()
    if content is None or handler.headers.get("Range") is None:
        return False
    start, end = handler.wanted(content)
    body = bytearray(content[start:end])
    body[len(body) // 2] ^= 0x10
    handler.say_range(bytes(body), start, end, len(content))
    return True


def endless(handler: FaultyHandler) -> bool:
    """A whole object that is too large to be sent for a range, and that nobody may read to its end."""
    handler.say(200, b"x" * 1000, {"Content-Length": str(64 << 30)})
    handler.close_connection = True
    return True


def encoded(handler: FaultyHandler) -> bool:
    """The right range, said to be compressed."""
    content = handler.content()
    if content is None:
        return False
    start, end = handler.wanted(content)
    span = f"bytes {start}-{end - 1}/{len(content)}"
    handler.say(206, content[start:end], {"Content-Range": span, "Content-Encoding": "gzip"})
    return True


def _half(handler: FaultyHandler) -> None:
    """The head of the right answer and half of its body."""
    content = handler.content()
    assert content is not None
    start, end = handler.wanted(content)
    headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}", "Content-Length": str(end - start)}
    handler.say(206, content[start : (start + end) // 2], headers)


def reset_in_body(handler: FaultyHandler) -> bool:
    """Half a body, then an RST."""
    _half(handler)
    return reset(handler)


def stall_in_body(handler: FaultyHandler) -> bool:
    """Half a body, then nothing."""
    _half(handler)
    return silence(handler)


def drip(handler: FaultyHandler) -> bool:
    """A body that comes, and never fast enough to be silent or of use."""
    content = handler.content()
    assert content is not None
    start, end = handler.wanted(content)
    headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}", "Content-Length": str(end - start)}
    handler.say(206, b"", headers)
    for place in range(start, end, 512):
        if handler.faulty.stopping.wait(0.02):
            break
        handler.wfile.write(content[place : min(place + 512, end)])
    handler.close_connection = True
    return True


def garbage(handler: FaultyHandler) -> bool:
    """No HTTP at all."""
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    handler.close_connection = True
    return True


def first(times: int, fault: Fault) -> Fault:
    """A fault that goes away."""
    left = [times]

    def sometimes(handler: FaultyHandler) -> bool:
        if left[0] <= 0:
            return False
        left[0] -= 1
        return fault(handler)

    return sometimes


def slowly(seconds: float) -> Fault:
    def fault(handler: FaultyHandler) -> bool:
        time.sleep(seconds)
        return False

    return fault
