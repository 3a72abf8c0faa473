"""Small real servers for captures, in containers over an overlay and as plain processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.config import Config, load
from coldstart_cli.errors import ColdstartError
from coldstart_host.cpu import read_cpu_facts
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.containers.container import (
    RunningContainer,
    kill_and_delete,
    run_container,
)
from coldstart_snapshot.containers.new_bundle import ContainerSpec
from coldstart_snapshot.cpu.cpuid_cap import can_mask
from coldstart_snapshot.criu.program import find_criu
from coldstart_snapshot.processes.ports import listening_ports
from coldstart_snapshot.processes.tree import end_tree
from conftest import wait_until
from ports import free_port
from small_root import ask

PYTHON = "/usr/bin/python3"

# counts its requests in memory and in a file; keeps what is hard to capture open
SERVER = r"""
import fcntl, http.server, os, socket, sys, threading, time
port, folder = int(sys.argv[1]), sys.argv[2]
extras = sys.argv[3].split(',') if len(sys.argv) > 3 else []
state = {'count': 0}
keep = []
if 'deleted' in extras:
    f = open(folder + '/deleted', 'w+b'); f.write(os.urandom(3 << 20)); f.flush()
    os.unlink(folder + '/deleted'); keep.append(f)
if 'lock' in extras:
    f = open(folder + '/lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); keep.append(f)
if 'pair' in extras:
    listener = socket.create_server(('127.0.0.1', 0))
    one = socket.create_connection(listener.getsockname()); other, _ = listener.accept()
    keep += [listener, one, other]
if 'threads' in extras:
    def idle():
        while True: time.sleep(0.05)
    for _ in range(5): threading.Thread(target=idle, daemon=True).start()
if 'child' in extras:
    if os.fork() == 0:
        while True: time.sleep(0.1)
if 'semaphore' in extras:
    import multiprocessing; keep.append(multiprocessing.get_context('spawn').Semaphore(3))
if 'zeros' in extras:
    keep.append(bytearray(32 << 20)); keep[0][:] = bytes(32 << 20)  # written, not only reserved
if 'noise' in extras:
    keep.append(os.urandom(48 << 20))
if 'vsock' in extras:
    keep.append(socket.socket(40, socket.SOCK_STREAM))
if 'unix' in extras:
    f = socket.socket(socket.AF_UNIX); f.connect('/mnt/socket'); keep.append(f)
for extra in extras:
    if extra.startswith('peer='):
        keep.append(socket.create_connection(('192.0.2.7', int(extra[5:]))))
if 'link' in extras:
    f = open(folder + '/first', 'w'); os.link(folder + '/first', folder + '/second')
    os.unlink(folder + '/first'); keep.append(f)
if 'unready' in extras:
    time.sleep(3600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        answer = 'ok'
        if self.path == '/count':
            state['count'] += 1
            with open(folder + '/count', 'w') as f: f.write(str(state['count']))
            print('request', state['count'], flush=True)
            answer = str(state['count'])
        if self.path == '/pair':
            one.sendall(b'through the pair'); answer = other.recv(100).decode()
        if self.path == '/deleted':
            keep[0].seek(0); answer = str(len(keep[0].read()))
        if self.path == '/noise':
            import hashlib; answer = hashlib.sha256(keep[0]).hexdigest()
        if self.path == '/zeros':
            answer = str(keep[0].count(0))
        if self.path == '/file':
            with open(folder + '/count') as f: answer = f.read()
        self.send_response(200); self.end_headers(); self.wfile.write(answer.encode())
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler).serve_forever()
"""


def require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")


def require_cpuid_faults() -> None:
    if not can_mask(read_cpu_facts()):
        pytest.skip("CPUID cannot be made to fault on this CPU")


def require_engine() -> None:
    """Skip, with the reason, where containers cannot be captured."""
    require_root()
    for program in ("runc", "criu"):
        if shutil.which(program, path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin:/sbin") is None:
            pytest.skip(f"program is not installed: {program}")
    try:
        find_criu()
    except ColdstartError as error:
        pytest.skip(f"{error.message}: {error.hint}")


def has_capability(number: int) -> bool:
    """Whether this process has a capability; root in a container may lack some."""
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> number & 1)


def unique_id(tmp_path: Path, name: str) -> str:
    return f"cs-{os.getpid()}-{tmp_path.name[:40]}-{name}".replace("[", "-").replace("]", "")


@dataclass
class Overlay:
    """A writable layer over the host's own root, mounted at `root`."""

    folder: Path
    lower: str = "/"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def upper(self) -> Path:
        return self.folder / "upper"

    def mount(self) -> Overlay:
        for part in (self.root, self.upper, self.folder / "work"):
            part.mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={self.lower},upperdir={self.upper},workdir={self.folder / 'work'}"
        subprocess.run(
            ["mount", "-t", "overlay", "overlay", "-o", options, str(self.root)], check=True, timeout=20
        )
        return self

    def destroy(self) -> None:
        # the kernel takes the mounts of an ended container down a moment after it
        wait_until(lambda: not os.path.ismount(self.root) or self._unmounts(), f"{self.root} is unmounted")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _unmounts(self) -> bool:
        done = subprocess.run(["umount", str(self.root)], check=False, capture_output=True, timeout=60)
        return done.returncode == 0


@dataclass
class Lab:
    """One test's containers, overlays and processes, all ended at its end."""

    tmp_path: Path
    config: Config = field(default_factory=load)
    containers: list[str] = field(default_factory=list)
    overlays: list[Overlay] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)

    @property
    def runc_root(self) -> Path:
        return self.config.run_folder / "runc"

    def overlay(self, name: str) -> Overlay:
        overlay = Overlay(self.tmp_path / name)
        self.overlays.append(overlay)
        return overlay

    def id(self, name: str) -> str:
        container_id = unique_id(self.tmp_path, name)
        self.containers.append(container_id)
        return container_id

    def spec(self, name: str, overlay: Overlay, port: int, *extras: str, **changes: Any) -> ContainerSpec:
        return ContainerSpec(
            id=self.id(name),
            root=overlay.root,
            arguments=(PYTHON, "-c", SERVER, str(port), "/srv", ",".join(extras)),
            environment={"PATH": "/usr/bin:/bin"},
            log=self.tmp_path / f"{name}.log",
            **changes,
        )

    def run(self, spec: ContainerSpec) -> RunningContainer:
        return run_container(spec, self.config)

    def start(
        self, name: str, port: int, *extras: str, **changes: Any
    ) -> tuple[RunningContainer, Overlay, Path]:
        """A server in a container over an overlay, ready."""
        overlay = self.overlay(name).mount()
        (overlay.root / "srv").mkdir(exist_ok=True)
        spec = self.spec(name, overlay, port, *extras, **changes)
        container = self.run(spec)
        if "unready" not in extras:
            wait_ready(url(port), 60, pid=container.pid)
        return container, overlay, spec.log

    def wait_listening(self, pid: int, port: int) -> None:
        """Wait for a server that nobody outside its network namespace can ask."""
        wait_until(lambda: f"127.0.0.1:{port}" in listening_ports([pid]), f"process {pid} listens")

    def processes_in(self, container_id: str) -> list[int]:
        """Processes in a container's cgroup, which a failed restore must not leave."""
        found = []
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if (
                    entry.isdecimal()
                    and f"/coldstart/{container_id}\n" in Path(f"/proc/{entry}/cgroup").read_text()
                ):
                    found.append(int(entry))
        return found

    def start_process(self, port: int, *extras: str) -> tuple[int, Path, Path]:
        """The same server as a plain process in a session of its own."""
        folder = self.tmp_path / f"process-{port}"
        folder.mkdir()
        log = folder / "log"
        # a shell in between, so that nobody of ours has to reap the server
        pid_file = folder / "pid"
        server = f'setsid {PYTHON} -c "$0" {port} {folder} {",".join(extras) or "none"}'
        command = f"{server} </dev/null >{log} 2>&1 & echo $! >{pid_file}"
        subprocess.run(["sh", "-c", command, SERVER], check=True, timeout=60, close_fds=True)
        pid = int(pid_file.read_text())
        wait_until(lambda: os.getsid(pid) == pid, "the server leads its session")
        self.pids.append(pid)
        wait_ready(url(port), 60, pid=pid)
        return pid, log, folder

    def erase(self, container: RunningContainer, overlay: Overlay, log: Path) -> None:
        """Nothing of the source is left: container, bundle, mounts, writable layer, log, runc's state."""
        kill_and_delete(container.id, runc_root=self.runc_root)
        overlay.destroy()
        log.unlink()
        shutil.rmtree(self.runc_root)

    def close(self) -> None:
        with ExitStack() as ends:  # each, whatever became of the others
            for overlay in self.overlays:
                ends.callback(overlay.destroy)
            for pid in self.pids:
                ends.callback(end_tree, pid, grace_seconds=2)
            for container_id in self.containers:
                ends.callback(kill_and_delete, container_id, runc_root=self.runc_root)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/health"


@contextmanager
def laboratory(tmp_path: Path) -> Iterator[Lab]:
    require_engine()
    lab = Lab(tmp_path)
    try:
        yield lab
    finally:
        lab.close()


__all__ = [
    "Lab",
    "Overlay",
    "ask",
    "free_port",
    "has_capability",
    "laboratory",
    "require_engine",
    "require_root",
    "url",
]
