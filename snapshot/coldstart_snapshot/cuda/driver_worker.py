"""The process that has the driver's library loaded and calls it for `driver_api`; it may hang or crash."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LIBRARY = "libcuda.so.1"
_LOOK_SECONDS = 0.2
_FUNCTIONS = ("Lock", "Checkpoint", "Restore", "Unlock", "GetState", "GetRestoreThreadId")


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 16),)


class _GpuPair(ctypes.Structure):
    _fields_ = (("old", _Uuid), ("new", _Uuid))


class _LockArguments(ctypes.Structure):
    """CUcheckpointLockArgs of CUDA 12.8: like the others 64 bytes, of which reserved ones are zero."""

    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class _NoArguments(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_uint64 * 8),)


class _RestoreArguments(ctypes.Structure):
    """CUcheckpointRestoreArgs of CUDA 13.0; in 12.8 all of it was reserved."""

    _fields_ = (
        ("pairs", ctypes.POINTER(_GpuPair)),
        ("pair_count", ctypes.c_uint),
        ("reserved", ctypes.c_char * 44),
        ("reserved1", ctypes.c_uint64),
    )


class _Driver:
    """The library, started with one cuInit for all calls."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(LIBRARY)

    def missing(self) -> list[str]:
        """Functions that this driver does not have: before r570 none of them."""
        names = ["cuInit", *(f"cuCheckpointProcess{name}" for name in _FUNCTIONS)]
        return [name for name in names if not hasattr(self._library, name)]

    def start(self) -> int:
        return int(self._library.cuInit(ctypes.c_uint(0)))

    def version(self) -> int:
        version = ctypes.c_int()
        return version.value if not self._library.cuDriverGetVersion(ctypes.byref(version)) else 0

    def words(self, code: int) -> str:
        """What the driver calls an error: its text, else its name."""
        for function in ("cuGetErrorString", "cuGetErrorName"):
            text = ctypes.c_char_p()
            if not getattr(self._library, function)(code, ctypes.byref(text)) and text.value:
                return text.value.decode("ascii", "replace")
        return f"CUDA error {code}"

    def perform(self, request: dict[str, Any]) -> tuple[int, int | None]:
        """One call: CUDA's code, and the number that a question answers."""
        pid, call = int(request["pid"]), self._library
        match request["operation"]:
            case "lock":
                arguments = _LockArguments(timeout_ms=int(request["timeout_ms"]))
                return call.cuCheckpointProcessLock(pid, ctypes.byref(arguments)), None
            case "checkpoint":
                return call.cuCheckpointProcessCheckpoint(pid, ctypes.byref(_NoArguments())), None
            case "restore":
                pairs = [(_uuid(old), _uuid(new)) for old, new in request["pairs"]]
                array = (_GpuPair * len(pairs))(*(_GpuPair(old, new) for old, new in pairs))
                restore = _RestoreArguments(pairs=array if pairs else None, pair_count=len(pairs))
                return call.cuCheckpointProcessRestore(pid, ctypes.byref(restore)), None
            case "unlock":
                return call.cuCheckpointProcessUnlock(pid, ctypes.byref(_NoArguments())), None
            case "state":
                return self._asked(call.cuCheckpointProcessGetState, pid)
            case "restore_thread":
                return self._asked(call.cuCheckpointProcessGetRestoreThreadId, pid)
        raise ValueError(request["operation"])

    def _asked(self, function: Callable[..., int], pid: int) -> tuple[int, int]:
        value = ctypes.c_int(-1)
        return function(pid, ctypes.byref(value)), value.value


def _uuid(text: str) -> _Uuid:
    content = bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))
    return _Uuid((ctypes.c_ubyte * 16)(*content))


class Watch:
    """Ends this process when the one that started it is gone, also out of a call that hangs.

    A call in progress gets the time that it had, since it may be halfway with a server's state, unless
    `at_once`: then what it works on is a copy. PR_SET_PDEATHSIG would count the death of a thread.
    """

    def __init__(self, parent: int, *, at_once: bool) -> None:
        self._at_once = at_once
        self.call_ends_monotonic = 0.0
        try:
            self._parent = os.pidfd_open(parent)
        except ProcessLookupError:
            sys.exit(1)
        if os.getppid() != parent:
            sys.exit(1)
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        select.select([self._parent], [], [])
        while not self._at_once and (left := self.call_ends_monotonic - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        os.kill(os.getpid(), signal.SIGKILL)


def serve(channel: socket.socket, watch: Watch) -> None:
    """Say how the start went, then answer one line with one line until the other end closes."""
    with channel, channel.makefile("rwb") as stream:

        def say(**content: Any) -> None:
            stream.write(json.dumps(content).encode() + b"\n")
            stream.flush()

        try:
            driver = _Driver()
        except OSError as error:
            say(no_library=str(error))
            return
        if missing := driver.missing():
            say(missing=missing)
            return
        if code := driver.start():
            say(code=code, text=driver.words(code))
            return
        say(code=0, version=driver.version())
        for line in stream:
            request = json.loads(line)
            watch.call_ends_monotonic = time.monotonic() + request["deadline_seconds"]
            code, value = driver.perform(request)
            watch.call_ends_monotonic = 0.0
            say(code=code, value=value, text=driver.words(code) if code else "")


if __name__ == "__main__":
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        os.environ.pop(name, None)  # what an operator's shell hides is no matter of the server's
    # DESCRIPTOR --for PID [--at-once], as `driver_api` writes it
    starter = Watch(int(sys.argv[3]), at_once="--at-once" in sys.argv)
    serve(socket.socket(fileno=int(sys.argv[1])), starter)
