"""How somebody's program had been started: what starts it again takes that over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """What somebody's program is started with besides just the given environment; None: as we are."""

    executable: str | None = None
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None
    umask: int = -1
