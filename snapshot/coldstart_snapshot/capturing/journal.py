"""What a capture is about to do to which server, on record beforehand, so that others can undo it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coldstart_cli.errors import IoFailure
from coldstart_cli.files import make_private
from coldstart_cli.process import start_ticks
from coldstart_host.kernel import boot_id
from coldstart_snapshot.containers.roots import RootKind, RootSource
from coldstart_snapshot.containers.runc import Runc
from coldstart_snapshot.containers.target import ContainerTarget, ProcessTarget, Target
from coldstart_snapshot.kept.manifest import check_name

SCHEMA = "coldstart.capture"
VERSION = 1
_ENDING = ".json"


@dataclass(frozen=True)
class CaptureRecord:
    """One capture under way, or, with an `outcome`, one that was cut short and put right.

    `deadline_monotonic` is when criu must have ended, by the clock that all processes share until reboot.
    """

    name: str
    variant: str
    created: str
    phase: str
    boot: str
    state_folder: str
    staging: str
    server_pid: int
    server_start_ticks: int
    command_pid: int
    command_start_ticks: int
    guardian_pid: int = 0
    container_id: str | None = None
    runc_program: str | None = None
    runc_root: str | None = None
    cuda_program: str | None = None
    cuda_backend: str = "auto"
    gpu_processes: tuple[int, ...] = ()
    ready_url: str | None = None
    engine: Mapping[str, Any] | None = None
    deadline_monotonic: float = 0.0
    outcome: str | None = None
    serving: bool | None = None

    @property
    def is_open(self) -> bool:
        return self.outcome is None

    @property
    def same_boot(self) -> bool:
        return self.boot == boot_id()

    def command_lives(self) -> bool:
        """Whether the command that captures is still at it."""
        return self.same_boot and 0 < self.command_start_ticks == start_ticks(self.command_pid)

    @property
    def patience_seconds(self) -> float:
        """How long criu may still take."""
        return max(0.0, self.deadline_monotonic - time.monotonic()) if self.same_boot else 0.0

    @property
    def target(self) -> Target:
        """The server, as far as bringing it back needs it."""
        if self.container_id is None:
            return ProcessTarget(self.server_pid, self.server_start_ticks)
        return ContainerTarget(
            pid=self.server_pid,
            ticks=self.server_start_ticks,
            runc=Runc(self.runc_program or "runc", Path(self.runc_root or "/")),
            container_id=self.container_id,
            bundle=Path("/"),
            root=RootSource(RootKind.FOLDER, Path("/")),
        )


def records_folder(run_folder: Path) -> Path:
    return run_folder / "captures"


def record_path(run_folder: Path, name: str) -> Path:
    return records_folder(run_folder) / f"{check_name(name)}{_ENDING}"


def write_record(run_folder: Path, record: CaptureRecord) -> None:
    """Put the capture on record, whole, for root's eyes only."""
    path = record_path(run_folder, record.name)
    make_private(path.parent)
    content = {"schema": SCHEMA, "version": VERSION, **asdict(record)}
    temporary = path.parent / f".{record.name[:64]}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
            stream.write(json.dumps(content, indent=2).encode() + b"\n")
        # not synced: the server stands still meanwhile, and after a crash of the host there is none
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise IoFailure(f"cannot write `{path}`: {error.strerror}") from error


def read_record(run_folder: Path, name: str) -> CaptureRecord | None:
    """The record of the last capture under that name; None when it ended well, or cannot be read."""
    try:
        content: dict[str, Any] = json.loads(record_path(run_folder, name).read_bytes())
        if content.pop("schema") != SCHEMA or content.pop("version") != VERSION:
            return None
        content["gpu_processes"] = tuple(content["gpu_processes"])
        return CaptureRecord(**content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remove_record(run_folder: Path, name: str) -> None:
    record_path(run_folder, name).unlink(missing_ok=True)


def read_records(run_folder: Path) -> tuple[CaptureRecord, ...]:
    """Every capture that is under way, or was cut short."""
    with suppress(OSError):
        names = sorted(
            entry.name.removesuffix(_ENDING)
            for entry in os.scandir(records_folder(run_folder))
            if entry.name.endswith(_ENDING) and not entry.name.startswith(".")
        )
        found = (read_record(run_folder, name) for name in names)
        return tuple(record for record in found if record is not None)
    return ()
