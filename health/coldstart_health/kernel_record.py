"""What the kernel log said in this boot, kept beyond the ring buffer: events, and how far it was read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coldstart_cli.errors import ColdstartError, DataError
from coldstart_cli.files import atomic_write, exclusive_lock
from coldstart_cli.regular import read_regular
from coldstart_health.kernel_checks import KernelLog
from coldstart_health.kernel_events import KernelEvent, Kind, decode, device_address, fold
from coldstart_health.kernel_log import read_kernel_log
from coldstart_health.kernel_reading import Cursor
from coldstart_health.verdict import FABRIC, HOST, Finding, Verdict
from coldstart_host.kernel import boot_id

_SCHEMA = "coldstart.health.kernel-log"
_VERSION = 1
_EVENTS_KEPT = 512
_HOST_EVENTS_KEPT = 128
_LOCK_WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Record:
    """The state file of one boot. `cursor` is None before the first reading."""

    boot_id: str
    cursor: Cursor | None = None
    gap: str | None = None
    events: tuple[KernelEvent, ...] = ()


def record_path(state_folder: Path) -> Path:
    return state_folder / "health" / "kernel-log.json"


def take_kernel_log(
    state_folder: Path, configured: str, *, journalctl: str, deadline_seconds: float, write: bool = True
) -> tuple[KernelLog, tuple[Finding, ...]]:
    """Read what is new, add it to this boot's record, and return all of it.

    Raises where no kernel log can be read. A record that cannot be written is a finding that informs: the
    log itself is read from its start then.
    """
    path = record_path(state_folder)
    notes: list[Finding] = []
    with _locked(path, notes) if write else nullcontext(False) as may_write:
        record, damaged = _load(path, may_write=may_write)
        reading = read_kernel_log(
            configured, record.cursor, journalctl=journalctl, deadline_seconds=deadline_seconds
        )
        events = _bounded(fold(record.events, decode(reading.records)))
        after = replace(record, cursor=reading.cursor, gap=reading.gap or record.gap, events=events)
        if may_write and after != record:
            _save(path, after, notes)
    log = KernelLog(
        boot_id=record.boot_id,
        source=reading.source,
        events=events,
        gap=reading.gap,
        earlier_gap=record.gap,
        cut=reading.cut,
        now_usec=time.monotonic_ns() // 1000,
        record_damaged=damaged,
    )
    return log, tuple(notes)


def clear_kernel_events(state_folder: Path, *, subject: str, pci_bus_id: str | None) -> int:
    """Forget the events of a GPU (by its address), of `fabric` or of `host`; return how many.

    They stay forgotten: the cursor is past them.
    """
    path = record_path(state_folder)
    if not path.exists():
        return 0
    device = None if pci_bus_id is None else device_address(pci_bus_id)

    def meant(event: KernelEvent) -> bool:
        if subject == FABRIC:
            return event.kind is Kind.SXID
        if subject == HOST:
            return event.address is None
        return event.address == device and event.kind not in {Kind.SXID, Kind.GPU}

    with exclusive_lock(_lock_path(path), wait_seconds=_LOCK_WAIT_SECONDS):
        record, _ = _load(path, may_write=True)
        kept = tuple(event for event in record.events if not meant(event))
        if kept != record.events:
            atomic_write(path, _content(replace(record, events=kept)))
        return len(record.events) - len(kept)


@contextmanager
def _locked(path: Path, notes: list[Finding]) -> Iterator[bool]:
    """Whether the record may be written: not in a folder of somebody else's, nor while another run does."""
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(_lock_path(path), wait_seconds=_LOCK_WAIT_SECONDS))
        except ColdstartError as error:
            notes.append(_not_recorded(error))
        yield not notes


def _bounded(events: tuple[KernelEvent, ...]) -> tuple[KernelEvent, ...]:
    """A host has few GPUs, but may lose many disks: the oldest of those go first."""
    host = [event for event in events if event.address is None]
    dropped = {event.key for event in host[: max(0, len(host) - _HOST_EVENTS_KEPT)]}
    return tuple(event for event in events if event.key not in dropped)[-_EVENTS_KEPT:]


def _load(path: Path, *, may_write: bool) -> tuple[Record, str | None]:
    """This boot's record, empty where there is none; a damaged one is put aside, and named."""
    now = boot_id()
    try:
        record = _parse(read_regular(path))
    except FileNotFoundError:
        return Record(now), None
    except (OSError, DataError):
        aside = path.with_name("kernel-log.damaged.json")
        if may_write:
            with suppress(OSError):
                os.replace(path, aside)
                return Record(now), str(aside)
        return Record(now), str(path)
    return (record if record.boot_id == now else Record(now)), None


def _parse(content: bytes) -> Record:
    try:
        document = json.loads(content)
        if document["schema"] != _SCHEMA or document["version"] > _VERSION:
            raise DataError("not a record of the kernel log of this version")
        cursor = document["cursor"]
        return Record(
            boot_id=document["boot_id"],
            cursor=None if cursor is None else Cursor(**cursor),
            gap=document["gap"],
            events=tuple(event_from_json(event) for event in document["events"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError("damaged record of the kernel log") from error


def _save(path: Path, record: Record, notes: list[Finding]) -> None:
    try:
        atomic_write(path, _content(record))
    except ColdstartError as error:
        notes.append(_not_recorded(error))


def _content(record: Record) -> bytes:
    document: dict[str, Any] = {
        "schema": _SCHEMA,
        "version": _VERSION,
        "boot_id": record.boot_id,
        "cursor": None if record.cursor is None else asdict(record.cursor),
        "gap": record.gap,
        "events": [asdict(event) for event in record.events],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def event_from_json(document: dict[str, Any]) -> KernelEvent:
    """The inverse of `asdict` after a trip through JSON text."""
    return KernelEvent(**{**document, "kind": Kind(document["kind"]), "pids": tuple(document["pids"])})


def _lock_path(path: Path) -> Path:
    return path.with_name("kernel-log.lock")


def _not_recorded(error: ColdstartError) -> Finding:
    return Finding("kernel_log_not_recorded", Verdict.OK, HOST, "kernel_log", error.message, error.hint)
