"""`snap explain`: which log is meant, and what it says."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from coldstart_cli.errors import (
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    near_matches_hint,
)
from coldstart_snapshot.criu.calls import DUMP_LOG, RESTORE_LOG, kept_log
from coldstart_snapshot.criu.log import READ_LIMIT_BYTES, Explanation, explain_text, mentioned_log, read_end

_STDIN = "-"
_LOGS = (DUMP_LOG, RESTORE_LOG)


@dataclass(frozen=True)
class Explained:
    """`log` is where the text is from, None for standard input; `mentioned` a log that it names instead."""

    log: Path | None
    written: datetime | None
    explanation: Explanation | None
    mentioned: str | None = None


def explain(wanted: str, run_folder: Path, stdin: IO[bytes]) -> Explained:
    """What a log means: `-`, a file, a working folder of criu, or the last failed run of a snapshot."""
    if wanted == _STDIN:
        return _follow(None, None, read_end(stdin))
    log = _find(wanted, run_folder)
    try:
        with log.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if stat.S_ISREG(status.st_mode):
                stream.seek(max(0, status.st_size - READ_LIMIT_BYTES))
            text = read_end(stream)
    except PermissionError as error:
        raise PermissionNeededError(f"cannot read log: {log}", hint="run as root") from error
    except OSError as error:
        raise IoFailure(f"cannot read log: {log}: {error.strerror}") from error
    return _follow(log, datetime.fromtimestamp(status.st_mtime, UTC), text)


def _follow(log: Path | None, written: datetime | None, text: str) -> Explained:
    """Container engines say where criu's log is, and not what is in it."""
    explanation = explain_text(text)
    mentioned = mentioned_log(text) if explanation is None else None
    if mentioned is not None and (path := Path(mentioned)).is_file() and path != log:
        try:
            with path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                stream.seek(max(0, status.st_size - READ_LIMIT_BYTES))
                found = explain_text(read_end(stream))
        except OSError:
            return Explained(log, written, None, mentioned)
        return Explained(path, datetime.fromtimestamp(status.st_mtime, UTC), found)
    return Explained(log, written, explanation, mentioned)


def _find(wanted: str, run_folder: Path) -> Path:
    path = Path(wanted)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        mode = 0
    if stat.S_ISDIR(mode) and (newest := _newest(path / name for name in _LOGS)):
        return newest
    if stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
        return path
    if os.sep not in wanted and (newest := _newest(kept_log(run_folder, wanted, name) for name in _LOGS)):
        return newest
    if stat.S_ISDIR(mode):
        raise NotFoundError(f"no log of criu in folder: {wanted}", hint=f"it is called {' or '.join(_LOGS)}")
    if mode:
        raise DataError(f"not a log: {wanted}", hint="name a file, or a snapshot that failed")
    names = _kept_names(run_folder)
    otherwise = f"logs are kept of {', '.join(names)}" if names else "no run has failed since the last boot"
    raise NotFoundError(
        f"no such log, and no failed run of such a snapshot: {wanted}",
        hint=near_matches_hint(wanted, names, otherwise=otherwise),
    )


def _newest(logs: Iterable[Path]) -> Path | None:
    found = [(log.stat().st_mtime, log) for log in logs if log.is_file()]
    return max(found)[1] if found else None


def _kept_names(run_folder: Path) -> list[str]:
    folder = kept_log(run_folder, "x", DUMP_LOG).parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(
        {name.removesuffix(f"-{log}") for name in names for log in _LOGS if name.endswith(f"-{log}")}
    )
