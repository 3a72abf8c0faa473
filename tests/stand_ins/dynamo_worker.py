"""A worker that keeps to the files of Dynamo Snapshot, as its lifecycle does: PORT.

Initialised, it pauses, writes `ready-for-snapshot` and polls; told `restore-complete` it goes on and listens,
then writes `vllm-restore-ready`; told `snapshot-complete` it ends.
"""

from __future__ import annotations

import http.server
import json
import os
import socket
import sys
import time
from typing import Any

folder = os.environ.get("SNAPSHOT_CONTROL_DIR") or os.environ["DYN_SNAPSHOT_CONTROL_DIR"]
os.makedirs(folder, exist_ok=True)


def path(name: str) -> str:
    return os.path.join(folder, name)


started_on = socket.gethostname()
while (awaited := os.environ.get("READY_AFTER_FILE")) and not os.path.exists(awaited):
    time.sleep(0.02)
with open(path("ready-for-snapshot"), "w") as stream:
    stream.write("ready")
while not os.path.exists(path("restore-complete")):
    if os.path.exists(path("snapshot-complete")):
        sys.exit(0)
    time.sleep(0.02)
os.unlink(path("ready-for-snapshot"))
incarnation = "source" if socket.gethostname() == started_on else "copy"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"incarnation": incarnation, "resumed": 1}).encode())

    def log_message(self, *arguments: Any) -> None:
        pass


server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
with open(path("vllm-restore-ready"), "w") as stream:
    stream.write("ready")
server.serve_forever()
