"""Snapshots on another machine: a guest under software emulation, with a CPU of our choice and cgroup v2."""

from __future__ import annotations

import decimal
import hashlib
import json
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coldstart_host.cpu import CpuFacts, read_cpu_facts
from coldstart_host.cpu_levels import level_flags
from coldstart_snapshot.cpu.match import compare
from machines.guest_files import GuestFiles, make_guest_files, why_no_guest
from machines.machine import GuestResult, Machine
from replicas import Replica
from small_root import SERVER

pytestmark = [pytest.mark.qemu, pytest.mark.timeout(1500)]

PORT = 8123
URL = f"http://127.0.0.1:{PORT}/health"
# a container of runc over a writable layer, below which lies the guest's own root
START = f"""
import os, subprocess, sys
from pathlib import Path
from coldstart_cli.config import load
from coldstart_snapshot.containers.container import run_container
from coldstart_snapshot.containers.new_bundle import ContainerSpec
from coldstart_snapshot.answers.ready import wait_ready
for name in ("root", "upper", "work"):
    os.makedirs(f"/srv/layer/{{name}}")
options = "lowerdir=/,upperdir=/srv/layer/upper,workdir=/srv/layer/work"
subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, "/srv/layer/root"], check=True)
container = run_container(
    ContainerSpec(
        id="source",
        root=Path("/srv/layer/root"),
        arguments=("/usr/bin/python3", "-c", sys.stdin.read()),
        environment={{"PATH": "/usr/bin:/bin", "PORT": "{PORT}"}},
        log=Path("/srv/source.log"),
    ),
    load(),
)
wait_ready("{URL}", 120, pid=container.pid)
"""
# says each time that criu dumps or restores for runc, which drives it as `criu swrk`
CRIU_WITNESS = """#!/bin/sh
case "$1" in swrk|restore) echo "$@" >>/var/log/criu-ran;; esac
exec /opt/coldstart/bin/criu "$@"
"""


# what a server does with the instructions it has bound itself to, each on request
WORKER = r"""
import hashlib, http.server, os, signal, sys, threading, time, zlib
hits = []
signal.signal(signal.SIGUSR1, lambda *_: hits.append(1))
def copies():
    for size in (1, 15, 31, 33, 64, 127, 255, 1000, 9000, 70000, 3000000):
        block = (bytes(range(256)) * (size // 256 + 1))[:size]
        moved = bytearray(block); moved[1:] = block[:-1]
        assert bytes(bytearray(block)) == block and bytes(moved[1:]) == block[:-1]
        assert block.find(b'\xff\x00\xff') == -1 and ('ab' * size).count('ba') == size - 1
    return 'ok'
def digests():
    data = b'x' * 300000
    return ' '.join(hashlib.new(name, data).hexdigest()[:8] for name in ('md5', 'sha1', 'sha256', 'sha512'))
def packing(): return str(zlib.crc32(zlib.decompress(zlib.compress(b'hello' * 30000))))
def threads():
    done = []
    crew = [threading.Thread(target=lambda: done.append(copies())) for _ in range(3)]
    [one.start() for one in crew]; [one.join() for one in crew]
    return ' '.join(done)
def signals():
    before = len(hits); os.kill(os.getpid(), signal.SIGUSR1)
    while len(hits) == before: time.sleep(0.01)
    return 'ok'
def imports():
    import decimal, lzma, math
    return f'{str(decimal.Decimal(2).sqrt())[:9]} {math.exp(2.5):.6f} {math.pow(2.1, 3.3):.6f}'
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        answer = 'ok' if self.path == '/health' else globals()[self.path[1:]]()
        self.send_response(200); self.end_headers(); self.wfile.write(answer.encode())
    def log_message(self, *_): pass
copies(); digests()
http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), Handler).serve_forever()
"""
WORK = ("copies", "digests", "packing", "threads", "signals", "imports", "copies")


class Host:
    """A guest as a host of servers: coldstart's folders, questions to its server."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.replicas: list[tuple[str, str]] = []
        machine.environment |= {
            "COLDSTART_STATE_DIR": "/srv/state",
            "COLDSTART_RUN_DIR": "/run/coldstart",
            "COLDSTART_PROGRAMS_CRIU": "/srv/criu",
            # emulation is slow and its processors busy: no finding of these tests
            "COLDSTART_HEALTH_WARN_PERCENT": "99.8",
            "COLDSTART_HEALTH_FAIL_PERCENT": "99.9",
        }
        machine.check(
            "mkdir -m 700 /srv/state && cat >/srv/criu && chmod 755 /srv/criu", stdin=CRIU_WITNESS.encode()
        )

    def coldstart(self, *arguments: str) -> GuestResult:
        return self.machine.run(["coldstart", *arguments], deadline_seconds=300)

    def start_server(self) -> None:
        self.machine.check(["python3", "-c", START], stdin=SERVER.encode())

    def create(self, name: str, *options: str) -> None:
        arguments = ("snap", "create", name, "--container", "source", "--ready-url", URL, *options)
        created = self.coldstart(*arguments)
        assert created.status == 0, created.stderr

    def restore(self, name: str, *options: str, replica: str = "other") -> dict[str, Any]:
        """Restore a snapshot, without the fallback to a cold start, and what the command said of it."""
        self.replicas.append((name, replica))
        arguments = (
            "snap",
            "restore",
            name,
            "--id",
            replica,
            "--no-fallback",
            "--detach",
            "--json",
            *options,
        )
        restored = self.coldstart(*arguments)
        assert restored.status == 0, restored.stderr
        document: dict[str, Any] = json.loads(restored.stdout)
        return document

    def end(self) -> None:
        """Nothing of a test stays for the next: replicas, snapshots, what criu was asked."""
        while self.replicas:
            name, replica = self.replicas.pop()
            self.coldstart("snap", "restore", name, "--id", replica, "--stop")
        self.machine.check("rm -rf /srv/state/snapshots /var/log/criu-ran")

    def ask(self, path: str = "/count", port: int = PORT) -> str:
        program = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=60).read().decode())"
        return self.machine.check(["python3", "-c", program, f"http://127.0.0.1:{port}{path}"]).strip()

    def fetch_snapshots(self, target: Path) -> Path:
        return self.machine.fetch("/srv/state/snapshots", target)

    def give_snapshots(self, snapshots: Path) -> None:
        self.machine.send(snapshots, "/srv/state/snapshots")

    def criu_ran(self) -> bool:
        return self.machine.run("test -e /var/log/criu-ran").status == 0

    def cpu(self) -> CpuFacts:
        """The guest's CPU as the tool there sees it."""
        program = (
            "import json; from coldstart_host.cpu import *; print(json.dumps(read_cpu_facts().to_dict()))"
        )
        return CpuFacts.from_dict(json.loads(self.machine.check(["python3", "-c", program])))


@pytest.fixture(scope="session")
def guest_files(tmp_path_factory: pytest.TempPathFactory) -> GuestFiles:
    if reason := why_no_guest():
        pytest.skip(reason)
    return make_guest_files(tmp_path_factory.mktemp("guest"))


@contextmanager
def host(files: GuestFiles, cpu: str = "Haswell") -> Iterator[Host]:
    with Machine(files, cpu=cpu) as machine:
        yield Host(machine)


@pytest.fixture(scope="session")
def haswell(guest_files: GuestFiles) -> Iterator[Host]:
    with host(guest_files) as haswell:
        yield haswell


@pytest.fixture
def target(haswell: Host) -> Iterator[Host]:
    """A Haswell machine where no server was ever started cold."""
    yield haswell
    haswell.end()


@pytest.fixture(scope="session")
def from_haswell(guest_files: GuestFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Snapshots that a Haswell machine made, of a server that had answered once; the machine is gone."""
    with host(guest_files) as source:
        source.start_server()
        assert source.ask() == "1"
        source.create("server")
        assert source.ask() == "2"  # the source went on serving
        if source.machine.run("criu check --feature mem_dirty_track").status == 0:
            source.create("ahead", "--pre-dump")
        return source.fetch_snapshots(tmp_path_factory.mktemp("from-haswell") / "snapshots")


def test_a_snapshot_comes_back_on_another_machine_where_nothing_of_its_source_ever_was(
    target: Host, from_haswell: Path
) -> None:
    assert target.machine.check("stat -fc %T /sys/fs/cgroup").strip() == "cgroup2fs"
    target.give_snapshots(from_haswell)
    assert target.restore("server")["method"] == "restore"
    assert target.ask("/file") == "1"  # the archived writable layer
    assert target.ask() == "2"  # the memory
    assert target.criu_ran()


def test_memory_comes_on_demand_on_a_machine_whose_kernel_can(target: Host, from_haswell: Path) -> None:
    if target.machine.run("criu check --feature uffd-noncoop").status != 0:
        pytest.skip("the guest's kernel has no userfaultfd for criu")
    target.give_snapshots(from_haswell)
    assert target.restore("server", "--lazy")["method"] == "restore"
    assert (target.ask("/file"), target.ask(), target.ask()) == ("1", "2", "3")


def test_a_snapshot_is_refused_on_an_older_machine_with_the_missing_flags_named_before_criu_starts(
    guest_files: GuestFiles, from_haswell: Path
) -> None:
    with host(guest_files, "Nehalem") as target:
        target.give_snapshots(from_haswell)
        refused = target.coldstart("snap", "restore", "server", "--no-fallback", "--detach")
        assert refused.status == 69, refused.stderr
        for flag in ("avx2", "bmi2", "fma", "movbe"):
            assert f" {flag}" in refused.stderr
        assert not target.criu_ran()


def test_a_native_snapshot_of_this_host_is_refused_there_with_the_missing_flags_named_before_criu_starts(
    target: Host, replica: Replica
) -> None:
    problems = compare(read_cpu_facts(), target.cpu())
    missing = [flag for problem in problems for flag in problem.flags]
    if not missing:
        pytest.skip("this host's CPU has no flag that a Haswell lacks")
    assert replica.launch("--detach", "--snapshot-when-ready").status == 0
    assert replica.stop().status == 0
    target.give_snapshots(_snapshots(replica))
    refused = target.coldstart("snap", "restore", replica.name, "--no-fallback", "--detach")
    assert refused.status == 69, refused.stderr
    for flag in missing:
        assert f" {flag}" in refused.stderr
    assert not target.criu_ran()


def test_a_variant_of_this_host_held_to_a_level_is_chosen_and_works_on_a_machine_that_has_no_more(
    target: Host, server_store: tuple[Path, str], replica: Replica
) -> None:
    if not {"cpuid_fault", *level_flags("x86-64-v3")} <= set(read_cpu_facts().flags):
        pytest.skip("this host cannot hold a server to x86-64-v3")
    text = replica.spec.read_text()
    replica.spec.write_text(text.replace('"/srv/server.py"', f'"-c", {json.dumps(WORKER)}'))
    variants = []
    for level in ("native", "x86-64-v3"):
        options = ("--spec", replica.spec, "--cpu-level", level, "--json")
        created = replica.coldstart("snap", "create", "worker", *options)
        assert created.status == 0, created.stderr
        variants.append(json.loads(created.stdout)["variant"])
    store = server_store[0]
    target.machine.check(["mkdir", "-p", store.parent])  # where the snapshot knows it
    target.machine.send(store, str(store))
    target.give_snapshots(_snapshots(replica))
    assert target.restore("worker")["variant"] == variants[1]
    answers = {path: target.ask(f"/{path}", replica.port) for path in WORK}
    data = b"x" * 300000
    names = ("md5", "sha1", "sha256", "sha512")
    assert answers == {
        "copies": "ok",
        "digests": " ".join(hashlib.new(name, data).hexdigest()[:8] for name in names),
        "packing": str(zlib.crc32(b"hello" * 30000)),
        "threads": "ok ok ok",
        "signals": "ok",
        "imports": f"{str(decimal.Decimal(2).sqrt())[:9]} {math.exp(2.5):.6f} {math.pow(2.1, 3.3):.6f}",
    }


def test_memory_dumped_ahead_stands_below_what_changed_since_and_both_come_back(
    target: Host, from_haswell: Path
) -> None:
    if not (from_haswell / "ahead").exists():
        pytest.skip("the guest's kernel does not track written memory")
    images = next((from_haswell / "ahead").glob("*/images"))
    assert 2 * _pages_bytes(images) < _pages_bytes(images / "parent")
    target.give_snapshots(from_haswell)
    assert target.restore("ahead")["method"] == "restore"
    assert (target.ask("/file"), target.ask()) == ("2", "3")


def _pages_bytes(images: Path) -> int:
    return sum(path.stat().st_size for path in images.glob("pages-*.img"))


def _snapshots(replica: Replica) -> Path:
    return Path(replica.coldstart.environment["COLDSTART_STATE_DIR"]) / "snapshots"
