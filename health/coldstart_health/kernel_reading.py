"""Records of the kernel log as its readers hand them on, whatever they were read from."""

from __future__ import annotations

import re
from dataclasses import dataclass

# what the decoder may want; everything else of a flood is dropped unread
WORTH = re.compile(
    rb"NVRM|nvswitch|nvidia|ut of memory|blocked for more than|I/O |[Ee]rror|nvme|emount"
    rb"|readonly|read-only|[Ss]hut(?:ting)? ?[Dd]own|EDAC|Memory failure"
)


@dataclass(frozen=True)
class KernelRecord:
    """One message of the kernel itself. `usec`: since boot, by a clock that never jumps."""

    sequence: int
    usec: int
    text: str


@dataclass(frozen=True)
class Cursor:
    """The last record that was read; `journal` is journald's name for it."""

    sequence: int
    usec: int
    journal: str | None = None


@dataclass(frozen=True)
class LogReading:
    """What came after a cursor, and is worth decoding.

    `gap` says which records were gone before they were read; `cut`: the deadline came before the end.
    """

    source: str
    records: tuple[KernelRecord, ...]
    first: Cursor
    cursor: Cursor
    gap: str | None = None
    cut: bool = False
