"""Starting the process of an image server, hearing from it, and ending it."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any, Self

from coldstart_cli.errors import BusyError, ColdstartError, ExitCode, IoFailure
from coldstart_cli.process import Program, kill_group, last_lines, start, start_ticks
from coldstart_fs.records import MountRecord
from coldstart_fs.server_request import ServerRequest

_KILL_WAIT_SECONDS = 5.0
# servers that this process started: a parent that lives on must collect them when they end
_children: dict[int, Program] = {}


class StartedServer:
    """A server on its way to its mount. Leaving the block with an exception ends it."""

    def __init__(self, request: ServerRequest, log: int, log_file: Path | None) -> None:
        self._reading, writing = os.pipe()
        self._log_file = log_file
        order = json.dumps(asdict(request) | {"ready_descriptor": writing})
        try:
            # -P: a module in the caller's folder must not take the place of ours
            command = [sys.executable, "-P", "-m", "coldstart_fs.serving", order]
            self._process = start(command, log=log, pass_descriptors=[writing])
        except BaseException:
            os.close(self._reading)
            raise
        finally:
            os.close(writing)
        self.pid = self._process.pid
        self.start_ticks = start_ticks(self.pid)
        _children[self.pid] = self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        os.close(self._reading)
        if kind is not None:
            kill_group(self._process)
            _children.pop(self.pid, None)

    def wait_mounted(self, deadline: float) -> tuple[str, ...]:
        """Until the server has mounted; what it has to say. Its refusal is raised here."""
        text = b""
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self._reading], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BusyError("image server did not mount in time" + self._said())
            part = os.read(self._reading, 65536)
            if not part:
                raise ColdstartError("image server ended before it had mounted" + self._said())
            text += part
        answer = json.loads(text)
        if "error" in answer:
            raise _as_error(answer)
        return tuple(answer["notes"])

    def wait_answer(self, mountpoint: Path, deadline: float) -> os.stat_result:
        """The root's status, once the server answers; a thread asks, since asking cannot be given up."""
        outcome: list[os.stat_result | OSError] = []

        def ask() -> None:
            try:
                outcome.append(os.stat(mountpoint))
            except OSError as error:
                outcome.append(error)

        asking = Thread(target=ask, daemon=True)
        asking.start()
        asking.join(max(0.0, deadline - time.monotonic()))
        if not outcome:
            raise BusyError("image server did not answer in time" + self._said())
        if isinstance(outcome[0], OSError):
            text = f"image server does not answer: {mountpoint}: {outcome[0].strerror}"
            raise IoFailure(text + self._said()) from outcome[0]
        return outcome[0]

    def _said(self) -> str:
        try:
            text = last_lines(self._log_file.read_bytes()) if self._log_file is not None else ""
        except OSError:
            text = ""
        return f": {text}" if text else ""


def stop_server(record: MountRecord, timeout_seconds: float) -> None:
    """End a server: TERM, then KILL when it does not come to an end."""
    try:
        descriptor = os.pidfd_open(record.server_pid) if record.server_lives() else -1
    except ProcessLookupError:
        descriptor = -1
    try:
        for number, wait_seconds in ((signal.SIGTERM, timeout_seconds), (signal.SIGKILL, _KILL_WAIT_SECONDS)):
            if descriptor < 0 or not record.server_lives():
                break
            signal.pidfd_send_signal(descriptor, number)
            select.select([descriptor], [], [], wait_seconds)
    except ProcessLookupError:
        pass
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    child = _children.get(record.server_pid)
    if child is not None and child.poll() is not None:
        del _children[record.server_pid]


def wait_for_server(record: MountRecord, timeout_seconds: float | None = None) -> bool:
    """Block until the server has ended; false when it has not by then. Signals unwind through here."""
    try:
        descriptor = os.pidfd_open(record.server_pid) if record.server_lives() else -1
    except ProcessLookupError:
        return True
    if descriptor < 0:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_seconds)[0])
    finally:
        os.close(descriptor)


def _as_error(answer: dict[str, Any]) -> ColdstartError:
    """The same kind of error that the server met, so that its exit code is ours."""
    for kind in ColdstartError.__subclasses__():
        if kind.exit_code == ExitCode(answer["exit_code"]) and kind.__module__ == ColdstartError.__module__:
            return kind(answer["error"], hint=answer["hint"])
    return ColdstartError(answer["error"], hint=answer["hint"])
