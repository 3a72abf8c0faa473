"""GPU state of a process tree: suspended as a whole or not at all, resumed until it really runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from coldstart_cli.errors import BusyError, ColdstartError, ExitCode, UnavailableError
from coldstart_cli.process import INSTALL_HINTS, find_program
from coldstart_snapshot.cuda_program import CheckpointProgram, CudaBackend, CudaError, CudaState

_PROBE_SECONDS = 60.0  # a call attaches to the driver first: 2.7 s on a host with eight H100
_ROLLBACK_SECONDS = 300.0
_ROLLBACK_STEPS = 5  # checkpointed -> locked -> running needs three looks; two more for a late driver
_DRIVER_MARKS = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"))
_DEVICE_PREFIX = "/dev/nvidia"


class CudaStuckError(ColdstartError):
    """Processes whose GPU state is neither running nor can be brought back; only killing them helps."""

    exit_code = ExitCode.FAILURE

    def __init__(self, message: str, pids: Sequence[int], *, hint: str | None = None) -> None:
        kill = f"kill -9 {' '.join(map(str, pids))}"
        super().__init__(message, hint=f"{kill}; {hint}" if hint else kill)
        self.pids = tuple(pids)


class CudaClient:
    """Moves the GPU state of processes to host memory and back, all of them or none."""

    def __init__(self, backend: CudaBackend | str, *, rollback_seconds: float = _ROLLBACK_SECONDS) -> None:
        self._backend = CheckpointProgram(backend) if isinstance(backend, str) else backend
        self._rollback_seconds = rollback_seconds

    @property
    def backend(self) -> CudaBackend:
        return self._backend

    def find_gpu_processes(self, pids: Iterable[int]) -> tuple[int, ...]:
        """Those of `pids` that hold CUDA state, in the order given."""
        return tuple(pid for pid in pids if self._backend.restore_thread(pid, _PROBE_SECONDS) is not None)

    def suspend(self, pids: Sequence[int], timeout_seconds: float) -> None:
        """Lock all, then checkpoint all; on any failure, signals included, all of them run again.

        Locking all first keeps a process from posting work that a locked peer will never answer.
        """
        for pid in pids:
            self._expect(pid, CudaState.RUNNING, "it is in another tool's hands")
        deadline = time.monotonic() + timeout_seconds
        try:
            for pid in pids:
                self._backend.lock(pid, _remaining(deadline, f"lock GPU state of process {pid}"))
                self._expect(pid, CudaState.LOCKED, "after locking it")
            for pid in pids:
                self._backend.checkpoint(pid, _remaining(deadline, f"checkpoint GPU state of process {pid}"))
                self._expect(pid, CudaState.CHECKPOINTED, "after its checkpoint")
        except ColdstartError as error:
            self._raise_after_rollback(error, pids)
        except BaseException as interruption:
            if stuck := self._return_to_running(pids):
                raise _stuck_error("interrupted while suspending", stuck) from interruption
            raise

    def resume(
        self,
        pids: Sequence[int],
        device_map: Mapping[str, str] | None = None,
        *,
        timeout_seconds: float = 600.0,
    ) -> None:
        """Restore all, then unlock all, and see each one `running`; a failed restore is never retried.

        After a failed restore the driver refuses everything else on that process (errors 304 and 401, r580).
        """
        deadline = time.monotonic() + timeout_seconds
        broken: dict[int, str] = {}
        cause: ColdstartError | None = None
        for pid in pids:
            try:
                self._backend.restore(
                    pid, _remaining(deadline, f"restore GPU state of process {pid}"), device_map or {}
                )
            except ColdstartError as error:
                broken[pid], cause = error.message, cause or error
                break
        if cause is None:
            for pid in pids:
                with suppress(ColdstartError):  # r570 fails an unlock that worked: the state decides
                    self._backend.unlock(pid, _remaining(deadline, f"unlock GPU state of process {pid}"))
        for pid in pids:
            if pid not in broken and (problem := self._back_to_running(pid, may_restore=cause is not None)):
                broken[pid] = problem
        if broken:
            hint = cause.hint if cause else None
            raise _stuck_error("GPU state was not resumed", broken, hint=hint) from cause

    def _raise_after_rollback(self, error: ColdstartError, pids: Sequence[int]) -> NoReturn:
        if stuck := self._return_to_running(pids):
            raise _stuck_error(error.message, stuck) from error
        error.message = f"{error.message}; every process runs again"
        error.args = (error.message,)
        raise error

    def _expect(self, pid: int, wanted: CudaState, when: str) -> None:
        state = self._backend.state(pid, _PROBE_SECONDS)
        if state is not wanted:
            kind = BusyError if state in {CudaState.LOCKED, CudaState.CHECKPOINTED} else CudaError
            raise kind(
                f"GPU state of process {pid} is {state}, not {wanted}: {when}",
                hint=f"cuda-checkpoint --get-state --pid {pid}",
            )

    def _return_to_running(self, pids: Sequence[int]) -> dict[int, str]:
        """Bring every process back; what cannot be brought back is returned with the reason."""
        stuck: dict[int, str] = {}
        for pid in pids:  # all are restored before one is unlocked, as on the way forward
            try:
                if self._backend.state(pid, self._rollback_seconds) is CudaState.CHECKPOINTED:
                    self._backend.restore(pid, self._rollback_seconds, {})
            except ColdstartError as error:
                stuck[pid] = error.message
        for pid in pids:
            problem = self._back_to_running(pid, may_restore=pid not in stuck)
            if problem is None:
                stuck.pop(pid, None)  # only the look at it had failed
            else:
                stuck.setdefault(pid, problem)
        return stuck

    def _back_to_running(self, pid: int, *, may_restore: bool) -> str | None:
        """One process to `running`, whatever its state is now; the reason when that is impossible."""
        problem = "it does not reach the state running"
        for _ in range(_ROLLBACK_STEPS):
            try:
                state = self._backend.state(pid, self._rollback_seconds)
            except ColdstartError as error:
                return error.message if _alive(pid) else "the process is gone"
            if state is CudaState.RUNNING:
                return None
            if state is CudaState.FAILED or (state is CudaState.CHECKPOINTED and not may_restore):
                return f"its GPU state is {state}"
            try:
                if state is CudaState.CHECKPOINTED:
                    may_restore = False
                    self._backend.restore(pid, self._rollback_seconds, {})
                else:
                    self._backend.unlock(pid, self._rollback_seconds)
            except ColdstartError as error:
                problem = error.message
        return problem


class _NoProgram:
    """The backend of a host with a driver but without the program: GPU state is refused, not ignored."""

    def __init__(self, device_prefix: str) -> None:
        self._device_prefix = device_prefix

    def restore_thread(self, pid: int, deadline_seconds: float) -> int | None:
        del deadline_seconds
        if files := gpu_device_files(pid, self._device_prefix):
            raise UnavailableError(
                f"process {pid} uses a GPU ({files[0]}), and cuda-checkpoint is not installed",
                hint=INSTALL_HINTS["cuda-checkpoint"],
            )
        return None

    def state(self, pid: int, deadline_seconds: float) -> CudaState:
        raise self._refusal(pid, deadline_seconds)

    def lock(self, pid: int, deadline_seconds: float) -> None:
        raise self._refusal(pid, deadline_seconds)

    def checkpoint(self, pid: int, deadline_seconds: float) -> None:
        raise self._refusal(pid, deadline_seconds)

    def restore(self, pid: int, deadline_seconds: float, device_map: Mapping[str, str]) -> None:
        del device_map
        raise self._refusal(pid, deadline_seconds)

    def unlock(self, pid: int, deadline_seconds: float) -> None:
        raise self._refusal(pid, deadline_seconds)

    def _refusal(self, pid: int, deadline_seconds: float) -> UnavailableError:
        del deadline_seconds
        return UnavailableError(
            f"GPU state of process {pid} needs cuda-checkpoint, which is not installed",
            hint=INSTALL_HINTS["cuda-checkpoint"],
        )


def cuda_client(
    configured: str | None,
    *,
    driver_marks: Sequence[Path] = _DRIVER_MARKS,
    device_prefix: str = _DEVICE_PREFIX,
) -> CudaClient | None:
    """A client for this host; None where there is neither cuda-checkpoint nor an NVIDIA driver.

    A host with a driver and without the program gets a client that refuses processes which use a GPU.
    """
    try:
        return CudaClient(find_program("cuda-checkpoint", configured))
    except UnavailableError:
        if configured and os.sep in configured:
            raise  # a path that somebody wrote down and that is not there
    if any(mark.exists() for mark in driver_marks):
        return CudaClient(_NoProgram(device_prefix))
    return None


def gpu_device_files(pid: int, device_prefix: str = _DEVICE_PREFIX) -> tuple[str, ...]:
    """The /dev/nvidia* files that a process has open or mapped."""
    found: set[str] = set()
    folder = Path(f"/proc/{pid}/fd")
    try:
        links = list(folder.iterdir())
    except FileNotFoundError:
        return ()
    except PermissionError as error:
        raise UnavailableError(f"cannot see the open files of process {pid}", hint="run as root") from error
    for link in links:
        with suppress(OSError):
            found.add(os.readlink(link))
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
        found.update(line.split(maxsplit=5)[5] for line in lines if line.count("/"))
    return tuple(sorted(path for path in found if path.startswith(device_prefix)))


def _remaining(deadline: float, purpose: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise BusyError(f"cannot {purpose}: no time is left", hint="allow more time for GPU work to end")
    return left


def _alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _stuck_error(what: str, stuck: Mapping[int, str], *, hint: str | None = None) -> CudaStuckError:
    details = "; ".join(f"process {pid} is stuck: {reason}" for pid, reason in stuck.items())
    return CudaStuckError(f"{what}; {details}", tuple(stuck), hint=hint)
