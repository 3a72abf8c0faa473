"""A keeper's process before it has an order: it imports all it needs while its starter finds out what to ask.

Only what starting it needs is imported here: the earlier it starts, the more of its time is nobody's.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coldstart_cli.errors import ColdstartError
from coldstart_cli.process import start
from coldstart_fs.mounts.channel import Channel

_LAUNCH_SECONDS = 20.0
_SAID_BYTES = 16384
# -P: a module in the caller's folder must not take the place of ours
_PROGRAM = ("-P", "-m", "coldstart_fs.mounts.keeping")
_HOST_SOCKET = "image-server.socket"
_prepared: list[PreparedKeeper] = []


class PreparedKeeper:
    """A process that waits for an order; it ends when its channel does."""

    def __init__(self, run_folder: Path, lock: int = -1) -> None:
        """Start it; it outlives us. What it says before its order is for `said`."""
        self._lock = lock
        self.channel, theirs = Channel.pair()
        self._early = os.memfd_create("coldstart", os.MFD_CLOEXEC)
        try:
            with theirs:
                command = [sys.executable, *_PROGRAM, str(theirs.fileno()), os.path.realpath(run_folder)]
                self._launcher = start(command, log=self._early, pass_descriptors=[theirs.fileno()])
        except BaseException:
            self._close()
            raise

    def order(self, content: dict[str, Any], log: int) -> bool:
        """Say what to keep, and where to say more; false when it is not there any more."""
        return self.channel.send({"order": content}, [log])

    def settle(self) -> None:
        """Collect the launcher, which forks at once and leaves; others may prepare again."""
        self._launcher.wait(_LAUNCH_SECONDS)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def said(self) -> bytes:
        return os.pread(self._early, _SAID_BYTES, 0)

    def close(self) -> None:
        """Let go of it: without an order it ends."""
        self.channel.close()
        self._launcher.wait(_LAUNCH_SECONDS)
        self._close()

    def _close(self) -> None:
        self.channel.close()
        for descriptor in (self._early, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._early = self._lock = -1


def prepare_keeper(run_folder: Path) -> None:
    """Start a keeper's process now, if this mount will probably need one of its own; `take_prepared` has it.

    Where servers run already they are probably shared, and where the image host runs it forks keepers. Of
    several mounts at once one prepares: the others will share its server, or start one themselves.
    """
    if _prepared or (run_folder / _HOST_SOCKET).exists():
        return
    lock = -1
    with suppress(OSError):
        if os.listdir(run_folder / "servers"):
            return
    with suppress(OSError):
        lock = os.open(run_folder / "preparing.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return
    with suppress(ColdstartError, OSError):  # who needs it then starts one, and hears why that fails
        _prepared.append(PreparedKeeper(run_folder, lock))


@contextmanager
def keeper_at_hand(run_folder: Path) -> Iterator[None]:
    """`prepare_keeper`; one that nobody took is let go of: who was refused lives on, and it would too."""
    prepare_keeper(run_folder)
    try:
        yield
    finally:
        drop_prepared()


def take_prepared() -> PreparedKeeper | None:
    """The prepared process, once."""
    try:
        return _prepared.pop()
    except IndexError:  # or another thread has it
        return None


def drop_prepared() -> None:
    """The prepared process is not needed after all."""
    if (keeper := take_prepared()) is not None:
        keeper.close()
