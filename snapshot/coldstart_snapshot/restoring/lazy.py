"""Memory on demand: a criu daemon brings pages through userfaultfd while the restored server runs already.

The server answers sooner and is slower until everything is there: the first pass over its memory takes
two to three times as long as a whole restore. Only private anonymous memory can wait, and the daemon must
live until it has brought all of it; it ends then, or with the server.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coldstart_cli import process
from coldstart_cli.errors import UnavailableError, UsageError
from coldstart_snapshot.criu.calls import failure
from coldstart_snapshot.criu.program import Criu, has_feature
from coldstart_snapshot.kept.manifest import Manifest

_LOG = "lazy-pages.log"
_SOCKET = "lazy-pages.socket"
_START_SECONDS = 20.0


def require_lazy(criu: Criu, manifest: Manifest) -> None:
    """Refuse, before anything starts, where memory cannot come on demand: nothing else is done instead."""
    if manifest.gpu is not None:
        raise UsageError(
            "memory of a process with GPU state cannot come on demand: --lazy: the driver reads it at once",
            hint="restore without --lazy",
        )
    # the events of fork, mremap and munmap, without which the daemon would lose track of the server
    if not has_feature(criu, "uffd-noncoop"):
        raise UnavailableError(
            "memory cannot come on demand on this host: --lazy: its kernel has no userfaultfd for criu",
            hint="restore without --lazy; a kernel with CONFIG_USERFAULTFD has it",
        )


@contextmanager
def lazy_daemon(criu: Criu, images: Path, work: Path) -> Iterator[None]:
    """Start the daemon that a restore inside the block connects to; it is ended when the block fails."""
    # a folder of its own: who stands in the work folder of a container is taken to be at work on it
    own = work / "lazy"
    own.mkdir(mode=0o700, exist_ok=True)
    (own / _SOCKET).unlink(missing_ok=True)
    link = work / _SOCKET
    link.unlink(missing_ok=True)
    link.symlink_to(own / _SOCKET)
    ready, status = os.pipe()
    try:
        with (own / "output").open("wb") as output:
            daemon = process.start(
                [
                    criu.program,
                    "lazy-pages",
                    "--images-dir",
                    str(images),
                    "--work-dir",
                    str(own),
                    "--log-file",
                    _LOG,
                    # errors alone: it may live for minutes, and nobody watches its log
                    "-v1",
                    "--no-default-config",
                    "--status-fd",
                    str(status),
                ],
                log=output,
                pass_descriptors=(status,),
            )
    finally:
        os.close(status)
    try:
        _wait_until_it_listens(ready, own / _LOG)
        yield
        _require_alive(daemon, own / _LOG)
    except BaseException:
        process.kill_group(daemon)
        raise
    finally:
        os.close(ready)
    # it goes on without us: Popen shall not complain about that
    daemon.returncode = daemon.returncode or 0


def _wait_until_it_listens(ready: int, log: Path) -> None:
    """Criu says so by a zero; an end of file says that it is gone."""
    readable, _, _ = select.select([ready], [], [], _START_SECONDS)
    if not readable or os.read(ready, 1) != b"\0":
        raise failure("criu lazy-pages", log, "it did not begin to listen")


def _require_alive(daemon: process.Program, log: Path) -> None:
    """It may have brought everything and ended well; else the server waits for ever for its memory."""
    if daemon.poll() not in {None, 0}:
        raise failure("criu lazy-pages", log, f"it ended with status {daemon.returncode}")
