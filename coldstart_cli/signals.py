"""Signals of a command: TERM unwinds like INT, USR1 prints the stacks."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from types import FrameType

from coldstart_cli.errors import ExitCode, Terminated


def install_signal_handlers() -> None:
    """First INT or TERM raises in the main thread and unwinds; the second leaves at once."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _interrupt)
    # `coldstart ... | head` ends silently, in main(); a server must not die of a peer that hung up
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if sys.stderr is not None and hasattr(faulthandler, "register"):
        try:
            faulthandler.register(signal.SIGUSR1, all_threads=True)
        except (OSError, ValueError):  # stderr without a descriptor, under some test runners
            return


def _terminate(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ExitCode.TERMINATED))
    raise Terminated


def _interrupt(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    signal.signal(signal.SIGINT, lambda *_: os._exit(ExitCode.INTERRUPTED))
    raise KeyboardInterrupt
