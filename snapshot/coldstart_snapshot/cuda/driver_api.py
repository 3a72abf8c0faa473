"""The driver's own checkpoint API (r570 and newer), called in a process that may hang or crash for us."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from coldstart_cli.errors import UnavailableError
from coldstart_cli.process import Program, kill_group, last_lines, rounded, start
from coldstart_snapshot.cuda.backend import (
    STARTING,
    CudaError,
    CudaLostCallError,
    CudaState,
    CudaTimeoutError,
    failed,
    hang_hint,
    moved_devices,
    translated,
)

NAME = "driver-api"
_WORKER = "coldstart_snapshot.cuda.driver_worker"
_FOR = "--for"
# of a worker on copies, which nobody puts right when we are gone: it ends with us, in any call
_AT_ONCE = "--at-once"
# cuInit without persistence mode brings every GPU of the host up first
_START_SECONDS = 120.0
_LOCK_GRACE_SECONDS = 5.0
_END_SECONDS = 1.0
_POLL_SECONDS = 0.01
_OUTPUT_BYTES = 16384
_INVALID_VALUE = 1
_NOT_INITIALIZED = 3
_MAPS_SINCE = 13000
_QUESTIONS = {"restore_thread": "look for CUDA state", "state": "read the CUDA state"}
_STATES = (CudaState.RUNNING, CudaState.LOCKED, CudaState.CHECKPOINTED, CudaState.FAILED)


class DriverApi:
    """`cuCheckpointProcess*` of libcuda.so.1: one start of the driver for any number of calls."""

    name = NAME

    def __init__(self, *, start_seconds: float = _START_SECONDS, copies: bool = False) -> None:
        self._start_seconds = start_seconds
        self._copies = copies
        self._worker: _Worker | None = None

    @property
    def device_maps(self) -> bool:
        return self._running().version >= _MAPS_SINCE

    def require(self) -> None:
        """Start the driver's library; refused with the reason where that cannot be."""
        self._running()

    def restore_thread(self, pid: int, deadline_seconds: float) -> int | None:
        code, value, text = self._call("restore_thread", pid, deadline_seconds)
        if code in {_INVALID_VALUE, _NOT_INITIALIZED}:  # of the process: the library itself has been started
            return None
        _check(code, text, pid, _QUESTIONS["restore_thread"])
        return value

    def state(self, pid: int, deadline_seconds: float) -> CudaState:
        code, value, text = self._call("state", pid, deadline_seconds)
        _check(code, text, pid, _QUESTIONS["state"])
        if value is None or not 0 <= value < len(_STATES):
            # r615 has two more, for storage of one's own, which nobody of ours asks for
            raise CudaError(f"the driver reports an unknown state of process {pid}: {value}")
        return _STATES[value]

    def lock(self, pid: int, deadline_seconds: float) -> None:
        # never 0, which means for ever
        milliseconds = max(1, math.ceil(deadline_seconds * 1000))
        self._act("lock", pid, deadline_seconds + _LOCK_GRACE_SECONDS, timeout_ms=milliseconds)

    def checkpoint(self, pid: int, deadline_seconds: float) -> None:
        self._act("checkpoint", pid, deadline_seconds)

    def restore(self, pid: int, deadline_seconds: float, device_map: Mapping[str, str]) -> None:
        moved = moved_devices(device_map)
        if moved and not self.device_maps:
            raise UnavailableError(
                "this driver cannot restore to other GPUs: driver 580 or newer is needed",
                hint="install NVIDIA driver 580 or newer, or restore on the GPUs of the capture",
            )
        self._act("restore", pid, deadline_seconds, pairs=moved)

    def unlock(self, pid: int, deadline_seconds: float) -> None:
        self._act("unlock", pid, deadline_seconds)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _act(self, verb: str, pid: int, deadline_seconds: float, **arguments: Any) -> None:
        code, _, text = self._call(verb, pid, deadline_seconds, **arguments)
        _check(code, text, pid, verb)

    def _call(
        self, operation: str, pid: int, deadline_seconds: float, **arguments: Any
    ) -> tuple[int, int | None, str]:
        worker = self._running()
        try:
            answer = worker.ask({"operation": operation, "pid": pid, **arguments}, deadline_seconds)
        except TimeoutError as error:
            self.close()  # a late answer must not be taken for the next one
            seconds = rounded(deadline_seconds)
            raise CudaTimeoutError(
                f"driver call {operation} of process {pid}: no end after {seconds} s, killed",
                hint=hang_hint(operation, pid),
            ) from error
        except EOFError as error:
            words = worker.last_words()
            self.close()
            verb = _QUESTIONS.get(operation, operation)
            raise CudaLostCallError(
                f"{failed(verb, pid)}: the process that calls the driver {words}"
            ) from error
        except BaseException:
            self.close()  # interrupted: its answer would come to the next question
            raise
        return int(answer["code"]), answer["value"], str(answer["text"])

    def _running(self) -> _Worker:
        if self._worker is None:
            self._worker = _Worker(self._start_seconds, copies=self._copies)
        return self._worker


class _Worker:
    """One process of `driver_worker`, ready for calls."""

    def __init__(self, start_seconds: float, *, copies: bool) -> None:
        self._output = os.memfd_create("cuda-driver", os.MFD_CLOEXEC)
        self._channel, other = socket.socketpair()
        self._pending = b""
        try:
            with other:
                # -P keeps the working folder out of the module path
                command = [sys.executable, "-P", "-m", _WORKER, str(other.fileno())]
                command += [_FOR, str(os.getpid())]
                command += [_AT_ONCE] if copies else []
                self._program: Program = start(command, log=self._output, pass_descriptors=(other.fileno(),))
        except BaseException:
            self._channel.close()
            os.close(self._output)
            raise
        try:
            self.version = self._greet(start_seconds)
        except BaseException:
            self.end()
            raise

    def _greet(self, start_seconds: float) -> int:
        try:
            greeting = self._receive(start_seconds)
        except TimeoutError as error:
            raise CudaTimeoutError(
                f"the NVIDIA driver does not start: no end of cuInit after {start_seconds:g} s",
                hint="coldstart health quick",
            ) from error
        except EOFError as error:
            raise UnavailableError(
                f"the NVIDIA driver does not start: the process that calls it {self.last_words()}",
                hint="coldstart health quick",
            ) from error
        if "no_library" in greeting:
            raise UnavailableError(
                f"cannot load the CUDA driver library: {greeting['no_library']}",
                hint="install NVIDIA's driver with its CUDA library",
            )
        if "missing" in greeting:
            raise UnavailableError(
                f"the NVIDIA driver has no checkpoint API: {greeting['missing'][0]} is missing",
                hint="install NVIDIA driver 570 or newer, or use its cuda-checkpoint (555 or newer)",
            )
        if code := greeting["code"]:
            text = greeting["text"]
            message = "the NVIDIA driver does not start"
            raise translated(text, message, STARTING) or UnavailableError(f"{message}: {text} ({code})")
        return int(greeting["version"])

    def ask(self, request: Mapping[str, Any], deadline_seconds: float) -> dict[str, Any]:
        """One question, one answer; `TimeoutError` at the deadline, `EOFError` when the process is gone."""
        self._channel.settimeout(deadline_seconds)
        try:
            content = json.dumps({**request, "deadline_seconds": deadline_seconds})
            self._channel.sendall(content.encode() + b"\n")
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError from error
        return self._receive(deadline_seconds)

    def _receive(self, deadline_seconds: float) -> dict[str, Any]:
        end = time.monotonic() + deadline_seconds
        while b"\n" not in self._pending:
            self._channel.settimeout(max(end - time.monotonic(), 0.001))
            try:
                content = self._channel.recv(65536)
            except TimeoutError:
                raise
            except OSError as error:
                raise EOFError from error
            if not content:
                raise EOFError
            self._pending += content
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def last_words(self) -> str:
        """How the process ended: by which signal, or with what on its lips."""
        end = time.monotonic() + _END_SECONDS
        while self._program.poll() is None and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        kill_group(self._program, grace_seconds=0.1, kill_wait_seconds=_END_SECONDS)
        status = self._program.returncode
        if status < 0:
            return f"was ended by signal {-status}"
        return f"ended: {last_lines(os.pread(self._output, _OUTPUT_BYTES, 0)) or f'status {status}'}"

    def end(self) -> None:
        self._channel.close()
        # nothing to clean up there; one that hangs in the kernel is left to the kernel
        kill_group(self._program, grace_seconds=0.1, kill_wait_seconds=_END_SECONDS)
        os.close(self._output)


def works_for(arguments: Sequence[str], pid: int) -> bool:
    """Whether these are the arguments of a worker that was started by the process `pid`."""
    return _WORKER in arguments and (_FOR, str(pid)) in pairwise(arguments)


def _check(code: int, text: str, pid: int, verb: str) -> None:
    if code:
        message = failed(verb, pid)
        raise translated(text, message, verb, pid) or CudaError(f"{message}: {text} ({code})")
