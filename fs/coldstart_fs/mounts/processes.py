"""Processes that live longer than commands: named in spite of reused pids, waited for, ended in bounds."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from coldstart_cli.process import is_stopped, start_ticks

_REAP_SECONDS = 0.5


@dataclass(frozen=True)
class ProcessIdentity:
    """One process: a pid that is used again has other start ticks. Pid 0 is nobody."""

    pid: int = 0
    start_ticks: int = 0

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        return cls(pid, start_ticks(pid))

    def lives(self) -> bool:
        """Whether it is still that very process, and no zombie."""
        return self.pid > 0 and self.start_ticks > 0 and start_ticks(self.pid) == self.start_ticks

    def is_stopped(self) -> bool:
        """Whether it lives and does nothing, as after SIGSTOP."""
        return self.lives() and is_stopped(self.pid)

    def open(self) -> int | None:
        """A pidfd; None when the process has gone."""
        if not self.lives():
            return None
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return None
        if self.lives():  # and not another one that took its pid in between
            return descriptor
        os.close(descriptor)
        return None


NOBODY = ProcessIdentity()


def end_process(process: ProcessIdentity, *steps: tuple[signal.Signals, float]) -> bool:
    """Send signals in turn, giving each its seconds to act; whether the process has ended."""
    descriptor = process.open()
    if descriptor is None:
        return True
    try:
        for number, wait_seconds in steps:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)  # one that is stopped would not hear it
            if select.select([descriptor], [], [], wait_seconds)[0]:
                return True
        return not process.lives()
    finally:
        os.close(descriptor)
        reap(process.pid)


def reap(pid: int, timeout_seconds: float = _REAP_SECONDS) -> None:
    """Collect a child of ours that has ended, or is just ending; for others it does nothing."""
    deadline = time.monotonic() + timeout_seconds
    while pid > 0:
        try:
            collected, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return
        if collected or time.monotonic() >= deadline or start_ticks(pid):
            return
        time.sleep(0.005)
