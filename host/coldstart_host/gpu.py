"""What a GPU says about itself through NVML, as plain values. `gpu_nvml` asks, `gpu_probe` asks safely."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class NvmlFault:
    """One NVML call that failed in a way that says something: never NotSupported."""

    call: str
    code: int
    text: str


@dataclass(frozen=True)
class RemappedRows:
    """Row remapping, Ampere and later: spare rows in use, waiting for a reset, or exhausted."""

    correctable: int
    uncorrectable: int
    pending: bool
    failure: bool


@dataclass(frozen=True)
class RowSpares:
    """Memory banks by how many spare rows they have left."""

    full: int
    high: int
    partial: int
    low: int
    none: int


@dataclass(frozen=True)
class RetiredPages:
    """Page retirement, before Ampere: pages given up after repeated single-bit, or double-bit errors."""

    single_bit: int
    double_bit: int


@dataclass(frozen=True)
class RepairPending:
    """Repairs of the GPU itself that wait for a reset (driver 570 and later)."""

    channel: bool
    tpc: bool


@dataclass(frozen=True)
class NvLinkErrors:
    """Error counts of one link since they were cleared; None where this driver or link does not count it."""

    link: int
    replay: int | None
    recovery: int | None
    crc_flit: int | None
    crc_data: int | None
    ecc_data: int | None
    recovery_failed: int | None = None  # NVLink 5 and later
    effective: int | None = None  # left after error correction, NVLink 5 and later

    @property
    def total(self) -> int:
        counts = (self.replay, self.recovery, self.crc_flit, self.crc_data, self.ecc_data, self.effective)
        return sum(count or 0 for count in counts)

    @property
    def any(self) -> bool:
        return bool(self.total or self.recovery_failed)


@dataclass(frozen=True)
class EccCounts:
    """Volatile counts since the driver was loaded, aggregate ones over the GPU's life."""

    volatile_corrected: int
    volatile_uncorrected: int
    aggregate_corrected: int
    aggregate_uncorrected: int


@dataclass(frozen=True)
class SramErrors:
    aggregate_uncorrected: int
    volatile_uncorrected: int
    threshold_exceeded: bool


@dataclass(frozen=True)
class Fabric:
    """NVLink fabric registration; `health_summary` 0 unsupported, 1 healthy, 2 unhealthy, 3 limited."""

    state: int
    status: int
    health_mask: int
    health_summary: int | None
    cluster_uuid: str | None = None
    clique: int | None = None


@dataclass(frozen=True)
class GpuFacts:
    """One GPU. None: it does not support the question; `faults` holds the calls that failed.

    `hung` is the call that did not come back; what would have come after it was not asked. `died`: because it
    ended the process that asked.
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    serial: str | None = None
    pci_bus_id: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    ecc_enabled: bool | None = None
    ecc_enabled_after_reboot: bool | None = None
    ecc: EccCounts | None = None
    sram: SramErrors | None = None
    remapped_rows: RemappedRows | None = None
    row_spares: RowSpares | None = None
    retired_pages_pending: bool | None = None
    retired_pages: RetiredPages | None = None
    unrepairable_memory: bool | None = None
    repair_pending: RepairPending | None = None
    inforom_valid: bool | None = None
    recovery_action: int | None = None
    clocks_events: int | None = None
    performance_state: int | None = None
    temperature_celsius: int | None = None
    temperature_margin_celsius: int | None = None
    slowdown_celsius: int | None = None
    shutdown_celsius: int | None = None
    memory_temperature_celsius: int | None = None
    memory_limit_celsius: int | None = None
    utilisation_percent: int | None = None
    sm_clock_mhz: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    persistence: bool | None = None
    mig_enabled: bool | None = None
    mig_enabled_after_reset: bool | None = None
    compute_mode: int | None = None
    process_ids: tuple[int, ...] | None = None
    # bytes of each of them, None where the driver does not tell; those of MPS are clients of its server
    process_memory: tuple[tuple[int, int | None], ...] | None = None
    mps_process_ids: tuple[int, ...] | None = None
    minor_number: int | None = None
    nvlinks_active: int | None = None
    nvlinks: int | None = None
    nvlink_errors: tuple[NvLinkErrors, ...] = ()
    fabric: Fabric | None = None
    hung: str | None = None
    died: bool = False
    skipped: tuple[str, ...] = ()
    faults: tuple[NvmlFault, ...] = ()

    @property
    def subject(self) -> str:
        """The name that findings use: the UUID, else the best there is."""
        if self.uuid:
            return self.uuid
        return f"pci:{self.pci_bus_id}" if self.pci_bus_id else f"index:{self.index}"

    @property
    def readable(self) -> bool:
        return bool(self.uuid)


@dataclass(frozen=True)
class NvmlReading:
    """All that NVML said. `fault`: it would not start; `hung`: the step at which it stopped answering.

    A hang inside one GPU's calls is in that GPU's facts too.
    """

    driver_version: str | None = None
    cuda_version: str | None = None
    count: int | None = None
    gpus: tuple[GpuFacts, ...] = ()
    fault: NvmlFault | None = None
    hung: str | None = None
    died: bool = False
    library_version: str | None = None
    module_version: str | None = None

    @property
    def complete(self) -> bool:
        """Every GPU that NVML counts was asked, and said at least who it is, each a name of its own."""
        return self.count is not None and len({gpu.uuid for gpu in self.gpus if gpu.readable}) == self.count


def normal_pci_address(text: str) -> str:
    """`00000000:0F:00.0` (NVML) and `0000:0f:00.0` (sysfs) as the latter."""
    match = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", text)
    if match is None:
        return text
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


_NESTED: dict[str, type[Any]] = {
    "ecc": EccCounts,
    "sram": SramErrors,
    "remapped_rows": RemappedRows,
    "row_spares": RowSpares,
    "retired_pages": RetiredPages,
    "repair_pending": RepairPending,
    "fabric": Fabric,
}


def gpu_to_json(gpu: GpuFacts) -> dict[str, Any]:
    return asdict(gpu)


def gpu_from_json(document: Mapping[str, Any]) -> GpuFacts:
    """The inverse of `gpu_to_json`, after a trip through JSON text."""
    values = {field.name: document[field.name] for field in fields(GpuFacts) if field.name in document}
    for name, kind in _NESTED.items():
        if values.get(name) is not None:
            values[name] = kind(**values[name])
    values["faults"] = tuple(NvmlFault(**fault) for fault in values.get("faults", ()))
    values["nvlink_errors"] = tuple(NvLinkErrors(**link) for link in values.get("nvlink_errors", ()))
    values["skipped"] = tuple(values.get("skipped", ()))
    for name in ("process_ids", "mps_process_ids"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    if values.get("process_memory") is not None:
        values["process_memory"] = tuple((pid, used) for pid, used in values["process_memory"])
    return GpuFacts(**values)
