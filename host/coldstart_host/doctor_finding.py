"""The doctor's words: what one check is given, may spend, and answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from coldstart_cli.process import Completed, ProgramTimeoutError, run

GRACE_SECONDS = 0.2
Fact = str | int | float | bool


class Status(StrEnum):
    """`note`: something optional is missing, or could not be looked at. `fault`: commands will fail."""

    OK = "ok"
    NOTE = "note"
    FAULT = "fault"


@dataclass(frozen=True)
class Finding:
    """The result of one check; `cost` is what does not work, `remedy` one command or edit."""

    check: str
    status: Status
    detail: str
    cost: str | None = None
    remedy: str | None = None
    facts: dict[str, Fact] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class DoctorInput:
    """What is configured: programs by name or path, and the folders that will be written to."""

    criu: str
    runc: str
    skopeo: str
    cuda_checkpoint: str
    dcgmi: str
    state_folder: Path
    cache_folder: Path


class Budget:
    """The time one check has for all that it does; programs it runs are ended with it, not left behind."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_seconds(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def run(self, *command: str) -> Completed:
        if self.left_seconds == 0.0:
            raise ProgramTimeoutError(f"no time was left for `{' '.join(command)}`")
        return run(
            command,
            deadline_seconds=self.left_seconds,
            check=False,
            grace_seconds=GRACE_SECONDS,
            kill_wait_seconds=GRACE_SECONDS,
        )


Check = Callable[[DoctorInput, Budget], Finding]
