"""What the driver can do with another process, and what its errors mean, whichever way it is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from coldstart_cli.errors import BusyError, ColdstartError, UnavailableError, UsageError
from coldstart_snapshot.cuda.processes import communicates

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


# the verb of the driver's own start
STARTING = "start"


class CudaState(StrEnum):
    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"


class CudaError(ColdstartError):
    """The driver refused an operation on one process."""


class CudaLostCallError(CudaError):
    """Whoever called the driver died: whether the call did its work, only the state tells."""


class CudaTimeoutError(BusyError):
    """Work on the GPU did not end in time, or the driver did not come back."""


class CudaBackend(Protocol):
    """The six operations of the driver; each raises a `ColdstartError` and respects its deadline."""

    @property
    def name(self) -> str:
        """How it is called in configuration, manifests and messages."""

    @property
    def device_maps(self) -> bool:
        """Whether a restore can move state to another GPU."""

    def restore_thread(self, pid: int, deadline_seconds: float) -> int | None:
        """The thread that restores CUDA state in the process; None for a process without such state.

        The state is no probe: it also answers for wrappers such as `cuda-checkpoint --launch-job`.
        """

    def state(self, pid: int, deadline_seconds: float) -> CudaState: ...
    def lock(self, pid: int, deadline_seconds: float) -> None: ...
    def checkpoint(self, pid: int, deadline_seconds: float) -> None: ...
    def restore(self, pid: int, deadline_seconds: float, device_map: Mapping[str, str]) -> None: ...
    def unlock(self, pid: int, deadline_seconds: float) -> None: ...

    def close(self) -> None:
        """Let go of the driver; the next call takes hold of it again."""


def moved_devices(device_map: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The pairs of a map, checked; none when every GPU maps to itself: then the driver need not migrate."""
    for uuid in (*device_map, *device_map.values()):
        if not _UUID.fullmatch(uuid):
            raise UsageError(
                f"not a GPU's UUID: {uuid}", hint="`nvidia-smi -L` lists them; MIG slices have none"
            )
    if len(set(device_map.values())) != len(device_map):
        raise UsageError("two GPUs of the snapshot are mapped to the same GPU")
    if all(old == new for old, new in device_map.items()):
        return ()
    return tuple(sorted(device_map.items()))


_LOCK_HANG_HINT = "let the work on its GPU end first; a process that holds CUDA IPC memory cannot be locked"
_NCCL_HINT = "end collective communication first: a process that waits for a peer in NCCL cannot be locked"
_START_HINT = "check that `nvidia-smi` works here, as root, with the driver that the process uses"
# the driver's error strings (cuGetErrorString), the verb they belong to, error, hint; r550 to r615 have these
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
        _START_HINT,
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
    ("device not ready", "lock", CudaTimeoutError, _LOCK_HANG_HINT),
    (
        "the operation cannot be performed in the present state",
        None,
        CudaError,
        "see `cuda-checkpoint --get-state --pid {pid}`: another tool works on it, or a restore failed",
    ),
)


def failed(verb: str, pid: int) -> str:
    """How a failure of one operation begins."""
    return f"cannot {verb} of process {pid}" if " " in verb else f"cannot {verb} GPU state of process {pid}"


def hang_hint(verb: str, pid: int) -> str:
    """What to do about a call that does not end: only a lock waits for what a process does."""
    if verb != "lock":
        return "see what the driver says: `coldstart health quick`"
    return _NCCL_HINT if communicates(pid) else _LOCK_HANG_HINT


def translated(output: str, message: str, verb: str, pid: int = 0) -> ColdstartError | None:
    """The error that a text of the driver means, after `message`; None for a text that is not known."""
    for text, only_verb, kind, hint in _TEXTS:
        if text in output and only_verb in {None, verb}:
            told = f"{message}: {text}"
            if kind is CudaTimeoutError:
                return kind(told, hint=hang_hint(verb, pid))
            if verb == STARTING:
                return UnavailableError(told, hint=hint if kind is UnavailableError else _START_HINT)
            return kind(told, hint=hint.format(pid=pid))
    return None
