"""Runs a program for a limited time, and ends all that it started.

    contained.py SECONDS LOG [--echo] PROGRAM...

What the program starts may have sessions of its own, and outlive who started it (guardians, restored
servers): its orphans become children of this process, which knows them by that, and ends no others.
The log is bounded.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER = 36
_LOG_BYTES = 4 << 20
_TICK_SECONDS = 0.05
# between the request to end, on which a program cleans up, and the end
_GRACE_SECONDS = 10.0
_KILL_SECONDS = 5.0
_TIMED_OUT = 124
_STOPPED = 143


class Contained:
    """One program, its output, and its descendants."""

    def __init__(self, command: list[str], log: int, *, echo: bool) -> None:
        self._outputs = [(log, _LOG_BYTES), *([(1, _LOG_BYTES)] if echo else [])]
        self._pipe, other = os.pipe()
        os.set_blocking(self._pipe, False)
        self._program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=other,
            start_new_session=True,
            stderr=other if not echo else None,
        )
        os.close(other)
        self.status: int | None = None

    def look(self) -> None:
        """Pass on what the program said, and take leave of what has ended."""
        select.select([self._pipe], [], [], _TICK_SECONDS)
        with contextlib.suppress(BlockingIOError):
            while content := os.read(self._pipe, 1 << 16):
                for place, (descriptor, left) in enumerate(self._outputs):
                    with contextlib.suppress(OSError):
                        os.write(descriptor, content[:left])
                    self._outputs[place] = (descriptor, max(left - len(content), 0))
            time.sleep(_TICK_SECONDS)  # nobody holds the other end any more
        self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self._program.pid:
                    self.status = self._program.returncode = os.waitstatus_to_exitcode(status)

    def interrupt(self) -> None:
        """Ask it to clean up, and wait a while for that."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._program.pid, signal.SIGINT)
        end = time.monotonic() + _GRACE_SECONDS
        while self.status is None and time.monotonic() < end:
            self.look()

    def end_all(self) -> None:
        """End every descendant, and what those start meanwhile."""
        end = time.monotonic() + _KILL_SECONDS
        while (found := list(descendants(os.getpid()))) and time.monotonic() < end:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.look()
        self.look()  # what was said between the last look and the end


def descendants(ancestor: int) -> Iterator[int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stream:
                parents[int(name)] = int(stream.read().rpartition(b")")[2].split()[1])
    for pid in parents:
        above = parents.get(pid)
        while above and above != ancestor:
            above = parents.get(above)
        if above:
            yield pid


def main() -> int:
    seconds, log, *command = sys.argv[1:]
    echo = command[0] == "--echo"
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become the parent of orphans")
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))
    deadline = time.monotonic() + float(seconds)
    with open(log, "wb") as stream:
        contained = Contained(command[echo:], stream.fileno(), echo=echo)
        while contained.status is None and not asked and time.monotonic() < deadline:
            contained.look()
        timed_out = contained.status is None
        if timed_out:
            print(f"stopped after {seconds} s" if not asked else "stopped", file=sys.stderr)
            contained.interrupt()
        contained.end_all()
    return (_STOPPED if asked else _TIMED_OUT) if timed_out else abs(contained.status or 0)


if __name__ == "__main__":
    sys.exit(main())
