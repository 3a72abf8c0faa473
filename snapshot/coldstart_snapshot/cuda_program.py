"""NVIDIA's cuda-checkpoint as a program: one process and one driver call for each operation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from coldstart_cli.errors import BusyError, ColdstartError, UnavailableError, UsageError
from coldstart_cli.process import Completed, ProgramTimeoutError, run

# the driver gives up by itself at --timeout; ours is the limit for a driver that does not
_LOCK_GRACE_SECONDS = 5.0
_HELP_SECONDS = 10.0
_NO_RESTORE_THREAD = "Could not find restore thread"
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class CudaState(StrEnum):
    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"


class CudaError(ColdstartError):
    """The driver refused an operation on one process."""


class CudaTimeoutError(BusyError):
    """Work on the GPU did not end in time, so the process could not be locked."""


class CudaBackend(Protocol):
    """The six operations of the driver; each raises a `ColdstartError` and respects its deadline."""

    def restore_thread(self, pid: int, deadline_seconds: float) -> int | None: ...
    def state(self, pid: int, deadline_seconds: float) -> CudaState: ...
    def lock(self, pid: int, deadline_seconds: float) -> None: ...
    def checkpoint(self, pid: int, deadline_seconds: float) -> None: ...
    def restore(self, pid: int, deadline_seconds: float, device_map: Mapping[str, str]) -> None: ...
    def unlock(self, pid: int, deadline_seconds: float) -> None: ...


class CheckpointProgram:
    """The command line of cuda-checkpoint, driver 555 and newer."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._help: str | None = None

    @property
    def version(self) -> str | None:
        match = re.search(r"^Version (\d[\d.]*\d)", self._help_text(), re.MULTILINE)
        return match[1] if match else None

    def supports(self, option: str) -> bool:
        """Whether the program's help names an option: its version lags behind the driver's."""
        return option in self._help_text()

    def restore_thread(self, pid: int, deadline_seconds: float) -> int | None:
        """The thread that restores CUDA state in the process; None for a process without such state.

        --get-state is no probe: it also answers for wrappers such as `cuda-checkpoint --launch-job`.
        """
        self._require("--get-restore-tid", "555")
        done = self._run(pid, "--get-restore-tid", deadline_seconds=deadline_seconds)
        text = done.text.strip()
        if done.status == 0 and text.isdecimal():
            return int(text)
        if _NO_RESTORE_THREAD in f"{done.text}\n{done.error_text}":
            return None
        raise _translated(done, pid, "look for CUDA state")

    def state(self, pid: int, deadline_seconds: float) -> CudaState:
        done = self._run(pid, "--get-state", deadline_seconds=deadline_seconds)
        if done.status != 0:
            raise _translated(done, pid, "read the CUDA state")
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
        if moved := device_map_argument(device_map):
            self._require("--device-map", "580")
            arguments += ["--device-map", moved]
        self._act(pid, "restore", *arguments, deadline_seconds=deadline_seconds)

    def unlock(self, pid: int, deadline_seconds: float) -> None:
        self._act(pid, "unlock", "--action", "unlock", deadline_seconds=deadline_seconds)

    def _act(self, pid: int, verb: str, *arguments: str, deadline_seconds: float) -> None:
        done = self._run(pid, *arguments, deadline_seconds=deadline_seconds)
        if done.status != 0:
            raise _translated(done, pid, verb)

    def _run(self, pid: int, *arguments: str, deadline_seconds: float) -> Completed:
        command = [self.path, *arguments, "--pid", str(pid)]
        purpose = f"cuda-checkpoint {' '.join(arguments[:2])} of process {pid}"
        try:
            return run(command, deadline_seconds=deadline_seconds, purpose=purpose, check=False)
        except ProgramTimeoutError as error:
            raise CudaTimeoutError(error.message, hint=_HANG_HINT) from error

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


def device_map_argument(device_map: Mapping[str, str]) -> str:
    """`old=new,...`, or nothing when every GPU maps to itself: then the driver need not migrate."""
    for uuid in (*device_map, *device_map.values()):
        if not _UUID.fullmatch(uuid):
            raise UsageError(
                f"not a GPU's UUID: {uuid}", hint="`nvidia-smi -L` lists them; MIG slices have none"
            )
    if len(set(device_map.values())) != len(device_map):
        raise UsageError("two GPUs of the snapshot are mapped to the same GPU")
    if all(old == new for old, new in device_map.items()):
        return ""
    return ",".join(f"{old}={new}" for old, new in sorted(device_map.items()))


_HANG_HINT = (
    "end collective communication first: a process that waits for a peer in NCCL or holds CUDA IPC memory "
    "cannot be locked"
)
# what the program prints, by the driver's error strings: text, verb it belongs to, error, hint
_TEXTS: tuple[tuple[str, str | None, type[ColdstartError], str], ...] = (
    (
        "OS call failed or operation not supported on this OS",
        "restore",
        CudaError,
        "the driver cannot restore this process any more: restore the snapshot again",
    ),
    (
        "OS call failed or operation not supported on this OS",
        None,
        CudaError,
        "run as root in the host's PID namespace; CUDA IPC memory (tensor parallel, NCCL) has this text too",
    ),
    (
        "invalid argument",
        "restore",
        CudaError,
        "the device map must name every GPU of the snapshot, and the process must see them: `nvidia-smi -L`",
    ),
    ("out of memory", "restore", CudaError, "free memory of the GPU before restoring: `nvidia-smi`"),
    (
        "out of memory",
        None,
        CudaError,
        "the state of the GPU needs as much host memory as the process uses there, and MIG must be off",
    ),
    (
        "initialization error",
        None,
        UnavailableError,
        "check that `nvidia-smi` works here, as root, with the driver that the process uses",
    ),
    (
        "no CUDA-capable device is detected",
        None,
        UnavailableError,
        "run where /dev/nvidia* exists, outside of containers without GPUs",
    ),
    ("Insufficient driver", None, UnavailableError, "install NVIDIA driver 555 or newer"),
    (
        "operation not supported",
        None,
        CudaError,
        "managed memory, MIG and CUDA IPC cannot be checkpointed; a restore needs /dev/nvidia* in its place",
    ),
    ("device not ready", "lock", CudaTimeoutError, _HANG_HINT),
    (
        "the operation cannot be performed in the present state",
        None,
        CudaError,
        "see `cuda-checkpoint --get-state --pid {pid}`: another tool works on it, or a restore failed",
    ),
)


def _translated(done: Completed, pid: int, verb: str) -> ColdstartError:
    output = f"{done.stderr.decode('utf-8', 'replace')}\n{done.text}"
    message = (
        f"cannot {verb} of process {pid}" if " " in verb else f"cannot {verb} GPU state of process {pid}"
    )
    for text, only_verb, kind, hint in _TEXTS:
        if text in output and only_verb in {None, verb}:
            return kind(f"{message}: {text}", hint=hint.format(pid=pid))
    if done.status > 128 and not done.error_text:
        return CudaError(f"{message}: cuda-checkpoint was ended by signal {done.status - 128}")
    return CudaError(f"{message}: {done.error_text or f'status {done.status}'}")
