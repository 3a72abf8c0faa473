"""The command of a snapshot that runs inside each restored container before it counts as ready."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class RestoreCommand:
    """What tells a copy that it is one: `arguments` begin with a program, as the container sees it."""

    arguments: tuple[str, ...]
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


def to_table(command: RestoreCommand) -> dict[str, Any]:
    """The table `[restore]` of a manifest."""
    return {"exec": list(command.arguments), "timeout_seconds": command.timeout_seconds}


def from_table(table: Mapping[str, Any] | None) -> RestoreCommand | None:
    """The command of that table, None where a manifest has none; anything else is a ValueError."""
    if table is None:
        return None
    arguments = tuple(table["exec"])
    seconds = float(table["timeout_seconds"])
    if not arguments or not all(isinstance(part, str) and "\0" not in part for part in arguments):
        raise ValueError(f"restore command is {table['exec']!r}")
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(f"restore timeout is {seconds}")
    return RestoreCommand(arguments, seconds)
