"""Captures and restores GPU servers through the command line, prints a table: `report.py FOLDER`."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
STAND_IN = bool(os.environ.get("GPU_STAND_IN"))
WEIGHTS_MIB = 8 if STAND_IN else 2048
DEADLINE_SECONDS = 60.0
# of a capture and of a restore: a driver that hangs must leave time for the other rows
MOVE_SECONDS = 40
COLUMNS = (
    ("workload", 8),
    ("way", 15),
    ("result", 12),
    ("GPU out s", 9),
    ("GB/s", 6),
    ("dump s", 6),
    ("snapshot MB", 11),
    ("restore to ready s", 18),
)


@dataclass(frozen=True)
class Workload:
    name: str
    script: Path


@dataclass(frozen=True)
class Row:
    """One server through one way to the driver."""

    workload: str
    backend: str
    result: str
    suspend_seconds: float | None = None
    dump_seconds: float | None = None
    snapshot_bytes: int | None = None
    restore_seconds: float | None = None


def workloads() -> Iterator[Workload]:
    yield Workload("libcuda", TESTS / "stand_ins" / "gpu_server.py")
    if importlib.util.find_spec("torch") is not None:
        yield Workload("torch", TESTS / "gpu" / "torch_server.py")


def backends() -> Iterator[str]:
    yield "driver-api"
    if shutil.which(os.environ.get("COLDSTART_PROGRAMS_CUDA_CHECKPOINT", "cuda-checkpoint")):
        yield "cuda-checkpoint"


def ask(port: int, path: str, method: str = "GET") -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
    try:
        connection.request(method, path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def wait_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if ask(port, "/health") == "ok":
                return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"the server is not ready (status {process.poll()})")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def coldstart(folder: Path, backend: str, *arguments: str) -> dict[str, Any]:
    """One command; its document, or the error it told."""
    environment = dict(os.environ) | {
        f"COLDSTART_{name.upper()}_DIR": str(folder / name) for name in ("state", "cache", "run")
    }
    environment["COLDSTART_SNAPSHOT_CUDA_BACKEND"] = backend
    for what in ("CREATE", "RESTORE"):
        environment[f"COLDSTART_SNAPSHOT_{what}_TIMEOUT_SECONDS"] = str(MOVE_SECONDS)
    done = subprocess.run(
        [sys.executable, "-m", "coldstart_cli", *arguments, "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace").strip() or f"status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(folder: Path, workload: Workload, backend: str) -> Row:
    port = free_port()
    name = f"{workload.name}-{backend}"
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(workload.script), str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=dict(os.environ) | {"GPU_SERVER_MIB": str(WEIGHTS_MIB)},
        )
    restored = None
    try:
        wait_ready(port, process)
        before = ask(port, "/answer?hello")
        ask(port, "/sleep", "POST")
        url = f"http://127.0.0.1:{port}/health"
        created = coldstart(
            folder, backend, "snap", "create", name, "--pid", str(process.pid), "--ready-url", url
        )
        ask(port, "/wake_up", "POST")
        same = ask(port, "/answer?hello") == before
        process.kill()
        process.wait(timeout=DEADLINE_SECONDS)
        back = coldstart(folder, backend, "snap", "restore", name, "--detach")
        restored = int(back["pid"])
        ask(port, "/wake_up", "POST")
        same = same and ask(port, "/answer?hello") == before
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=DEADLINE_SECONDS)
        if restored is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(restored, signal.SIGKILL)
    timings = created["timings"]
    return Row(
        workload.name,
        backend,
        "same answer" if same else "OTHER ANSWER",
        timings.get("gpu_suspend"),
        timings.get("dump"),
        created["size_bytes"],
        back["total_seconds"],
    )


def print_line(cells: Iterable[str]) -> None:
    print(
        "  ".join(cell.ljust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True)).rstrip(),
        flush=True,
    )


def print_row(row: Row) -> None:
    speed = WEIGHTS_MIB * 2**20 / 1e9 / row.suspend_seconds if row.suspend_seconds else None
    size = row.snapshot_bytes / 1e6 if row.snapshot_bytes else None
    numbers = (row.suspend_seconds, speed, row.dump_seconds, size, row.restore_seconds)
    shown = ("-" if number is None else f"{number:.2f}" for number in numbers)
    print_line((row.workload, row.backend, row.result, *shown))


def main() -> int:
    folder = Path(sys.argv[1])
    rows = []
    print_line(head for head, _ in COLUMNS)
    for workload in workloads():
        for backend in backends():
            try:
                row = measure(folder, workload, backend)
            except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{workload.name} by {backend}: {error}", file=sys.stderr, flush=True)
                row = Row(workload.name, backend, "FAILED")
            except KeyboardInterrupt:
                print_row(Row(workload.name, backend, "STOPPED"))
                return 1
            print_row(row)
            rows.append(row)
    if STAND_IN:
        print("stand-ins: no GPU was used")
    return int(any(row.result != "same answer" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
