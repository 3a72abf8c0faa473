"""A server with the administration endpoints of vLLM and SGLang, and their refusals.

Arguments: PORT KIND FOLDER [OPTION...].

Its answers depend on weights, which it has on the device, in host memory, or nowhere. A KV cache answers
what was asked before. Options: `no-sleep` (endpoints are missing), `no-backup` (SGLang without copies of its
weights), `slow-sleep` (asleep a while after the answer), `fail-sleep`, `fail-wake` (500), `hang-sleep`,
`late-sleep` (asleep and answered 3 s after it was asked), `busy` (a request is always under way). What it was
asked is written to FOLDER/calls.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
import time
import urllib.parse
from typing import Any

port, kind, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
options = set(sys.argv[4:])
WEIGHTS = "the weights"
LATE_SECONDS = 3
state: dict[str, Any] = {"device": WEIGHTS, "host": None, "kv": {}, "mapped": True}
state |= {"paused": False, "sleeping": False}
lock = threading.Lock()


def note(text: str) -> None:
    with open(folder + "/calls", "a") as stream:
        stream.write(text + "\n")


class RefusedError(Exception):
    pass


def release_weights(*, backup: bool) -> None:
    state["host"] = state["device"] if backup else None
    state["device"] = None


def resume_weights() -> None:
    # memory that nobody has filled: what level 2 leaves
    state["device"] = state["host"] or "rubbish"
    state["host"] = None


Answer = tuple[int, Any]
Query = dict[str, list[str]]


def vllm(path: str, query: Query, body: Any) -> Answer:
    if path == "/is_sleeping":
        return 200, {"is_sleeping": state["sleeping"]}
    if path == "/sleep":
        if "fail-sleep" in options:
            return 500, "cannot sleep"
        level = int(query.get("level", ["1"])[0])
        state["kv"], state["mapped"] = {}, False
        release_weights(backup=level == 1)
        if "slow-sleep" in options:
            threading.Timer(0.5, lambda: state.update(sleeping=True)).start()
        else:
            state["sleeping"] = True
        return 200, ""
    if path == "/wake_up":
        if "fail-wake" in options:
            return 500, "cannot wake"
        tags = query.get("tags", ["weights", "kv_cache"])
        if "weights" in tags and state["device"] is None:
            resume_weights()
        if "kv_cache" in tags:
            state["mapped"] = True
        state["sleeping"] = state["device"] is None or not state["mapped"]
        return 200, ""
    if path == "/collective_rpc":
        assert body == {"method": "reload_weights"}, body
        state["device"] = WEIGHTS
        return 200, {"results": [None]}
    return 404, "not found"


def sglang(path: str, query: Query, body: Any) -> Answer:
    del query
    if path == "/get_server_info":
        return 200, {
            "model_path": "/models/one",
            "enable_memory_saver": "no-sleep" not in options,
            "enable_weights_cpu_backup": "no-backup" not in options,
            "internal_states": [{"memory_usage": {"weight": 1.0, "kvcache": 2.5}}],
        }
    if path == "/pause_generation":
        state["paused"] = True
        return 200, {}
    if path == "/continue_generation":
        state["paused"] = False
        return 200, {}
    if path == "/flush_cache":
        state["kv"] = {}
        return 200, "flushed"
    if path == "/release_memory_occupation":
        if "fail-sleep" in options:
            return 400, "cannot release"
        assert state["paused"], "the scheduler is busy"
        assert state["mapped"], "released twice"
        state["mapped"] = False
        if "weights" in body["tags"]:
            release_weights(backup="no-backup" not in options)
        return 200, None
    if path == "/resume_memory_occupation":
        assert not state["mapped"], "resumed what was not released"
        state["mapped"] = True
        if "weights" in body["tags"]:
            resume_weights()
        return 200, None
    if path == "/update_weights_from_disk":
        if body["model_path"] != "/models/one":
            return 400, {"success": False, "message": "no such model"}
        state["device"] = WEIGHTS
        return 200, {"success": True, "message": "loaded"}
    return 404, "not found"


def serve(path: str, query: Query) -> Answer | None:
    if path == "/health":
        return 200, "ok"
    if path == "/metrics":
        busy = 1.0 if "busy" in options else 0.0
        return 200, f'vllm:num_requests_running{{model_name="m"}} {busy}\nvllm:num_requests_waiting 0.0\n'
    if path == "/generate":
        asked = query["prompt"][0]
        if state["device"] is None or not state["mapped"]:
            raise RefusedError("illegal memory access")
        known = state["kv"].setdefault(asked, len(state["kv"]))
        return 200, {"answer": f"{asked}: {state['device']}", "cached": known}
    return None


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(parts.query)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"null")
        if parts.path == "/sleep" and "hang-sleep" in options:
            time.sleep(3600)
        late = "late-sleep" in options
        if late and parts.path == "/sleep":
            note("under way")
            time.sleep(LATE_SECONDS)
        with lock:
            # SGLang's scheduler does one thing after the other, in the order they were asked for
            if late and parts.path == "/release_memory_occupation":
                time.sleep(LATE_SECONDS)
            found = serve(parts.path, query)
            if found is None:
                note(f"{self.command} {self.path} {json.dumps(body)}")
                missing = kind == "vllm" and "no-sleep" in options
                engine = vllm if kind == "vllm" else sglang
                found = (404, "not found") if missing else engine(parts.path, query, body)
        status, content = found
        text = content if isinstance(content, str) else json.dumps(content)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def log_message(self, *arguments: Any) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (AssertionError, RefusedError) as error:
            # the real ones die of it, and take the server with them
            note(f"died: {error}")
            os._exit(1)


http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
