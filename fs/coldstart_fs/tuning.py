"""Kernel settings of a FUSE mount that pyfuse3 leaves at defaults: read-ahead and background requests."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_fs.kernel_mounts import mount_fusectl

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
    """Set what the kernel lets us set for the mount with this `st_dev`; what it kept, None: not readable."""
    major, minor = os.major(device), os.minor(device)
    read_ahead = Path(f"/sys/class/bdi/{major}:{minor}/read_ahead_kb")
    connection = _FUSECTL / str(minor)
    if not connection.is_dir() and _FUSECTL.is_dir():
        with suppress(ColdstartError):
            mount_fusectl(_FUSECTL)
    wanted = {
        "read_ahead_kib": (read_ahead, READ_AHEAD_KIB),
        "max_background": (connection / "max_background", MAX_BACKGROUND),
        "congestion_threshold": (connection / "congestion_threshold", CONGESTION_THRESHOLD),
    }
    kept: dict[str, int | None] = {}
    for name, (path, value) in wanted.items():
        with suppress(OSError):
            path.write_text(str(value))
        try:
            kept[name] = int(path.read_text())
        except (OSError, ValueError):
            kept[name] = None
    return kept
