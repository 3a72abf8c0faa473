"""Whom the kernel kills when memory runs out: a keeper is small, and its death cannot be survived twice."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_SCORE = Path("/proc/self/oom_score_adj")
_KEEPER_SCORE = -900


def spare_this_process() -> int | None:
    """Ask to be killed last, where that is allowed; what held before."""
    with suppress(OSError, ValueError):
        before = int(_SCORE.read_text())
        if before > _KEEPER_SCORE:
            _SCORE.write_text(str(_KEEPER_SCORE))
            return before
    return None


def undo(before: int | None) -> None:
    """In a child: be as likely to be killed as its parent was."""
    if before is not None:
        with suppress(OSError):
            _SCORE.write_text(str(before))
