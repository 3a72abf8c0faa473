"""Running the primer: a process with a deadline, whose questions are not recorded."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from coldstart_cli.process import kill_group, start
from coldstart_fs.traces import primer as primer_script
from coldstart_fs.traces.plan import Primer

# whoever unmounts waits for it
_STOP_SECONDS = 0.05


def run_primer(
    primer: Primer,
    mountpoint: Path,
    *,
    deadline_seconds: float,
    on_start: Callable[[int], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Ask the mount everything; false when it was not through in time, or was to `stop` before.

    `on_start` first gets the pid.
    """
    lists = (primer.list, primer.look_up, primer.read_link)
    content = b"".join(b"".join(path + b"\0" for path in paths) + b"\0" for paths in lists)
    reading, writing = os.pipe()
    quiet = os.open(os.devnull, os.O_WRONLY)
    # -I -S: nothing but the script, which lies outside of every mount of ours
    command = [sys.executable, "-I", "-S", primer_script.__file__, str(mountpoint), str(reading)]
    try:
        process = start(command, log=quiet, pass_descriptors=[reading])
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(quiet)
        os.close(reading)
    deadline = time.monotonic() + deadline_seconds
    try:
        on_start(process.pid)  # it asks nothing before it has read all
        if not _write(writing, content, deadline):
            return False
        return _ended(process.pid, deadline, stop) and process.wait() == 0
    finally:
        kill_group(process, grace_seconds=0.0)


def _write(descriptor: int, content: bytes, deadline: float) -> bool:
    os.set_blocking(descriptor, False)
    view = memoryview(content)
    try:
        while view:
            if not _ready(descriptor, select.POLLOUT, deadline):
                return False
            view = view[os.write(descriptor, view) :]
    except BrokenPipeError:
        return False
    finally:
        os.close(descriptor)
    return True


def _ended(pid: int, deadline: float, stop: Callable[[], bool]) -> bool:
    process = os.pidfd_open(pid)
    try:
        while not stop() and (now := time.monotonic()) < deadline:
            if _ready(process, select.POLLIN, min(deadline, now + _STOP_SECONDS)):
                return True
        return False
    finally:
        os.close(process)


def _ready(descriptor: int, event: int, deadline: float) -> bool:
    """By poll: a server may have more descriptors than select can tell apart."""
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(max(0.0, deadline - time.monotonic()) * 1000))
