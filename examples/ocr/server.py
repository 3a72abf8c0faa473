"""A document-reading server: POST an image to /ocr, get its text lines.

GET /health says when it is ready, GET /metrics what it does. Requests wait in a queue and are read in
batches.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from batching import BatchQueue, QueueFullError
from metrics import Metrics

_REQUEST_LIMIT_BYTES = 16 << 20


class Model(Protocol):
    """What reads batches."""

    def load(self) -> None: ...

    def read(self, images: Sequence[bytes]) -> list[list[str] | Exception]: ...


class Server:
    """The model behind its queue; no queue before it is loaded."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        module, _, name = arguments.model.partition(":")
        self._model: Model = getattr(importlib.import_module(module), name)()
        self._arguments = arguments
        self.metrics = Metrics()
        self.queue: BatchQueue[bytes, list[str]] | None = None

    def load(self) -> None:
        self._model.load()
        self.queue = BatchQueue(
            self._model.read,
            self.metrics,
            batch_limit=self._arguments.batch_limit,
            wait_seconds=self._arguments.batch_wait_milliseconds / 1000,
            queue_limit=self._arguments.queue_limit,
        )


class Handler(BaseHTTPRequestHandler):
    server_state: Server
    timeout = 60  # seconds that a client may be silent in the middle of its request

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(HTTPStatus.OK, "text/plain; version=0.0.4", self.server_state.metrics.text())
        elif self.path != "/health":
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there is GET /health, GET /metrics and POST /ocr"})
        elif self.server_state.queue is not None:
            self._answer(HTTPStatus.OK, {"status": "ready"})
        else:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "loading"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        queue = self.server_state.queue
        if self.path != "/ocr":
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there is GET /health, GET /metrics and POST /ocr"})
        elif not length.isdigit():
            self._answer(HTTPStatus.LENGTH_REQUIRED, {"error": "Content-Length is missing"})
        elif int(length) > _REQUEST_LIMIT_BYTES:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": "larger than 16 MiB"})
        elif queue is None:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "loading"})
        else:
            self._read_image(queue, int(length))

    def _read_image(self, queue: BatchQueue[bytes, list[str]], length: int) -> None:
        image = self.rfile.read(length)
        started = time.monotonic()
        try:
            lines = queue.submit(image).result()
        except QueueFullError as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)})
            return
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        except Exception as error:  # noqa: BLE001 - whatever a model does, its client gets an answer
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"{type(error).__name__}: {error}"})
            return
        seconds = time.monotonic() - started
        self.server_state.metrics.answered(seconds)
        self._answer(HTTPStatus.OK, {"lines": lines, "seconds": round(seconds, 3)})

    def _answer(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(document, ensure_ascii=False).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Health probes come many times a second; only failures are worth a line."""

    def log_error(self, format: str, *arguments: Any) -> None:  # noqa: A002
        print(f"{self.command} {self.path}: {format % arguments}", file=sys.stderr, flush=True)


class HttpServer(ThreadingHTTPServer):
    request_queue_size = 128  # a burst of connections must not wait for the kernel's retries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=18230)
    parser.add_argument("--batch-limit", type=int, default=8, help="requests in a batch; 1: no batching")
    parser.add_argument("--batch-wait-milliseconds", type=float, default=2, help="how long a batch may fill")
    parser.add_argument("--queue-limit", type=int, default=512, help="more requests are refused (503)")
    parser.add_argument("--model", default="ocr_reader:Reader", metavar="MODULE:CLASS")
    arguments = parser.parse_args()

    started = time.monotonic()
    Handler.server_state = Server(arguments)
    server = HttpServer((arguments.host, arguments.port), Handler)
    # the first process of a container has no default action for SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Handler.server_state.load()
    print(f"ready after {time.monotonic() - started:.2f} s", file=sys.stderr, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
