"""In a session of its own: brings the server back when the command that captures it dies or is stopped."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coldstart_cli import process
from coldstart_cli.errors import BusyError, ColdstartError
from coldstart_cli.files import make_private
from coldstart_cli.process import is_stopped
from coldstart_snapshot.capturing.journal import read_record
from coldstart_snapshot.capturing.recovery import recover
from coldstart_snapshot.engines.asleep import ENGINE_PHASES
from coldstart_snapshot.kept.inventory import snapshot_lock

_START_SECONDS = 60.0
_END_SECONDS = 5.0
_POLL_SECONDS = 0.05
# how soon a command is noticed that is stopped, and its server with it
_LOOK_SECONDS = 0.25
_LET_GO_ON = b"c"
# the one that puts things right is not the one to kill when memory runs out
_OOM_SCORE = "-900"


@contextmanager
def guarded(run_folder: Path, name: str, notes: list[str]) -> Iterator[int]:
    """Yield the pid of a guardian: it acts when this process is gone, is stopped, or leaves a record."""
    ours, theirs = socket.socketpair()
    log = make_private(run_folder / "logs") / f"{name}-guardian.log"
    with ours:
        with theirs, open(log, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
            child = process.start(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(run_folder), name],
                log=output,
                pass_descriptors=(theirs.fileno(),),
            )
        try:
            _wait_ready(ours, log)
            yield child.pid
        finally:
            with suppress(BlockingIOError):
                if ours.recv(1, socket.MSG_DONTWAIT) == _LET_GO_ON:
                    notes.append("the command was stopped while the server stood still, and was let go on")
            ours.close()
            ended = os.pidfd_open(child.pid)
            select.select([ended], [], [], _END_SECONDS)
            os.close(ended)
            if child.poll() is None:  # it has found something to do, and goes on without us
                child.returncode = 0


def _wait_ready(ours: socket.socket, log: Path) -> None:
    ready, _, _ = select.select([ours], [], [], _START_SECONDS)
    if not ready or not ours.recv(1):
        words = process.last_lines(log.read_bytes())
        raise ColdstartError(f"guardian of the capture did not start: {words or 'it said nothing'}")


def watch(descriptor: int, run_folder: Path, name: str) -> None:
    """Until the other end is closed; then undo what the command left on record."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    os.chdir("/")
    with socket.socket(fileno=descriptor) as channel:
        channel.sendall(b".")
        command, told = os.getppid(), False
        while not select.select([channel], [], [], _LOOK_SECONDS)[0]:
            if is_stopped(command) and _stands_still(run_folder, name, command):
                os.kill(command, signal.SIGCONT)
                if not told:
                    channel.sendall(_LET_GO_ON)
                    told = True
    while (record := read_record(run_folder, name)) is not None and record.is_open:
        if record.guardian_pid != os.getpid():
            return  # a later capture, which has a guardian of its own
        try:
            # until the command and all that it was about to start have let go of it
            with snapshot_lock(run_folder, name):
                record = read_record(run_folder, name)
                if record is not None and record.is_open and record.guardian_pid == os.getpid():
                    os.write(1, f"{recover(run_folder, record).outcome}\n".encode())
                return
        except BusyError:
            time.sleep(_POLL_SECONDS)


def _stands_still(run_folder: Path, name: str, command: int) -> bool:
    """Whether the server waits for the command to go on."""
    record = read_record(run_folder, name)
    return record is not None and record.command_pid == command and record.phase in ENGINE_PHASES


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
