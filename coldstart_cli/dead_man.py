"""What a command has begun is undone when it is killed before it has seen that all is well.

A child waits at a pipe, which the kernel closes with the command, however that ends. It holds nothing else of
ours, locks least of all, and becomes the command that undoes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTOU, signal.SIGTTIN)


@contextmanager
def undone_when_killed(module: str, *arguments: str) -> Iterator[None]:
    """Run `python -m MODULE ARGUMENTS` if this process dies in the block, which handles errors itself."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _wait(reading, [sys.executable, "-P", "-m", module, *arguments])
    os.close(reading)
    try:
        yield
    finally:
        with suppress(OSError):
            os.write(writing, b".")
        os.close(writing)
        with suppress(OSError):
            os.waitpid(child, 0)


def _wait(reading: int, command: list[str]) -> None:
    """In the child: until a byte, which says that all is well, or the end of the pipe."""
    try:
        os.setsid()
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        # our copy of the pipe's other end, too, and of every lock
        os.dup2(reading, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        if not os.read(3, 1):
            for number in _IGNORED:
                signal.signal(number, signal.SIG_DFL)
            os.execv(command[0], command)  # noqa: S606 - our own interpreter
    finally:
        os._exit(0)
