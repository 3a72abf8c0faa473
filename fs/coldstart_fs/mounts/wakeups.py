"""Signals as something to poll for, for a process of one thread that waits for many things."""

from __future__ import annotations

import os
import signal
from types import FrameType


class Wakeups:
    """Readable when a child has ended or when SIGTERM has come. Other signals of a terminal are ignored."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._told = False
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT):
            # a terminal's Ctrl-C is for the command that waits for us, which ends us in order
            signal.signal(number, signal.SIG_IGN)

    def fileno(self) -> int:
        return self._reading

    def told_to_end(self) -> bool:
        """Whether SIGTERM has come; makes the descriptor unreadable until the next signal."""
        try:
            while os.read(self._reading, 4096):
                pass
        except BlockingIOError:
            pass
        return self._told

    def close(self) -> None:
        """In a child: signals are its own again."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.close(self._reading)
        os.close(self._writing)

    def _end(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self._told = True
