"""The quarantine's state file: read without a lock, changed under one, never trusted when it is damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

from coldstart_cli.errors import ColdstartError, NegativeAnswer
from coldstart_cli.files import atomic_write, exclusive_lock
from coldstart_cli.regular import read_regular
from coldstart_health.quarantine_record import (
    SCHEMA,
    VERSION,
    GpuRecord,
    MalformedError,
    Quarantine,
    from_json,
    to_json,
)

# `health quick` has five seconds in all; a change takes milliseconds
LOCK_WAIT_SECONDS = 1.0
_REMEMBERED_RECORDS = 256
_START_ANEW = "look at it, then start anew: `coldstart health clear --all --reason TEXT`"


class QuarantineUnreadableError(NegativeAnswer):
    """Nobody knows what is in quarantine, so nothing may be placed."""


class _DamagedError(QuarantineUnreadableError):
    """The content is at fault: worth a copy for whoever looks into it."""


def quarantine_path(state_folder: Path) -> Path:
    return state_folder / "health" / "quarantine.json"


def load_quarantine(state_folder: Path) -> Quarantine:
    """The state, empty where nothing was ever recorded. A damaged file is copied aside, and stays."""
    return read_quarantine(quarantine_path(state_folder))


def read_quarantine(path: Path) -> Quarantine:
    """`load_quarantine` of any file."""
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return Quarantine()
    except OSError as error:
        raise QuarantineUnreadableError(
            f"cannot read the quarantine: {path}: {error.strerror}", hint=f"ls -l {path}"
        ) from error
    try:
        return _parse(path, content)
    except _DamagedError as error:
        with suppress(ColdstartError):  # a full disk must not hide the damage
            error.add(f"a copy is kept as {keep_aside(path, content)}")
        raise


def update_quarantine(
    state_folder: Path,
    change: Callable[[Quarantine], Quarantine],
    *,
    wait_seconds: float | None = None,
) -> Quarantine:
    """Read, change and write as one step among all processes; nothing is written where nothing changed."""
    path = quarantine_path(state_folder)
    with quarantine_lock(state_folder, wait_seconds=wait_seconds):
        before = load_quarantine(state_folder)
        after = change(before)
        if after != before:
            after = replace(after, records=_worth_keeping(after.records), sequence=before.sequence + 1)
            save_quarantine(path, after)
        return after


def quarantine_lock(state_folder: Path, *, wait_seconds: float | None = None) -> AbstractContextManager[None]:
    """The lock lies beside the file: whatever run folder its users have, they share it."""
    wait = LOCK_WAIT_SECONDS if wait_seconds is None else wait_seconds
    return exclusive_lock(state_folder / "health" / "quarantine.lock", wait_seconds=wait)


def save_quarantine(path: Path, state: Quarantine) -> None:
    """Replace the file whole; the caller holds the lock."""
    for left in path.parent.glob(
        f".{path.name}.*.tmp"
    ):  # a writer was killed; under the lock there is no other
        left.unlink(missing_ok=True)
    atomic_write(path, json.dumps(to_json(state), indent=1).encode() + b"\n")


def keep_aside(path: Path, content: bytes) -> Path:
    """A copy named after its content: one however often it is found, never overwritten by another."""
    copy = path.with_name(f"{path.name}.damaged-{hashlib.sha256(content).hexdigest()[:12]}")
    if not copy.exists():
        atomic_write(copy, content)
    return copy


def keep_whatever_is_there(path: Path) -> Path | None:
    """Put the file aside before it is replaced on purpose; None where there is none."""
    try:
        return keep_aside(path, read_regular(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise QuarantineUnreadableError(
            f"cannot put the quarantine aside: {path}: {error.strerror}", hint=f"ls -l {path}"
        ) from error


def _parse(path: Path, content: bytes) -> Quarantine:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _DamagedError(f"quarantine is damaged: {path}: {error}", hint=_START_ANEW) from error
    schema, version = (
        (document.get("schema"), document.get("version")) if isinstance(document, dict) else (None, None)
    )
    if schema == SCHEMA and isinstance(version, int) and version > VERSION:
        raise QuarantineUnreadableError(
            f"quarantine is of version {version}, newer than this coldstart: {path}",
            hint="install the coldstart that wrote it",
        )
    if schema != SCHEMA or version != VERSION:
        raise _DamagedError(f"not a quarantine: {path}", hint=_START_ANEW)
    try:
        return from_json(document)
    except MalformedError as error:
        raise _DamagedError(f"quarantine is damaged: {path}: {error.message}", hint=_START_ANEW) from error


def _worth_keeping(records: tuple[GpuRecord, ...]) -> tuple[GpuRecord, ...]:
    """All that are in quarantine, and the newest of those that were."""
    idle = [record for record in records if not record.causes]
    forgotten = set(map(id, idle[: max(0, len(idle) - _REMEMBERED_RECORDS)]))
    return tuple(record for record in records if id(record) not in forgotten)
