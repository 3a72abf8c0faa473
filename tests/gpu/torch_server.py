"""The same server as stand_ins/gpu_server.py on torch: answers are sums of products on the GPU."""

from __future__ import annotations

import hashlib
import http.server
import os
import sys
import threading
from typing import Any

import torch

MIB = int(os.environ.get("GPU_SERVER_MIB", "64"))

side = int((MIB * 2**20 / 2) ** 0.5)
weights = torch.randn(side, side, dtype=torch.float16, device="cuda")
state: dict[str, Any] = {"cache": torch.zeros(1 << 20, device="cuda")}
turn = threading.Lock()


def answer(text: str) -> str:
    torch.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big"))
    vector = torch.randn(side, dtype=torch.float16, device="cpu").to("cuda")
    return hashlib.sha256((weights @ vector).cpu().numpy().tobytes()).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, _, text = self.path.partition("?")
        with turn:
            self.say(answer(text) if path == "/answer" else "ok")

    def do_POST(self) -> None:
        with turn:
            state["cache"] = None if self.path == "/sleep" else torch.zeros(1 << 20, device="cuda")
            torch.cuda.empty_cache()
        self.say("ok")

    def say(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: Any) -> None:
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
