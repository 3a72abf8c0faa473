"""A pattern copied to each GPU and back by a process that can be killed: does CUDA work, and how fast?"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from coldstart_cli.errors import ColdstartError, UnavailableError
from coldstart_cli.process import ProgramTimeoutError, run

SIZE_BYTES = 64 << 20
_PROBE = "coldstart_host.cuda_copy_probe"
_REPORT_SECONDS = 0.5
_GRACE_SECONDS = 0.1
_KILL_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class CopyResult:
    """One GPU, by its bus address. `call` and `code` say what failed, `hung` that it did not come back."""

    pci_bus_id: str
    call: str | None = None
    code: int | None = None
    text: str | None = None
    hung: bool = False
    wrong_bytes: int = 0
    to_device_bytes_per_second: float | None = None
    to_host_bytes_per_second: float | None = None

    @property
    def passed(self) -> bool:
        return not (self.call or self.hung or self.wrong_bytes)


class CopyProbeFailedError(ColdstartError):
    """The probe itself died, for instance inside the driver's library."""


def copy_to_gpus(
    bus_ids: Sequence[str], *, deadline_seconds: float, size_bytes: int = SIZE_BYTES
) -> tuple[CopyResult, ...]:
    """All GPUs beside each other, one result each. Raises where the CUDA library is not there."""
    seconds = max(deadline_seconds - _REPORT_SECONDS, 0.1)
    output = b""
    try:
        # -P keeps the working folder out of the module path
        completed = run(
            [sys.executable, "-P", "-m", _PROBE, str(seconds), str(size_bytes), *bus_ids],
            deadline_seconds=deadline_seconds,
            purpose="CUDA copy",
            check=False,
            grace_seconds=_GRACE_SECONDS,
            kill_wait_seconds=_KILL_WAIT_SECONDS,
        )
        output = completed.stdout
        if completed.status != 0:
            words = completed.error_text or "no message"
            raise CopyProbeFailedError(f"CUDA copy died (status {completed.status}): {words}")
    except ProgramTimeoutError as error:
        output = error.stdout
    return _results(output, bus_ids)


def _results(output: bytes, bus_ids: Sequence[str]) -> tuple[CopyResult, ...]:
    known: dict[str, CopyResult] = {}
    for line in output.splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # a line of the driver's own, or one that was cut
            continue
        if isinstance(event, dict) and "missing" in event:
            raise UnavailableError(
                f"cannot use CUDA: {event['missing']}", hint="install NVIDIA's driver with its CUDA library"
            )
        if isinstance(event, dict) and "pci_bus_id" in event:
            known[event["pci_bus_id"]] = CopyResult(**event)
    return tuple(known.get(bus_id, CopyResult(bus_id, hung=True)) for bus_id in bus_ids)
