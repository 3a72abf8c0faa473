"""What a GPU says about itself through NVML, as plain values. `gpu_nvml` asks, `gpu_probe` asks safely."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import IntEnum, IntFlag
from typing import Any


class NvmlCode(IntEnum):
    """NVML return codes that coldstart reacts to."""

    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    UNKNOWN = 999


class ClocksEvent(IntFlag):
    """Reasons for clocks below the maximum that point at heat, power or hardware."""

    HW_SLOWDOWN = 0x8
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    POWER_BRAKE = 0x80


class RecoveryAction(IntEnum):
    """NVML field 230: what the driver says must be done before the GPU is whole again."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


class FabricState(IntEnum):
    NOT_SUPPORTED = 0
    NOT_STARTED = 1
    IN_PROGRESS = 2
    COMPLETED = 3


class ComputeMode(IntEnum):
    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


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


@dataclass(frozen=True)
class GpuFacts:
    """One GPU. None: it does not support the question; `faults` holds the calls that failed."""

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
    retired_pages_pending: bool | None = None
    recovery_action: int | None = None
    clocks_events: int | None = None
    temperature_celsius: int | None = None
    slowdown_celsius: int | None = None
    shutdown_celsius: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    persistence: bool | None = None
    mig_enabled: bool | None = None
    compute_mode: int | None = None
    process_ids: tuple[int, ...] | None = None
    nvlinks_active: int | None = None
    nvlinks: int | None = None
    fabric: Fabric | None = None
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
        return self.uuid is not None


@dataclass(frozen=True)
class NvmlReading:
    """All that NVML said. `fault`: it would not start; `hung`: the step at which it stopped answering."""

    driver_version: str | None = None
    cuda_version: str | None = None
    count: int | None = None
    gpus: tuple[GpuFacts, ...] = ()
    fault: NvmlFault | None = None
    hung: str | None = None

    @property
    def complete(self) -> bool:
        """Every GPU that NVML counts was asked, and said at least who it is."""
        return self.count is not None and len([gpu for gpu in self.gpus if gpu.readable]) == self.count


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
    values["skipped"] = tuple(values.get("skipped", ()))
    if values.get("process_ids") is not None:
        values["process_ids"] = tuple(values["process_ids"])
    return GpuFacts(**values)
