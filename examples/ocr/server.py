"""A document-reading server: POST an image to /ocr, get its text lines; GET /health says when it is ready."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_REQUEST_LIMIT_BYTES = 16 << 20
_DETECTOR_PIXELS = 736  # RapidOCR enlarges a picture whose shorter side is smaller than this
_WARM_UP_LINES = ("warm-up 0123456789", "The quick brown fox")


class Reader:
    """The models; None until `load` has read one picture with them."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._one_at_a_time = threading.Lock()

    @property
    def ready(self) -> bool:
        return self._engine is not None

    def load(self) -> None:
        # the imports are most of the start, and /health answers 503 meanwhile
        from rapidocr_onnxruntime import RapidOCR  # type: ignore[import-not-found]

        engine = RapidOCR()
        engine(_warm_up_picture())
        self._engine = engine

    def read(self, image: bytes) -> list[str]:
        """Text lines from top to bottom; ValueError where the bytes are no image."""
        import cv2  # type: ignore[import-not-found]
        import numpy as np

        picture = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
        if picture is None:
            raise ValueError("not an image that can be decoded")
        with self._one_at_a_time:
            found, _ = self._engine(picture)
        return [text for _box, text, _score in found or []]


def _warm_up_picture() -> Any:
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont  # type: ignore[import-not-found]

    picture = Image.new("RGB", (_DETECTOR_PIXELS, _DETECTOR_PIXELS), "white")
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(_WARM_UP_LINES):
        draw.text((40, 40 + 100 * number), line, fill="black", font=ImageFont.load_default(40))
    return np.asarray(picture)


class Handler(BaseHTTPRequestHandler):
    reader: Reader

    def do_GET(self) -> None:
        if self.path != "/health":
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there is GET /health and POST /ocr"})
        elif self.reader.ready:
            self._answer(HTTPStatus.OK, {"status": "ready"})
        else:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "loading"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != "/ocr":
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there is GET /health and POST /ocr"})
        elif not length.isdigit():
            self._answer(HTTPStatus.LENGTH_REQUIRED, {"error": "Content-Length is missing"})
        elif int(length) > _REQUEST_LIMIT_BYTES:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": "larger than 16 MiB"})
        elif not self.reader.ready:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "loading"})
        else:
            self._read_image(int(length))

    def _read_image(self, length: int) -> None:
        started = time.monotonic()
        try:
            lines = self.reader.read(self.rfile.read(length))
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        seconds = round(time.monotonic() - started, 3)
        self._answer(HTTPStatus.OK, {"lines": lines, "seconds": seconds})

    def _answer(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        body = json.dumps(document, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Health probes come many times a second; only failures are worth a line."""

    def log_error(self, format: str, *arguments: Any) -> None:  # noqa: A002
        print(f"{self.command} {self.path}: {format % arguments}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=18230)
    arguments = parser.parse_args()

    started = time.monotonic()
    Handler.reader = Reader()
    server = ThreadingHTTPServer((arguments.host, arguments.port), Handler)
    # the first process of a container has no default action for SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Handler.reader.load()
    print(f"ready after {time.monotonic() - started:.2f} s", file=sys.stderr, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
