"""Signals of a command: TERM and HUP unwind like INT, USR1 prints the stacks."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from types import FrameType

from coldstart_cli.errors import ExitCode, Terminated

_RETRY_SECONDS = 0.005


def install_signal_handlers() -> None:
    """First INT, TERM or HUP raises in the main thread and unwinds; the second leaves at once."""
    signal.signal(signal.SIGTERM, _terminate)
    # a lost terminal must not leave a replica or a mount behind; `nohup` has it ignored already
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)
    signal.signal(signal.SIGINT, _interrupt)
    # `coldstart ... | head` ends silently, in main(); a server must not die of a peer that hung up
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if sys.stderr is not None and hasattr(faulthandler, "register"):
        try:
            faulthandler.register(signal.SIGUSR1, all_threads=True)
        except (OSError, ValueError):  # stderr without a descriptor, under some test runners
            return


def _terminate(signum: int, frame: FrameType | None) -> None:
    del signum
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(ExitCode.TERMINATED))
    _raise_outside_imports(Terminated, frame)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    del signum
    signal.signal(signal.SIGINT, lambda *_: os._exit(ExitCode.INTERRUPTED))
    _raise_outside_imports(KeyboardInterrupt, frame)


def _raise_outside_imports(kind: type[BaseException], frame: FrameType | None) -> None:
    """Raise now, or, while the main thread imports, a little later.

    CPython 3.11 loses an exception that a handler raises in an import's weakref callbacks, and
    leaves the lock of the module held: every other thread that imports it then waits for ever.
    """
    if not _importing(frame):
        raise kind

    def retry(signum: int, frame: FrameType | None) -> None:
        del signum
        _raise_outside_imports(kind, frame)

    signal.signal(signal.SIGALRM, retry)
    signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
