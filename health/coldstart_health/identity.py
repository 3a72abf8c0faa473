"""Who is who: findings name a GPU as they can, the quarantine by every name it ever had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coldstart_health.inventory import Inventory, KnownGpu
from coldstart_health.quarantine_record import GpuName, GpuRecord
from coldstart_health.verdict import HOST, Finding, Verdict, worst
from coldstart_host.gpu import GpuFacts, NvmlReading


@dataclass(frozen=True)
class SeenGpu:
    """A GPU as one run saw it: by which names, and what was found.

    `readable`: NVML told who it is. `whole`: it is not split by MIG, which silences some of its complaints.
    """

    name: GpuName
    findings: tuple[Finding, ...] = ()
    readable: bool = False
    whole: bool = False
    marks: Mapping[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        return worst(finding.verdict for finding in self.findings)


def seen_gpus(
    reading: NvmlReading, findings: Sequence[Finding], known: Inventory | None
) -> tuple[SeenGpu, ...]:
    """Every GPU that NVML, the PCI bus, the kernel log or DCGM spoke of in this run, and the host last."""
    seen: dict[str, SeenGpu] = {}
    for gpu in reading.gpus:
        name = _named(name_of(gpu), reading, known)
        seen[gpu.subject] = SeenGpu(
            name, readable=gpu.readable, whole=not gpu.mig_enabled, marks=reset_marks(gpu)
        )
    for finding in findings:
        if finding.subject not in seen and finding.subject != HOST:
            subject = _at_address(finding.subject, seen)
            if subject is None:
                subject = finding.subject
                seen[subject] = SeenGpu(_named(_name_of_subject(subject), reading, known))
            else:
                seen[finding.subject] = seen[subject]
    seen.setdefault(HOST, SeenGpu(GpuName(HOST)))
    joined: dict[str, SeenGpu] = {}
    for subject, gpu_seen in seen.items():
        own = tuple(finding for finding in findings if finding.subject == subject)
        before = joined.get(gpu_seen.name.subject, gpu_seen)
        joined[gpu_seen.name.subject] = replace(before, findings=(*before.findings, *own))
    return tuple(joined.values())


def reset_marks(gpu: GpuFacts) -> dict[str, int]:
    """Counters that start at 0 again after a reset or a reload of the driver, and never fall otherwise."""
    marks = {}
    if gpu.ecc is not None:
        marks["volatile_corrected"] = gpu.ecc.volatile_corrected
        marks["volatile_uncorrected"] = gpu.ecc.volatile_uncorrected
    if gpu.sram is not None:
        marks["sram_volatile_uncorrected"] = gpu.sram.volatile_uncorrected
    if gpu.pcie_replays is not None:
        marks["pcie_replays"] = gpu.pcie_replays
    return marks


def was_set_back(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Whether a reset lies between two readings of the same boot."""
    return any(after[name] < count for name, count in before.items() if name in after)


def find_record(seen: SeenGpu, records: Sequence[GpuRecord], taken: Iterable[str | None]) -> GpuRecord | None:
    """The record of this GPU. `taken` are the UUIDs of all readable GPUs: those are somebody else's."""
    name, others = seen.name, set(taken)
    if not name.is_gpu:
        return next((record for record in records if record.name.subject == name.subject), None)
    for record in records:
        if name.uuid is not None and record.name.uuid == name.uuid:
            return record
    for key in ("serial", "pci_bus_id", "subject"):
        wanted = getattr(name, key)
        for record in records:
            # two UUIDs are two GPUs: boards with several GPUs have one serial number, slots get new ones
            both_known = name.uuid is not None and record.name.uuid is not None
            if both_known or not record.name.is_gpu or record.name.uuid in others - {None}:
                continue
            if wanted is not None and getattr(record.name, key) == wanted:
                return record
    return None


def joined_name(old: GpuName, new: GpuName) -> GpuName:
    """The newest names, and those that a GPU in trouble cannot tell any more."""
    return GpuName(
        subject=new.uuid or old.uuid or new.subject,
        uuid=new.uuid or old.uuid,
        serial=new.serial or old.serial,
        pci_bus_id=new.pci_bus_id or old.pci_bus_id,
        index=old.index if new.index is None else new.index,
        model=new.model or old.model,
    )


def name_of(gpu: GpuFacts) -> GpuName:
    return GpuName(gpu.subject, gpu.uuid, gpu.serial, gpu.pci_bus_id, gpu.index, gpu.name)


def _name_of_subject(subject: str) -> GpuName:
    kind, _, rest = subject.partition(":")
    if kind == "pci":
        return GpuName(subject, pci_bus_id=rest)
    if kind == "index" and rest.isdecimal():
        return GpuName(subject, index=int(rest))
    return GpuName(subject, uuid=subject if subject.startswith("GPU-") else None)


def _at_address(subject: str, seen: Mapping[str, SeenGpu]) -> str | None:
    """The GPU that NVML reads at the PCI address of a finding."""
    address = subject.removeprefix("pci:")
    if address == subject:
        return None
    return next((other for other, gpu in seen.items() if gpu.name.pci_bus_id == address), None)


def _named(name: GpuName, reading: NvmlReading, known: Inventory | None) -> GpuName:
    """Add what the inventory knows of a GPU that cannot say itself who it is."""
    if known is None or name.uuid is not None or not name.is_gpu:
        return name
    lost = _lost(name, reading, known)
    if lost is None:
        return name
    return replace(
        name,
        uuid=lost.uuid,
        serial=name.serial or lost.serial,
        pci_bus_id=name.pci_bus_id or lost.pci_bus_id,
        model=lost.name,
    )


def _lost(name: GpuName, reading: NvmlReading, known: Inventory) -> KnownGpu | None:
    here = {gpu.uuid for gpu in reading.gpus}
    addresses = {gpu.pci_bus_id for gpu in reading.gpus if gpu.readable}
    missing = [gpu for gpu in known.gpus if gpu.uuid not in here]
    if name.pci_bus_id is not None:
        return next((gpu for gpu in missing if gpu.pci_bus_id == name.pci_bus_id), None)
    missing = [gpu for gpu in missing if gpu.pci_bus_id not in addresses]
    # NVML counts in the order of PCI addresses, and so does the inventory
    if name.index is not None and reading.count == len(known.gpus):
        there = known.gpus[name.index] if name.index < len(known.gpus) else None
        return there if there in missing else None
    return missing[0] if len(missing) == 1 else None
