"""NVML asked from a process that can be killed: a hung driver costs a deadline, never the caller."""

from __future__ import annotations

import json
import sys
from typing import Any

from coldstart_cli.errors import ColdstartError
from coldstart_cli.process import Completed, ProgramTimeoutError, run
from coldstart_host.gpu import GpuFacts, NvmlFault, NvmlReading, gpu_from_json, gpu_to_json

PROBE_DEADLINE_SECONDS = 4.0
# the probe has nothing to clean up, and `health quick` promises an answer within five seconds
_GRACE_SECONDS = 0.1
_KILL_WAIT_SECONDS = 0.2


class ProbeFailedError(ColdstartError):
    """The probe itself died, for instance inside the driver's library."""


def read_gpus(*, deadline_seconds: float = PROBE_DEADLINE_SECONDS) -> NvmlReading:
    """All GPUs that NVML knows; what was read before a hang is kept, with the step that hung."""
    # -P keeps the working folder out of the module path
    command = [sys.executable, "-P", "-m", __name__]
    try:
        completed = run(
            command,
            deadline_seconds=deadline_seconds,
            purpose="NVML probe",
            check=False,
            grace_seconds=_GRACE_SECONDS,
            kill_wait_seconds=_KILL_WAIT_SECONDS,
        )
    except ProgramTimeoutError as error:
        return _assemble(error.stdout, hung=True)
    if completed.status != 0:
        raise ProbeFailedError(_death(completed))
    return _assemble(completed.stdout, hung=False)


def _death(completed: Completed) -> str:
    """Why a probe died: its last words, or the signal that ended it."""
    words = completed.error_text or "no message"
    return f"NVML probe died (status {completed.status}): {words}"


def _assemble(output: bytes, *, hung: bool) -> NvmlReading:
    driver: dict[str, Any] = {}
    gpus: list[GpuFacts] = []
    step, ended = "start of NVML", False
    for line in output.splitlines():
        event = _event(line)
        kind = event.get("event")
        if kind == "driver":
            driver, step = event, "count of GPUs"
        elif kind == "begin":
            step = f"GPU {event['index']}"
        elif kind == "gpu":
            gpus.append(gpu_from_json(event["facts"]))
        elif kind == "fault":
            return NvmlReading(fault=NvmlFault(**event["fault"]))
        elif kind == "end":
            ended = True
    if not ended and not hung:
        raise ProbeFailedError(f"NVML probe ended early, at: {step}")
    return NvmlReading(
        driver_version=driver.get("driver_version"),
        cuda_version=driver.get("cuda_version"),
        count=driver.get("count"),
        gpus=tuple(gpus),
        # all was read when only the end is missing: the shutdown hung, which is a hang all the same
        hung=None if not hung else "shutdown of NVML" if ended else step,
    )


def _event(line: bytes) -> dict[str, Any]:
    """One line of the probe; the driver's library may print lines of its own, and the last may be cut."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _say(event: str, **content: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **content}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """The probe: one JSON line a step, so that a hang shows where."""
    from coldstart_host.gpu_nvml import NvmlSession, NvmlUnusableError

    try:
        session = NvmlSession()
    except NvmlUnusableError as error:
        fault = error.fault
        _say("fault", fault={"call": fault.call, "code": fault.code, "text": fault.text})
        return
    _say(
        "driver",
        driver_version=session.driver_version,
        cuda_version=session.cuda_version,
        count=session.count,
    )
    for index in range(session.count):
        _say("begin", index=index)
        _say("gpu", facts=gpu_to_json(session.read(index)))
    _say("end")
    session.close()


if __name__ == "__main__":
    main()
