"""Kernel settings of a mount: read-ahead, which INIT cannot say, and what came of the requests in INIT."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from coldstart_fs.fuse.negotiation import CONGESTION_THRESHOLD, MAX_BACKGROUND
from coldstart_fs.mounts.connections import control

# small, since a random fault reads as much around its page: with 128, 256, 512, 1024 KiB a warm
# `import numpy, cv2` reads 44, 55, 69, 92 MB. A stream is noticed by the server, which brings its data itself
READ_AHEAD_KIB = 128
_USER_LIMITS = Path("/sys/module/fuse/parameters")


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
    kept = {"read_ahead_kib": _set(Path(f"/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB)}
    with control(device) as connection:
        kept["max_background"] = _kept(connection / "max_background", "max_user_bgreq", MAX_BACKGROUND)
        kept["congestion_threshold"] = _kept(
            connection / "congestion_threshold", "max_user_congthresh", CONGESTION_THRESHOLD
        )
    return kept


def losses(settings: Mapping[str, int | None]) -> list[str]:
    """What the kernel did not keep, each with its cost; nothing for settings that nobody has read yet."""
    found = []
    for name, wanted in wanted_settings().items():
        kept = settings.get(name, wanted)
        if kept is None:
            found.append(f"{name} cannot be read, it should be {wanted}")
        elif kept != wanted:
            found.append(f"{name} is {kept} instead of {wanted}: {_cost(name, more=kept > wanted)}")
    return found


def _cost(name: str, *, more: bool) -> str:
    if name == "read_ahead_kib":
        return "random reads fetch more than they need" if more else "reads take more requests"
    return "more reads wait in the server" if more else "fewer reads are on their way at once"


def _kept(path: Path, user_limit: str, asked: int) -> int | None:
    """What became of a limit in INIT: users cannot read it, but what the kernel bounds it by for them."""
    kept = _number(path)
    if kept is None and os.geteuid() != 0 and (limit := _number(_USER_LIMITS / user_limit)) is not None:
        return min(asked, limit)
    return kept


def _set(path: Path, value: int) -> int | None:
    if _number(path) != value:
        with suppress(OSError):
            path.write_text(str(value))
    return _number(path)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
