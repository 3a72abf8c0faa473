"""The metrics of this host's mounts over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coldstart_cli.errors import CannotCreateError, PermissionNeededError, UsageError


def parse_listen(text: str) -> tuple[str, int]:
    """HOST:PORT, or [HOST]:PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) < 65536 or not host.strip("[]"):
        raise UsageError(f"not an address to listen on: {text}", hint="as 127.0.0.1:9178")
    return host.strip("[]"), int(port)


def serve_metrics(address: tuple[str, int], run_folder: Path, ready: Callable[[str], None]) -> None:
    """Answer GET /metrics until a signal unwinds; `ready` is called with the address when it listens."""
    import socket
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from coldstart_cli.prometheus import exposition
    from coldstart_fs.mounts.metrics import mount_metrics

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # a client that says nothing must not keep a thread

        def do_GET(self) -> None:
            if self.path not in {"/metrics", "/"}:
                self.send_error(404)
                return
            body = exposition(mount_metrics(run_folder)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A scrape every few seconds is worth no line."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        daemon_threads = True

    try:
        server = Server(address, Handler)
    except PermissionError as error:
        raise PermissionNeededError(
            f"cannot listen on {address[0]}:{address[1]}", hint="run as root"
        ) from error
    except OSError as error:
        text = f"cannot listen on {address[0]}:{address[1]}: {error.strerror}"
        raise CannotCreateError(text, hint="choose another port") from error
    with server:
        ready(f"{address[0]}:{server.server_address[1]}")
        server.serve_forever()
