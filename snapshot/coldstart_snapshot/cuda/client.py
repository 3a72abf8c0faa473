"""GPU state of a process tree: suspended as a whole or not at all, resumed until it really runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from coldstart_cli.errors import BusyError, ColdstartError, ExitCode
from coldstart_snapshot.cuda.backend import CudaBackend, CudaError, CudaLostCallError, CudaState
from coldstart_snapshot.processes.tree import is_alive

_DYING_SECONDS = 0.5
_DYING_PAUSE_SECONDS = 0.02
_PROBE_SECONDS = 60.0  # a call attaches to the driver first: 2.7 s on a host with eight H100
_ROLLBACK_SECONDS = 300.0
# of each lock, which the driver gives up by itself: meanwhile the process's calls of CUDA wait
_LOCK_SECONDS = 60.0
# checkpointed -> locked -> running needs three looks; the others are for a driver that is late
_ROLLBACK_PAUSES_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6)


class CudaStuckError(ColdstartError):
    """Processes whose GPU state is neither running nor can be brought back; `hint` says which to kill."""

    exit_code = ExitCode.FAILURE

    def __init__(self, message: str, pids: Sequence[int], *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.pids = tuple(pids)


class CudaClient:
    """Moves the GPU state of processes to host memory and back, all of them or none."""

    def __init__(
        self, backend: CudaBackend, reason: str = "", *, rollback_seconds: float = _ROLLBACK_SECONDS
    ) -> None:
        self._backend = backend
        self.reason = reason
        self._rollback_seconds = rollback_seconds

    @property
    def backend(self) -> CudaBackend:
        return self._backend

    def close(self) -> None:
        """Let go of the driver."""
        self._backend.close()

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
                left = _remaining(deadline, f"lock GPU state of process {pid}")
                self._backend.lock(pid, min(left, _LOCK_SECONDS))
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
        copies: bool = False,
    ) -> None:
        """Restore all, then unlock all, and see each one `running`; what the driver refused is never retried.

        After a failed restore the driver refuses everything else on that process (errors 304 and 401, r580).
        `copies` are ended by whoever asks when this fails: nobody is told to kill them.
        """
        deadline = time.monotonic() + timeout_seconds
        broken: dict[int, str] = {}
        cause: ColdstartError | None = None
        for pid in pids:
            try:
                self._restore(pid, deadline, device_map or {})
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
            raise _stuck_error("GPU state was not resumed", broken, hint=hint, copies=copies) from cause

    def bring_back(self, pids: Sequence[int]) -> bool:
        """Every process to running, however far a suspension had come; false when all of them were."""
        with suppress(ColdstartError):  # one that cannot be asked is not running
            if all(self._backend.state(pid, self._rollback_seconds) is CudaState.RUNNING for pid in pids):
                return False
        if stuck := self._return_to_running(pids):
            raise _stuck_error("GPU state was not given back", stuck)
        return True

    def require_running(self, pids: Iterable[int]) -> None:
        """Raise unless every process is there, and its GPU state runs."""
        for pid in pids:
            if not is_alive(pid):
                raise CudaError(f"process {pid}, which had GPU state, is gone")
            try:
                state = self._backend.state(pid, _PROBE_SECONDS)
            except CudaLostCallError:  # of whoever asks, which says nothing about the process
                state = self._backend.state(pid, _PROBE_SECONDS)
            if state is not CudaState.RUNNING:
                raise CudaError(f"GPU state of process {pid} is {state}")

    def _restore(self, pid: int, deadline: float, device_map: Mapping[str, str]) -> None:
        """One restore; a second one only where the caller died before the driver did anything."""
        for attempt in (1, 2):
            try:
                self._backend.restore(
                    pid, _remaining(deadline, f"restore GPU state of process {pid}"), device_map
                )
            except CudaLostCallError:
                state = self._backend.state(pid, _PROBE_SECONDS)
                if state in {CudaState.LOCKED, CudaState.RUNNING}:
                    return
                if state is not CudaState.CHECKPOINTED or attempt == 2:
                    raise
            else:
                return

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
                    self._restore(pid, time.monotonic() + self._rollback_seconds, {})
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
        for pause in _ROLLBACK_PAUSES_SECONDS:
            try:
                state = self._backend.state(pid, self._rollback_seconds)
            except ColdstartError as error:
                return error.message
            if state is CudaState.RUNNING:
                return None
            if state is CudaState.FAILED or (state is CudaState.CHECKPOINTED and not may_restore):
                return f"its GPU state is {state}"
            try:
                if state is CudaState.CHECKPOINTED:
                    may_restore = False
                    self._restore(pid, time.monotonic() + self._rollback_seconds, {})
                else:
                    self._backend.unlock(pid, self._rollback_seconds)
            except ColdstartError as error:
                problem = error.message
                time.sleep(pause)  # the driver may still be at what we gave up waiting for
        return problem


def _remaining(deadline: float, purpose: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise BusyError(f"cannot {purpose}: no time is left", hint="allow more time for GPU work to end")
    return left


def _living(pids: Iterable[int]) -> list[int]:
    """Those that live on: who was killed takes a moment to go, and the driver fails for it until then."""
    deadline = time.monotonic() + _DYING_SECONDS
    alive = [pid for pid in pids if is_alive(pid)]
    while alive and time.monotonic() < deadline:
        time.sleep(_DYING_PAUSE_SECONDS)
        alive = [pid for pid in alive if is_alive(pid)]
    return alive


def _stuck_error(
    what: str, stuck: Mapping[int, str], *, hint: str | None = None, copies: bool = False
) -> CudaStuckError:
    alive = _living(stuck)
    word = "" if copies else " is stuck"
    details = "; ".join(
        f"process {pid}{word}: {reason}" if pid in alive else f"process {pid} is gone"
        for pid, reason in stuck.items()
    )
    kill = f"kill -9 {' '.join(map(str, alive))}" if alive and not copies else None
    hints = "; ".join(filter(None, (kill, hint)))
    return CudaStuckError(f"{what}; {details}", tuple(stuck), hint=hints or None)
