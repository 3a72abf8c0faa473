"""An ordering command that outlives who started it: its end is in files, for who works on after a crash."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.process import start, start_ticks

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 2.0
# the command's status is written as soon as it ends, also while children of it hold its output open; what it
# says is kept up to its last 64 KiB
_SHELL = """
echo $$ >"$0/pid"
{ { "$@" 3>&-; echo $? >"$0/status.new"; } 2>&1 1>&3 3>&- | tail -c 65536 >"$0/stderr"; } 3>&1 |
    tail -c 65536 >"$0/stdout"
mv "$0/status.new" "$0/status"
"""


@dataclass(frozen=True)
class Ended:
    """A command's status (None: it did not end in time, or left none), and the end of what it said."""

    status: int | None
    stdout: str
    stderr: str


class RunningCommand:
    """One run, in a session and a folder of its own; `pid` and `start_ticks` find it again."""

    def __init__(self, folder: Path, pid: int, ticks: int) -> None:
        self.folder = folder
        self.pid = pid
        self.start_ticks = ticks

    @classmethod
    def begin(cls, folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> RunningCommand:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        with open(os.devnull, "wb") as nothing:
            child = start(["/bin/sh", "-c", _SHELL, folder, *command], log=nothing, environment=environment)
        child.returncode = 0  # it is nobody's child: whoever comes back asks the files
        return cls(folder, child.pid, start_ticks(child.pid))

    @classmethod
    def found(cls, folder: Path) -> RunningCommand | None:
        """The run whose folder this is, where who began it could put nothing on record."""
        try:
            pid = int((folder / "pid").read_text())
            ours = os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except FileNotFoundError:
            # it may have ended, or never begun
            return cls(folder, 0, 0) if (folder / "status").exists() else None
        except (OSError, ValueError):
            return None
        return cls(folder, pid, start_ticks(pid) if ours else 0)

    def wait(self, until: float) -> Ended:
        """Its end, by `until` (seconds since 1970); what has not ended then is ended, with all it started."""
        while not self._has_ended() and time.time() < until:
            with suppress(ChildProcessError):  # after a crash it is not ours to collect
                os.waitpid(self.pid, os.WNOHANG)
            time.sleep(_POLL_SECONDS)
        status = self._status()
        deadline = time.monotonic() + (_GRACE_SECONDS if status is not None else 0.0)
        while self._lives() and time.monotonic() < deadline:  # its output on the way into the files
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            time.sleep(_POLL_SECONDS)
        self._end()
        return Ended(status, self._said("stdout"), self._said("stderr"))

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _has_ended(self) -> bool:
        return self._status() is not None or not self._lives()

    def _status(self) -> int | None:
        for name in ("status", "status.new"):
            with suppress(OSError, ValueError):
                return int((self.folder / name).read_text())
        return None

    def _said(self, name: str) -> str:
        try:
            return (self.folder / name).read_bytes().decode("utf-8", "replace")
        except OSError:
            return ""

    def _lives(self) -> bool:
        return self.start_ticks > 0 and start_ticks(self.pid) == self.start_ticks

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            # the shell leads the group; once it is gone, its number may be another's
            if not self._lives():
                break
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            deadline = time.monotonic() + _GRACE_SECONDS
            while self._lives() and time.monotonic() < deadline:
                with suppress(ChildProcessError):
                    os.waitpid(self.pid, os.WNOHANG)
                time.sleep(_POLL_SECONDS)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
