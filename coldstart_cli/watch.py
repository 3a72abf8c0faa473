"""Telling how far slow work is, from a thread, while the main thread does it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from coldstart_cli.notify import notify

TERMINAL_SECONDS = 0.2
# a log is read later: a line now and then shows life, more hide the rest
LOG_SECONDS = 30.0
_STATUS_SECONDS = 2.0


@contextmanager
def repeating(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` every so often until the block ends."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            act()

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def status_kept(describe: Callable[[], str]) -> Iterator[None]:
    """STATUS= for a service manager, kept up to date; nothing where there is none."""

    def tell() -> None:
        notify(f"STATUS={describe()}")

    if not notify(f"STATUS={describe()}"):
        yield
        return
    with repeating(_STATUS_SECONDS, tell):
        yield


@contextmanager
def line_kept(stream: TextIO, describe: Callable[[], str]) -> Iterator[None]:
    """One line of a terminal, kept up to date and taken away at the end."""

    def show() -> None:
        # the last column stays free: some terminals wrap when it is filled
        text = describe()[: _columns(stream) - 1]
        stream.write(f"\r{text}\x1b[K")
        stream.flush()

    try:
        with repeating(TERMINAL_SECONDS, show):
            yield
    finally:
        stream.write("\r\x1b[K")
        stream.flush()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
