"""An HTTP server on a GPU: its answers come from memory of the GPU, and nothing of that is kept elsewhere.

    gpu_server.py PORT [DEVICE]

/answer?TEXT hashes the weights together with TEXT; /weights is their digest; /cache says how much the KV
cache holds, and every answer adds to it. POST /sleep frees the cache, POST /wake_up allocates an empty one.
It uses nothing but functions of the real library, and runs on a real GPU as it is.
"""

from __future__ import annotations

import ctypes
import hashlib
import http.server
import json
import os
import sys
import threading
from typing import Any

WEIGHTS_BYTES = int(os.environ.get("GPU_SERVER_MIB", "4")) << 20
CACHE_BYTES = 2 << 20

library = ctypes.CDLL("libcuda.so.1")
device = int(sys.argv[2]) if len(sys.argv) > 2 else 0


def call(name: str, *arguments: Any) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        raise OSError(f"{name}: CUDA error {code}")


def allocate(size: int) -> ctypes.c_uint64:
    pointer = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer


def read(pointer: ctypes.c_uint64, size: int) -> bytes:
    content = ctypes.create_string_buffer(size)
    call("cuMemcpyDtoH_v2", content, pointer, ctypes.c_size_t(size))
    return content.raw


def write(pointer: ctypes.c_uint64, content: bytes) -> None:
    call("cuMemcpyHtoD_v2", pointer, content, ctypes.c_size_t(len(content)))


call("cuInit", 0)
number, context = ctypes.c_int(), ctypes.c_void_p()
call("cuDeviceGet", ctypes.byref(number), device)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
call("cuCtxSetCurrent", context)
weights = allocate(WEIGHTS_BYTES)
secret = os.urandom(WEIGHTS_BYTES)
write(weights, secret)
del secret
state: dict[str, Any] = {"cache": allocate(CACHE_BYTES), "held": 0}
turn = threading.Lock()


def answer(text: str) -> str | None:
    if state["cache"] is None:
        return None
    found = hashlib.sha256(read(weights, WEIGHTS_BYTES) + text.encode()).digest()
    write(ctypes.c_uint64(state["cache"].value + state["held"]), found)
    state["held"] += len(found)
    return found.hex()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, _, text = self.path.partition("?")
        with turn:
            call("cuCtxSetCurrent", context)
            if path == "/answer":
                found = answer(text)
                return self.say(200 if found else 503, found or "asleep")
            if path == "/cache":
                return self.say(200, json.dumps({"held": state["held"], "there": state["cache"] is not None}))
            if path == "/is_sleeping":  # as vLLM does
                return self.say(200, json.dumps({"is_sleeping": state["cache"] is None}))
            if path == "/weights":
                return self.say(200, hashlib.sha256(read(weights, WEIGHTS_BYTES)).hexdigest())
        return self.say(200, "ok")

    def do_POST(self) -> None:
        with turn:
            call("cuCtxSetCurrent", context)
            path = self.path.partition("?")[0]
            if path == "/sleep" and state["cache"] is not None:
                call("cuMemFree_v2", state["cache"])
                state.update(cache=None, held=0)
            if path == "/wake_up" and state["cache"] is None:
                state.update(cache=allocate(CACHE_BYTES), held=0)
        return self.say(200, "ok")

    def say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: Any) -> None:
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
