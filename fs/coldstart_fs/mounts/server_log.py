"""The log of an image server: one line a message on stderr, bounded, repetitions counted."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress

from coldstart_cli.plain import plain
from coldstart_cli.regular import open_own

_LIMIT_BYTES = 1 << 20
_SAME_TEXT_SECONDS = 10.0


class ServerLog:
    """Writes to stderr: the mount's log file, begun anew at its limit, or a service's journal."""

    def __init__(self, descriptor: int = 2, *, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._descriptor = descriptor
        self._limit_bytes = limit_bytes
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._last = ""
        self._last_seconds = 0.0
        self._repeated = 0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if text == self._last and now - self._last_seconds < _SAME_TEXT_SECONDS:
            self._repeated += 1
            return
        if self._repeated:
            self._write(f"(last message repeated {self._repeated} times)")
        self._last, self._last_seconds, self._repeated = text, now, 0
        self._write(text)

    def _write(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = f"{stamp} {plain(text)}\n".encode()
        with suppress(OSError):  # a full disk must not end the mount
            if self._is_file and os.fstat(self._descriptor).st_size + len(line) > self._limit_bytes:
                os.ftruncate(self._descriptor, 0)
                os.write(self._descriptor, f"{stamp} (the log was full and begins anew)\n".encode())
            os.write(self._descriptor, line)


def log_file(path: str, *, fresh: bool = True) -> int:
    """A descriptor that appends to a log: where the log is cut, writing goes on at its beginning."""
    return open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0))
