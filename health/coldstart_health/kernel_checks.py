"""Kernel events turned into findings. What NVML says now decides whether an old event is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coldstart_health.gpu_faults import recovery_finding
from coldstart_health.inventory import Inventory
from coldstart_health.kernel_events import KernelEvent, Kind, device_address
from coldstart_health.kernel_host_checks import SOURCE, host_findings, when
from coldstart_health.nvlink5 import link_verdict
from coldstart_health.verdict import FABRIC, HOST, Finding, Verdict
from coldstart_health.xids import Course, xid
from coldstart_host.gpu import GpuFacts, NvmlReading
from coldstart_host.gpu_codes import RecoveryAction

# a fault of programs becomes one of the GPU when this many of them met it
_PROCESSES = 3
_RESET_ENDS = {Verdict.DEGRADED, Verdict.RESET}
_RECOVERY_CHANGED = 154
_CLEANUP = 45
_ROW_EVENTS = {63, 64}
_MEMORY_EVENTS = {48, 95, 140, 171, 172}


@dataclass(frozen=True)
class KernelLog:
    """All events of this boot, read now or by an earlier run. `now_usec`: since boot, when it was read."""

    boot_id: str
    source: str
    events: tuple[KernelEvent, ...] = ()
    gap: str | None = None
    earlier_gap: str | None = None
    cut: bool = False
    now_usec: int = 0
    record_damaged: str | None = None


def kernel_findings(
    log: KernelLog, reading: NvmlReading, known: Inventory | None, *, gpuless: bool
) -> Iterator[Finding]:
    """Findings of the log; on a host without GPUs a hole in it only informs."""
    yield from _reading_findings(log, gpuless=gpuless)
    devices = _Devices(log, reading, known)
    addresses = dict.fromkeys(event.address for event in log.events if event.address)
    for address in addresses:
        mine = [event for event in log.events if event.address == address]
        yield from _device_findings(mine, devices.subject(address), devices.facts(address))
    for event in log.events:
        if event.address is None:
            yield from host_findings(event, log.now_usec)


class _Devices:
    """GPUs by PCI device: as NVML has them, as the driver named them in the log, as the last boot did."""

    def __init__(self, log: KernelLog, reading: NvmlReading, known: Inventory | None) -> None:
        self._facts = {device_address(gpu.pci_bus_id): gpu for gpu in reading.gpus if gpu.pci_bus_id}
        self._names = {
            device_address(gpu.pci_bus_id): gpu.uuid
            for gpu in (known.gpus if known else ())
            if gpu.pci_bus_id
        }
        for event in log.events:
            if event.kind is Kind.GPU and event.address:
                self._names[event.address] = event.detail

    def facts(self, address: str) -> GpuFacts | None:
        return self._facts.get(address)

    def subject(self, address: str) -> str:
        if facts := self.facts(address):
            return facts.subject
        return self._names.get(address) or f"pci:{address}.0"


def _reading_findings(log: KernelLog, *, gpuless: bool) -> Iterator[Finding]:
    """What the log may hide. A host without GPUs has nothing in it that must be seen."""

    def found(reason: str, verdict: Verdict, evidence: str, action: str) -> Finding:
        return Finding(reason, Verdict.OK if gpuless else verdict, HOST, SOURCE, evidence, action)

    if log.gap:
        evidence = f"overwritten before they were read: {log.gap}; an XID among them would be missed"
        # a damaged record hides what earlier runs saw, and the log cannot show it again
        verdict = Verdict.UNKNOWN if log.record_damaged else Verdict.DEGRADED
        yield found("kernel_log_gap", verdict, evidence, "boot with `log_buf_len=4M`")
    elif log.earlier_gap:
        evidence = f"an earlier run of this boot missed: {log.earlier_gap}"
        yield found("kernel_log_gap", Verdict.OK, evidence, "look at NVML's counters")
    if log.record_damaged:
        evidence = f"the record of this boot's kernel events was damaged; kept as {log.record_damaged}"
        yield found("kernel_log_record_damaged", Verdict.DEGRADED, evidence, "look at it, then remove it")
    if log.cut:
        evidence = "the kernel log is too long to be read in time; its end was not seen"
        yield found("kernel_log_cut", Verdict.UNKNOWN, evidence, "find what floods it with `dmesg | tail`")


def _device_findings(
    events: Sequence[KernelEvent], subject: str, facts: GpuFacts | None
) -> Iterator[Finding]:
    changes = [event for event in events if event.kind is Kind.XID and event.code == _RECOVERY_CHANGED]
    change = max(changes, key=lambda event: event.last_sequence, default=None)
    recovered = _recovered(change, facts)
    for event in events:
        if event.kind is Kind.SXID:
            yield _switch(event)
        elif event is change and not recovered:
            yield _driver_says(event, subject)
        elif event.kind is not Kind.GPU and event not in changes:
            # a reset ends what a reset was needed for; a reboot or a person is not replaced by it
            over = recovered and change and event.last_sequence < change.last_sequence
            closed = "the GPU was reset since" if over else None
            yield _gpu_event(event, subject, facts, closed=closed)


def _recovered(change: KernelEvent | None, facts: GpuFacts | None) -> bool:
    """The driver asked for a recovery and needs none any more: it logged so, or NVML says so now."""
    if change is None:
        return False
    return change.detail == str(int(RecoveryAction.NONE)) or (
        facts is not None and facts.recovery_action == RecoveryAction.NONE
    )


def _driver_says(event: KernelEvent, subject: str) -> Finding:
    evidence = f"XID 154 {when(event)}: {event.text}"
    if not event.detail:
        action = f"see `nvidia-smi -q -i {subject}`"
        return Finding("recovery_other", Verdict.UNKNOWN, subject, SOURCE, evidence, action)
    return recovery_finding(int(event.detail), subject, SOURCE, evidence)


def _gpu_event(event: KernelEvent, subject: str, facts: GpuFacts | None, *, closed: str | None) -> Finding:
    reason, verdict, meaning, action = _judged(event, facts)
    over = closed if verdict in _RESET_ENDS else None
    over = over or _over(event, facts)
    if over and verdict is not Verdict.OK:
        verdict, meaning = Verdict.OK, f"{meaning}; over: {over}"
    evidence = f"{meaning} {when(event)}: {event.text}"
    return Finding(reason, verdict, subject, SOURCE, evidence, action.format(gpu=subject))


def _judged(event: KernelEvent, facts: GpuFacts | None) -> tuple[str, Verdict, str, str]:
    if event.kind is Kind.BUS_LOSS:
        course = Course.REBOOT
        return "gpu_off_bus", course.verdict, "the GPU has fallen off the bus", course.action
    if event.kind is Kind.INIT_FAILED:
        return "gpu_init_failed", Verdict.RESET, "the driver could not start the GPU", Course.RESET.action
    if event.kind is Kind.PCIE:
        return "pcie_uncorrectable", Verdict.DRAIN, "uncorrectable PCIe error", "drain it and reseat the GPU"
    entry = xid(event.code)
    verdict, meaning = entry.course.verdict, entry.meaning
    if entry.course is Course.DECODE:
        verdict, words = link_verdict(event.code, event.detail)
        meaning = f"{meaning} ({words})"
    elif entry.course is Course.RESTART and len(event.pids) >= _PROCESSES:
        verdict, meaning = Verdict.DEGRADED, f"{meaning}; {len(event.pids)} programs or more met it"
    elif entry.course is Course.CONTAINED and len(event.pids) >= _PROCESSES:
        # one program's page was taken out each time: spare rows come into use at a reset
        verdict, meaning = Verdict.RESET, f"{meaning}; {len(event.pids)} programs or more met it"
    elif event.code == _CLEANUP and event.detail:
        meaning = f"{meaning} (caused by XID {event.detail})"
    elif event.code in _ROW_EVENTS and facts is not None and facts.remapped_rows is not None:
        verdict = Verdict.OK  # NVML tells whether a remapping waits or failed
    action = Course.RESET.action if verdict is Verdict.RESET else entry.course.action
    return f"xid_{event.code}", verdict, f"XID {event.code}, {meaning}", action


def _over(event: KernelEvent, facts: GpuFacts | None) -> str | None:
    """Why an event needs nothing any more, where NVML can tell."""
    if facts is None or not facts.readable or facts.faults:
        return None
    if event.kind is Kind.INIT_FAILED:
        return "NVML reads the GPU"
    if event.kind is Kind.XID and event.code in _MEMORY_EVENTS:
        rows = facts.remapped_rows
        quiet = facts.ecc is not None and facts.ecc.volatile_uncorrected == 0
        if quiet and (rows is None or not (rows.pending or rows.failure)):
            return "NVML counts no uncorrectable error since the last reset"
    return None


def _switch(event: KernelEvent) -> Finding:
    fatal = event.detail == "fatal"
    action = "drain the host, then reset its NVLink fabric or reboot" if fatal else None
    evidence = f"NVSwitch {event.address}, {event.detail} SXid {event.code} {when(event)}: {event.text}"
    verdict = Verdict.REBOOT if fatal else Verdict.OK
    return Finding(f"sxid_{event.code}", verdict, FABRIC, SOURCE, evidence, action)
