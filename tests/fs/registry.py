"""A real registry for tests, as a plain process on loopback, and a proxy that spoils connections to it."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest import wait_until

PASSWORD = "secret"
# bcrypt of that password; its lowest cost
_HASH = "$2b$04$LJx.Qeo37gybvI4tUvcDA.Kr6sjzIKxDX7u4GPrzFMXFGBQZ3/Y2G"
_LISTENING = re.compile(r"listening on (127\.0\.0\.1:\d+)")


@dataclass(frozen=True)
class Registry:
    """Where it listens, and the environment in which skopeo speaks plain HTTP to it."""

    address: str
    folder: Path
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.home)}

    def url(self, reference: str) -> str:
        return f"docker://{self.address}/{reference}"

    def push(self, source: str, reference: str, *options: str, user: str | None = None) -> None:
        """`source` as skopeo spells it, such as oci:DIR:TAG."""
        login = ["--dest-creds", f"{user}:{PASSWORD}"] if user else []
        self.skopeo("copy", *options, *login, source, self.url(reference))

    def skopeo(self, *arguments: str) -> None:
        done = subprocess.run(
            ["skopeo", *arguments],
            env=os.environ | self.environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()

    def trust(self, address: str) -> None:
        """Let skopeo speak plain HTTP to another address, such as a proxy's."""
        with (self.home / ".config/containers/registries.conf").open("a") as stream:
            stream.write(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')

    def blob(self, digest: str) -> Path:
        """The file of a blob in the registry's own storage."""
        algorithm, _, name = digest.partition(":")
        return self.folder / "docker/registry/v2/blobs" / algorithm / name[:2] / name / "data"


@contextmanager
def running_registry(folder: Path, *, user: str | None = None) -> Iterator[Registry]:
    """Start docker-registry on a free port; with `user`, only that one may read, with `PASSWORD`."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    folder.mkdir(parents=True)
    settings: dict[str, object] = {
        "version": "0.1",
        "log": {"level": "info", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": "127.0.0.1:0", "secret": "of this test"},
    }
    if user:
        (folder / "htpasswd").write_text(f"{user}:{_HASH}\n")
        settings["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(settings))  # YAML that is JSON
    home = folder / "home"
    (home / ".config/containers").mkdir(parents=True)
    log = folder / "log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [program, "serve", str(folder / "config.yml")],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        wait_until(lambda: bool(_LISTENING.search(log.read_text())), f"docker-registry listens, see {log}")
        found = _LISTENING.search(log.read_text())
        assert found
        registry = Registry(found[1], folder / "data", home)
        registry.trust(registry.address)
        yield registry
    finally:
        server.kill()
        server.wait(timeout=60)


@dataclass
class Faults:
    """What a proxy does to the answers of the next connections."""

    cut_after_bytes: int | None = None
    """Connections end after so many bytes of answers."""
    times: int = 1 << 30
    """How many connections are spoilt; those after them are whole."""
    silent_after_bytes: int | None = None
    """Connections stay open, and say nothing after so many bytes."""
    spoilt: int = 0
    answered_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def faulty_proxy(registry: Registry, faults: Faults) -> Iterator[str]:
    """The address of a TCP proxy in front of a registry."""
    host, _, port = registry.address.partition(":")
    stop = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(port)), timeout=60) as upstream:
                _relay(self.request, upstream, faults, stop)

    with _Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            address = f"127.0.0.1:{server.server_address[1]}"
            registry.trust(address)
            yield address
        finally:
            stop.set()
            server.shutdown()
            thread.join()


def _relay(client: socket.socket, upstream: socket.socket, faults: Faults, stop: threading.Event) -> None:
    answered = 0
    while not stop.is_set():
        ready, _, _ = select.select([client, upstream], [], [], 0.05)
        for source in ready:
            try:
                data = source.recv(65536)
                if not data:
                    return
                if source is client:
                    upstream.sendall(data)
                    continue
                answered += len(data)
                if _is_spoilt(faults, faults.cut_after_bytes, answered):
                    return
                if _is_spoilt(faults, faults.silent_after_bytes, answered):
                    stop.wait()
                    return
                client.sendall(data)
            except OSError:
                return
            with faults.lock:
                faults.answered_bytes += len(data)


def _is_spoilt(faults: Faults, limit: int | None, answered: int) -> bool:
    if limit is None or answered <= limit:
        return False
    with faults.lock:
        if faults.spoilt >= faults.times:
            return False
        faults.spoilt += 1
        return True


def skopeo_processes(reference: str) -> list[int]:
    """Processes that name a reference on their command line, other than this one."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if os.path.basename(command[0]) == b"skopeo" and reference.encode() in b" ".join(command):
                    found.append(int(entry.name))
    return found


def environment_of(registry: Registry, monkeypatch: pytest.MonkeyPatch, more: Mapping[str, str] = {}) -> None:
    """Give this process the environment in which skopeo talks to the registry."""
    for name in ("XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "REGISTRY_AUTH_FILE", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (registry.environment | dict(more)).items():
        monkeypatch.setenv(name, value)
