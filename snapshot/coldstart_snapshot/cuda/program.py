"""NVIDIA's cuda-checkpoint as a program: one process and one driver call for each operation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from coldstart_cli.errors import ColdstartError, UnavailableError
from coldstart_cli.process import Completed, ProgramTimeoutError, find_program, run
from coldstart_snapshot.cuda.backend import (
    CudaError,
    CudaLostCallError,
    CudaState,
    CudaTimeoutError,
    failed,
    hang_hint,
    moved_devices,
    translated,
)

NAME = "cuda-checkpoint"
# the driver gives up by itself at --timeout; ours is the limit for a driver that does not
_LOCK_GRACE_SECONDS = 5.0
_HELP_SECONDS = 10.0
_NO_RESTORE_THREAD = "Could not find restore thread"


class CheckpointProgram:
    """The command line of cuda-checkpoint, driver 555 and newer.

    The one of driver 550 only toggles: its lock waits without end, and no state can be read back.
    """

    name = NAME

    def __init__(self, path: str, *, copies: bool = False) -> None:
        self.path = path
        # a call on a copy, which nobody puts right when we are gone, ends with us
        self._prefix = (find_program("setpriv"), "--pdeathsig", "KILL") if copies else ()
        self._help: str | None = None

    @property
    def version(self) -> str | None:
        match = re.search(r"^Version (\d[\d.]*\d)", self._help_text(), re.MULTILINE)
        return match[1] if match else None

    @property
    def device_maps(self) -> bool:
        return self.supports("--device-map")

    def supports(self, option: str) -> bool:
        """Whether the program's help names an option: its version lags behind the driver's."""
        return option in self._help_text()

    def require_actions(self) -> None:
        """Refuse a program that only toggles."""
        self._require("--action", "555")

    def restore_thread(self, pid: int, deadline_seconds: float) -> int | None:
        self._require("--get-restore-tid", "555")
        done = self._run(pid, "--get-restore-tid", deadline_seconds=deadline_seconds)
        text = done.text.strip()
        if done.status == 0 and text.isdecimal():
            return int(text)
        if _NO_RESTORE_THREAD in f"{done.text}\n{done.error_text}":
            return None
        raise _failure(done, pid, "look for CUDA state")

    def state(self, pid: int, deadline_seconds: float) -> CudaState:
        done = self._run(pid, "--get-state", deadline_seconds=deadline_seconds)
        if done.status != 0:
            raise _failure(done, pid, "read the CUDA state")
        word = done.text.strip().lower()
        try:
            return CudaState(word)
        except ValueError as error:
            raise CudaError(f"cuda-checkpoint reports an unknown state of process {pid}: {word!r}") from error

    def lock(self, pid: int, deadline_seconds: float) -> None:
        self._require("--action", "555")
        # never without --timeout: a peer that waits in NCCL would keep the lock waiting for ever
        milliseconds = max(1, math.ceil(deadline_seconds * 1000))
        arguments = ("--action", "lock", "--timeout", str(milliseconds))
        self._act(pid, "lock", *arguments, deadline_seconds=deadline_seconds + _LOCK_GRACE_SECONDS)

    def checkpoint(self, pid: int, deadline_seconds: float) -> None:
        self._act(pid, "checkpoint", "--action", "checkpoint", deadline_seconds=deadline_seconds)

    def restore(self, pid: int, deadline_seconds: float, device_map: Mapping[str, str]) -> None:
        arguments = ["--action", "restore"]
        if moved := moved_devices(device_map):
            self._require("--device-map", "580")
            arguments += ["--device-map", ",".join(f"{old}={new}" for old, new in moved)]
        self._act(pid, "restore", *arguments, deadline_seconds=deadline_seconds)

    def unlock(self, pid: int, deadline_seconds: float) -> None:
        self._act(pid, "unlock", "--action", "unlock", deadline_seconds=deadline_seconds)

    def close(self) -> None:
        pass  # every call is a process of its own

    def _act(self, pid: int, verb: str, *arguments: str, deadline_seconds: float) -> None:
        done = self._run(pid, *arguments, deadline_seconds=deadline_seconds)
        if done.status != 0:
            raise _failure(done, pid, verb)

    def _run(self, pid: int, *arguments: str, deadline_seconds: float) -> Completed:
        command = [*self._prefix, self.path, *arguments, "--pid", str(pid)]
        purpose = f"cuda-checkpoint {' '.join(arguments[:2])} of process {pid}"
        try:
            return run(command, deadline_seconds=deadline_seconds, purpose=purpose, check=False)
        except ProgramTimeoutError as error:
            verb = arguments[1] if arguments[0] == "--action" else arguments[0]
            raise CudaTimeoutError(error.message, hint=hang_hint(verb, pid)) from error

    def _require(self, option: str, driver: str) -> None:
        if not self.supports(option):
            raise UnavailableError(
                f"{self.path} has no {option}: driver {driver} or newer is needed",
                hint=f"install NVIDIA driver {driver} or newer and its cuda-checkpoint",
            )

    def _help_text(self) -> str:
        if self._help is None:
            done = run([self.path, "--help"], deadline_seconds=_HELP_SECONDS, check=False)
            self._help = f"{done.text}\n{done.stderr.decode('utf-8', 'replace')}"
        return self._help


def _failure(done: Completed, pid: int, verb: str) -> ColdstartError:
    output = f"{done.stderr.decode('utf-8', 'replace')}\n{done.text}"
    message = failed(verb, pid)
    if known := translated(output, message, verb, pid):
        return known
    if done.status > 128 and not done.error_text:
        return CudaLostCallError(f"{message}: cuda-checkpoint was ended by signal {done.status - 128}")
    return CudaError(f"{message}: {done.error_text or f'status {done.status}'}")
