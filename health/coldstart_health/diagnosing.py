"""The record of a long diagnosis at work: its GPUs are out of the pool until its process ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coldstart_cli.files import atomic_write
from coldstart_cli.process import start_ticks
from coldstart_cli.regular import read_regular
from coldstart_health.verdict import HOST, Finding, Verdict
from coldstart_host.processes import parent_of, processes_named

_SCHEMA = "coldstart.health.diagnosing"
_VERSION = 1
_SOURCE = "deep"


@dataclass(frozen=True)
class Diagnosing:
    """`pid` and `start_ticks` name the process: a record that it left in a crash counts no more."""

    pid: int
    start_ticks: int
    level: int
    gpus: tuple[str, ...]
    started: str


def diagnosing_path(run_folder: Path) -> Path:
    return run_folder / "health" / "diagnosing.json"


@contextmanager
def announced(path: Path, *, level: int, gpus: Sequence[str]) -> Iterator[None]:
    """Keep the GPUs out of the pool while the block runs."""
    document = {
        "schema": _SCHEMA,
        "version": _VERSION,
        "pid": os.getpid(),
        "start_ticks": start_ticks(os.getpid()),
        "level": level,
        "gpus": list(gpus),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    atomic_write(path, json.dumps(document, indent=2).encode() + b"\n")
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


def read_diagnosing(path: Path) -> Diagnosing | None:
    """Another process's diagnosis at work; None where there is none, or only what a dead one left."""
    try:
        document = json.loads(read_regular(path))
        record = Diagnosing(
            int(document["pid"]),
            int(document["start_ticks"]),
            int(document["level"]),
            tuple(map(str, document["gpus"])),
            str(document["started"]),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    alive = start_ticks(record.pid) == record.start_ticks
    return record if alive and record.pid != os.getpid() else None


def left_over() -> tuple[int, ...]:
    """Programs of a diagnosis whose parent is gone: they hold GPU memory, and the next one fails."""
    return tuple(pid for pid in processes_named("dcgmi", "nvvs") if parent_of(pid) == 1)


def diagnosing_findings(record: Diagnosing | None, orphans: Sequence[int]) -> Iterator[Finding]:
    if record is not None:
        evidence = f"`dcgmi diag -r {record.level}` at work since {record.started} (pid {record.pid})"
        for subject in record.gpus:
            yield Finding("diagnosing", Verdict.UNKNOWN, subject, _SOURCE, evidence, "wait for its end")
    if orphans:
        pids = " ".join(map(str, orphans))
        evidence = f"processes of a diagnosis that ended are left: {pids}"
        yield Finding("diagnosis_left_over", Verdict.DEGRADED, HOST, _SOURCE, evidence, f"kill {pids}")
