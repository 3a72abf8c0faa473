"""A person's release of a GPU: which one is meant, and what is written down about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import NotFoundError, UsageError
from coldstart_health.audit import Person, append_audit, clearance, forgetting, fresh_start
from coldstart_health.baseline import Baseline, GpuBaseline, load_baseline, update_baseline
from coldstart_health.kernel_record import clear_kernel_events
from coldstart_health.moment import Moment, now
from coldstart_health.quarantine import (
    QuarantineUnreadableError,
    keep_whatever_is_there,
    quarantine_lock,
    quarantine_path,
    save_quarantine,
)
from coldstart_health.quarantine_pending import forget_pending, load_known, update_known
from coldstart_health.quarantine_record import Ended, GpuName, GpuRecord, Quarantine
from coldstart_health.recovery import KEPT_ENDED
from coldstart_host.gpu import normal_pci_address

LOCK_WAIT_SECONDS = 10.0
_SHORTEST_UUID_PREFIX = 4


@dataclass(frozen=True)
class Cleared:
    """What was released: the records as they were. `kept` is the copy of a file that was replaced."""

    records: tuple[GpuRecord, ...]
    kept: Path | None = None


def clear_gpu(config: Config, selector: str, *, why: str, by: Person, dry_run: bool = False) -> Cleared:
    """Release one GPU. What was tried on it stays on record: a cause that lasts goes on where it was."""
    why = _reason(why)
    if dry_run:
        return Cleared((select(load_known(config).records, selector),))
    found: list[GpuRecord] = []

    def change(state: Quarantine) -> Quarantine:
        record, moment = select(state.records, selector), now()
        found.append(record)
        # first the log, then the state: nothing is released without a line about it
        append_audit(config.state_folder, [clearance(record, by=by, why=why, moment=moment)])
        return _without(state, [record], by=by, why=why, moment=moment)

    update_known(config, change, wait_seconds=LOCK_WAIT_SECONDS)
    _forget_kernel_events(config.state_folder, found)
    return Cleared(tuple(found))


def clear_all(config: Config, *, why: str, by: Person, dry_run: bool = False) -> Cleared:
    """Release everything, also where the file cannot be understood: then it is put aside, and begun anew."""
    why, folder = _reason(why), config.state_folder
    path = quarantine_path(folder)
    try:
        state: Quarantine | None = load_known(config)
    except QuarantineUnreadableError:
        state = None
    if dry_run:
        return Cleared(() if state is None else _in_quarantine(state.records))
    with quarantine_lock(folder, wait_seconds=LOCK_WAIT_SECONDS):
        moment, kept = now(), None
        try:
            state = load_known(config)
        except QuarantineUnreadableError:
            state, kept = Quarantine(), keep_whatever_is_there(path)
            append_audit(folder, [fresh_start(kept, by=by, why=why, moment=moment)])
        records = _in_quarantine(state.records)
        append_audit(folder, [clearance(record, by=by, why=why, moment=moment) for record in records])
        after = _without(state, records, by=by, why=why, moment=moment)
        if records or kept:
            save_quarantine(path, replace(after, sequence=state.sequence + 1))
        forget_pending(config)
    _forget_kernel_events(folder, records)
    return Cleared(records, kept)


def _forget_kernel_events(state_folder: Path, records: Sequence[GpuRecord]) -> None:
    """What was cleared must not come back out of the same old lines of the kernel log."""
    for record in records:
        clear_kernel_events(state_folder, subject=record.name.subject, pci_bus_id=record.name.pci_bus_id)


def forget_baseline(config: Config, selector: str, *, why: str, by: Person, dry_run: bool = False) -> GpuName:
    """Let what a GPU does from now on be the usual."""
    why, folder = _reason(why), config.state_folder
    if dry_run:
        return _known(load_baseline(folder), selector).name
    found: list[GpuName] = []

    def change(baseline: Baseline) -> Baseline:
        gpu = _known(baseline, selector)
        found.append(gpu.name)
        append_audit(folder, [forgetting(gpu.name, by=by, why=why, moment=now())])
        return baseline.without(gpu)

    with quarantine_lock(folder, wait_seconds=LOCK_WAIT_SECONDS):
        update_baseline(folder, change)
    return found[0]


def select(records: Sequence[GpuRecord], selector: str) -> GpuRecord:
    """The quarantined GPU that is meant by UUID or its beginning, serial number, index, or PCI address."""
    quarantined = _in_quarantine(records)
    found = [record for record in quarantined if _is_meant(record.name, selector.strip())]
    if not found:
        raise NotFoundError(f"not in quarantine: {selector}", hint=_in_words(quarantined))
    # an index or a slot may have belonged to a GPU that is not here any more
    here = [record for record in found if record.present]
    found = here if len(found) > 1 and here else found
    if len(found) > 1:
        raise UsageError(f"several GPUs are meant by `{selector}`", hint=_in_words(found))
    return found[0]


def describe(name: GpuName) -> str:
    """All names, for a person to choose by."""
    index = f"index {name.index}" if name.index is not None else None
    serial = f"serial {name.serial}" if name.serial else None
    return ", ".join(part for part in (name.subject, index, serial, name.pci_bus_id) if part)


def _known(baseline: Baseline, selector: str) -> GpuBaseline:
    found = [gpu for gpu in baseline.gpus if _is_meant(gpu.name, selector.strip())]
    names = "; ".join(describe(gpu.name) for gpu in found or baseline.gpus)
    if not found:
        raise NotFoundError(f"no baseline of: {selector}", hint=f"known are: {names}" if names else None)
    if len(found) > 1:
        raise UsageError(f"several GPUs are meant by `{selector}`", hint=names)
    return found[0]


def _is_meant(name: GpuName, selector: str) -> bool:
    if selector in {name.subject, name.uuid, name.serial} - {None, ""}:
        return True
    if selector.isdecimal() and name.index is not None and int(selector) == name.index:
        return True
    address = selector if selector.count(":") != 1 else f"0000:{selector}"
    if name.pci_bus_id is not None and normal_pci_address(address) == name.pci_bus_id:
        return True
    prefix = selector.lower().removeprefix("gpu-")
    uuid = (name.uuid or "").lower().removeprefix("gpu-")
    return len(prefix) >= _SHORTEST_UUID_PREFIX and uuid.startswith(prefix)


def _in_words(records: Sequence[GpuRecord]) -> str:
    names = "; ".join(describe(record.name) for record in records)
    return f"in quarantine: {names}" if names else "nothing is in quarantine"


def _in_quarantine(records: Sequence[GpuRecord]) -> tuple[GpuRecord, ...]:
    return tuple(record for record in records if record.causes)


def _without(
    state: Quarantine, records: Sequence[GpuRecord], *, by: Person, why: str, moment: Moment
) -> Quarantine:
    def cleared(record: GpuRecord) -> GpuRecord:
        ended = (
            Ended(
                cause.reason, cause.verdict, "cleared", cause.last, moment, proven=False, by=by.label, why=why
            )
            for cause in record.causes
        )
        return replace(record, causes=(), ended=(*record.ended, *ended)[-KEPT_ENDED:])

    return replace(
        state, records=tuple(cleared(record) if record in records else record for record in state.records)
    )


def _reason(why: str) -> str:
    """A line of the log; whoever reads it later wants to know."""
    text = " ".join(why.split())
    if not text:
        raise UsageError("--reason must not be empty", hint="say what was done about the cause")
    return text[:1000]
