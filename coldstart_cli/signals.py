"""Signals of a command: TERM and HUP unwind like INT, USR1 prints the stacks."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from coldstart_cli.errors import ExitCode, Terminated

_RETRY_SECONDS = 0.005
_WRITE_RETRIES = 40
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_STOPPING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_STREAMS = os.path.join(os.path.dirname(__file__), "streams.py")


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


def leave_at_once_when_interrupted() -> None:
    """The command is over: a signal while the interpreter ends has nothing left to unwind."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(ExitCode.INTERRUPTED))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ExitCode.TERMINATED))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back what ends or stops us: a server must not stay frozen because somebody is impatient."""
    with _held_back({*_ENDING, *_STOPPING}):
        yield


@contextmanager
def unstopped() -> Iterator[None]:
    """Hold back what would stop us, as Ctrl-Z: a server would stand still for as long as we do."""
    with _held_back(_STOPPING):
        yield


@contextmanager
def _held_back(signals: Iterable[signal.Signals]) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _terminate(signum: int, frame: FrameType | None) -> None:
    del signum
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(ExitCode.TERMINATED))
    _raise_when_safe(Terminated, frame)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    del signum
    signal.signal(signal.SIGINT, lambda *_: os._exit(ExitCode.INTERRUPTED))
    _raise_when_safe(KeyboardInterrupt, frame)


def _raise_when_safe(
    kind: type[BaseException], frame: FrameType | None, patience: int = _WRITE_RETRIES
) -> None:
    """Raise now, or, while the main thread imports or writes its answer, a little later.

    An answer whose write is left between the system call and its return would be written twice. A write
    that blocks, on a pipe that nobody reads, is waited for only so long.

    CPython 3.11 loses an exception that a handler raises in an import's weakref callbacks, and
    leaves the lock of the module held: every other thread that imports it then waits for ever.
    """
    if not _importing(frame) and not (patience > 0 and _writing(frame)):
        raise kind

    def retry(signum: int, frame: FrameType | None) -> None:
        del signum
        _raise_when_safe(kind, frame, patience - 1)

    signal.signal(signal.SIGALRM, retry)
    signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)


def _importing(frame: FrameType | None) -> bool:
    return any(name.startswith("<frozen importlib") for name in _files(frame))


def _writing(frame: FrameType | None) -> bool:
    return _STREAMS in _files(frame)


def _files(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
