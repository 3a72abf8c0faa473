"""How a replica is launched, and where the chain says what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchOptions:
    """How to launch: `cold` never restores; without `fallback` a failed restore is the end.

    With `trust` a snapshot from the configured store needs neither a pinned digest nor a signature.
    A `cpu_level` other than `native` holds a cold start to that level, for its snapshot.
    """

    cold: bool = False
    fallback: bool = True
    snapshot_when_ready: bool = False
    only_to_capture: bool = False
    """A replica that cannot be captured is then taken down."""
    trust: bool = False
    cpu_level: str = "native"


@dataclass(frozen=True)
class Conversation:
    """Where the chain says what it does; commands hand it in."""

    note: Callable[[str], None]
    warning: Callable[[str], None]
