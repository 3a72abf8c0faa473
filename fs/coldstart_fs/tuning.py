"""Kernel settings of a FUSE mount that pyfuse3 leaves at defaults: read-ahead and background requests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_fs.kernel_mounts import mount_fusectl, unmount_now

# for a store on this host. Measured with 128, 256, 512, 1024 KiB: a stream of cached chunks reads 400, 400,
# 650, 800 MB/s, a random fault in a large mapped file drags in 230, 350, 600, 1050 KiB (it reads around the
# page), and a cold `import numpy, cv2` fetches 53, 62, 73, 92 MB
READ_AHEAD_KIB = 512
MAX_BACKGROUND = 256
CONGESTION_THRESHOLD = 192
_FUSECTL = Path("/sys/fs/fuse/connections")


def wanted_settings() -> dict[str, int]:
    """What a mount of ours should have."""
    return {
        "read_ahead_kib": READ_AHEAD_KIB,
        "max_background": MAX_BACKGROUND,
        "congestion_threshold": CONGESTION_THRESHOLD,
    }


def tune(device: int) -> dict[str, int | None]:
    """Set what the kernel lets us set for the mount with this `st_dev`; what it kept, None: not readable.

    Only after the mount has answered: the answer to INIT sets read-ahead again.
    """
    major, minor = os.major(device), os.minor(device)
    read_ahead = Path(f"/sys/class/bdi/{major}:{minor}/read_ahead_kb")
    kept = {"read_ahead_kib": _set(read_ahead, READ_AHEAD_KIB)}
    with _control(minor) as connection:
        kept["max_background"] = _set(connection / "max_background", MAX_BACKGROUND)
        kept["congestion_threshold"] = _set(connection / "congestion_threshold", CONGESTION_THRESHOLD)
    return kept


@contextmanager
def _control(connection: int) -> Iterator[Path]:
    """The control folder of a connection; where fusectl is not mounted, from a mount of our own."""
    if (_FUSECTL / str(connection)).is_dir():
        yield _FUSECTL / str(connection)
        return
    with tempfile.TemporaryDirectory(prefix="coldstart-fusectl-") as folder:
        with suppress(ColdstartError):
            mount_fusectl(Path(folder))
        try:
            yield Path(folder) / str(connection)
        finally:
            with suppress(ColdstartError):
                unmount_now(Path(folder), detach=True)


def _set(path: Path, value: int) -> int | None:
    with suppress(OSError):
        path.write_text(str(value))
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
