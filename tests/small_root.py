"""A small real root file system with the host's Python, and a server in it that counts its requests."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
from pathlib import Path

PYTHON = Path("/usr/bin/python3")

# /count counts in memory and in a file; /slow sets how long a start takes; PORT comes from the environment
SERVER = """
import http.server, os, sys, time
state = {'count': 0}
time.sleep(float(os.environ.get('START_SECONDS', '0')))
if os.environ.get('FAIL_AT_START'): sys.exit('cannot start: told so')
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status, answer = 200, 'ok'
        if self.path == '/count':
            state['count'] += 1
            with open('/srv/count', 'w') as stream: stream.write(str(state['count']))
            print('request', state['count'], flush=True)
            answer = str(state['count'])
        elif self.path == '/file':
            answer = open('/srv/count').read()
        elif self.path == '/environment':
            answer = os.environ.get('GREETING', '')
        elif self.path == '/user':
            status_text = open('/proc/self/status').read()
            answer = f'{os.getuid()}:{os.getgid()} ' + status_text.split('NoNewPrivs:')[1].split()[0]
        elif self.path == '/hostname':
            answer = os.uname().nodename
        elif self.path == '/reseeded':
            answer = open('/srv/reseeded').read()
        elif self.path == '/folder':
            answer = os.getcwd()
        elif self.path == '/never' : status = 503
        elif self.path == '/exit': os._exit(7)
        self.send_response(status); self.end_headers(); self.wfile.write(answer.encode())
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), Handler).serve_forever()
"""

# what a snapshot's restore command may do: tell the server by a file what is its own
RESEED = """
import os
with open('/srv/reseeded', 'w') as stream:
    stream.write(os.environ['COLDSTART_COPY_ID'] + ' ' + os.environ['COLDSTART_RANDOM_SEED'])
"""


def make_root(root: Path) -> Path:
    """Copy what the host's Python needs, and the server, to a new folder."""
    real = PYTHON.resolve()
    library = Path("/usr/lib") / real.name
    for folder in ("bin", "dev", "etc", "proc", "srv", "sys", "tmp", "usr/bin", "usr/lib", "lib", "lib64"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy2(real, root / "usr/bin" / real.name)
    (root / "usr/bin/python3").symlink_to(real.name)
    unused = shutil.ignore_patterns(
        "test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "config-*", "pydoc_data"
    )
    shutil.copytree(
        library, root / "usr/lib" / real.name, symlinks=False, ignore=unused, ignore_dangling_symlinks=True
    )
    for needed in _libraries([real, *library.glob("lib-dynload/*.so")]):
        target = root / needed.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(needed, target)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nserver:x:1234:1235::/:/bin/sh\n")
    (root / "srv/server.py").write_text(SERVER)
    (root / "srv/reseed.py").write_text(RESEED)
    (root / "srv").chmod(0o777)
    return root


def _libraries(programs: list[Path]) -> set[Path]:
    listing = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, timeout=60, check=False
    )
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", listing.stdout)}


def ask(port: int, path: str = "/count") -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def answers(port: int) -> bool:
    try:
        return ask(port, "/health") == "ok"
    except OSError:
        return False


def can_run_containers() -> str | None:
    """Why containers cannot be captured here, None when they can."""
    if os.geteuid() != 0:
        return "containers need root"
    for program in ("runc", "criu"):
        if shutil.which(program, path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin:/sbin") is None:
            return f"program is not installed: {program}"
    return None if os.path.exists("/dev/fuse") else "this host has no FUSE"
