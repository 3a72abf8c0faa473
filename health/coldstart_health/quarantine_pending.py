"""What the state folder could not take: kept in the run folder, and honoured until it is recorded."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.files import atomic_write, exclusive_lock
from coldstart_health.quarantine import (
    LOCK_WAIT_SECONDS,
    load_quarantine,
    read_quarantine,
    update_quarantine,
)
from coldstart_health.quarantine_record import GpuRecord, Quarantine, to_json


def pending_path(config: Config) -> Path:
    """One for each state folder that shares the run folder."""
    state = os.fsencode(config.state_folder.absolute())
    digest = hashlib.sha256(state).hexdigest()[:12]
    return config.run_folder / "health" / f"quarantine-pending-{digest}.json"


def load_known(config: Config) -> Quarantine:
    """All that is known: the state file, and what waits to be recorded in it."""
    return _with(load_quarantine(config.state_folder), _load(config))


def update_known(
    config: Config, change: Callable[[Quarantine], Quarantine], *, wait_seconds: float | None = None
) -> Quarantine:
    """`update_quarantine` on all that is known: after it nothing waits."""
    path = pending_path(config)
    waits = os.path.lexists(path)
    with _locked(path) if waits else nullcontext():
        pending = _load(config)
        after = update_quarantine(
            config.state_folder, lambda state: change(_with(state, pending)), wait_seconds=wait_seconds
        )
        if waits:
            forget_pending(config)
    return after


def keep_pending(config: Config, state: Quarantine) -> Path:
    """Note what could not be recorded; raises where that cannot be written either."""
    path = pending_path(config)
    with _locked(path):
        content = to_json(_with(_load(config), state))
        atomic_write(path, json.dumps(content, indent=1).encode() + b"\n", mode=0o600)
    return path


def forget_pending(config: Config) -> None:
    with suppress(OSError):  # what is left blocks once more, and can be cleared once more
        pending_path(config).unlink()


def worsened(before: Quarantine, after: Quarantine) -> Quarantine:
    """The records that a run made, or made worse: a release that is not recorded has not happened."""
    known = {id(record) for record in before.records}
    new = tuple(record for record in after.records if id(record) not in known and record.causes)
    return Quarantine(tuple(record for record in new if _weight(record) > _weight(_twin(record, before))))


def _load(config: Config) -> Quarantine:
    return read_quarantine(pending_path(config))


def _with(state: Quarantine, pending: Quarantine) -> Quarantine:
    records = list(state.records)
    for record in pending.records:
        twin = _twin(record, state)
        if twin is None:
            records.append(record)
        elif _weight(record) > _weight(twin):
            records[records.index(twin)] = record
    return Quarantine(tuple(records), state.sequence)


def _twin(record: GpuRecord, state: Quarantine) -> GpuRecord | None:
    name = record.name
    for other in state.records:
        if name.subject == other.name.subject or (name.uuid is not None and name.uuid == other.name.uuid):
            return other
    return None


def _weight(record: GpuRecord | None) -> tuple[int, int]:
    return (int(record.verdict), len(record.causes)) if record else (-1, 0)


def _locked(path: Path) -> AbstractContextManager[None]:
    return exclusive_lock(path.with_suffix(".lock"), wait_seconds=LOCK_WAIT_SECONDS)
