"""The kernel's side of FUSE connections: their control files, how many requests wait, and how to end one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_fs.mounts.kernel_mounts import mount_fusectl, unmount_now

_FUSECTL = Path("/sys/fs/fuse/connections")


@contextmanager
def control(device: int) -> Iterator[Path]:
    """The control folder of the connection behind an `st_dev`; with fusectl unmounted, from our own mount."""
    name = str(os.minor(device))
    if (_FUSECTL / name).is_dir():
        yield _FUSECTL / name
        return
    with tempfile.TemporaryDirectory(prefix="coldstart-fusectl-") as folder:
        with suppress(ColdstartError):
            mount_fusectl(Path(folder))
        try:
            yield Path(folder) / name
        finally:
            with suppress(ColdstartError):
                unmount_now(Path(folder), detach=True)


def waiting(device: int) -> int | None:
    """Requests of a connection that are queued or unanswered; None where that cannot be known."""
    with control(device) as folder:
        return _number(folder / "waiting")


def abort(device: int) -> bool:
    """Fail every request of a connection, those that wait and those to come; false when it is not ours to do.

    Never for a device that may be another mount's by now: the caller has seen it in the mount table.
    """
    with control(device) as folder:
        try:
            (folder / "abort").write_text("1")
        except OSError:
            return False
    return True


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
