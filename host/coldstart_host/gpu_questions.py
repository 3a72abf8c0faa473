"""The questions that one GPU is asked through NVML, in order, with what each answer becomes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from coldstart_host.gpu import (
    EccCounts,
    RemappedRows,
    RepairPending,
    RetiredPages,
    RowSpares,
    SramErrors,
    normal_pci_address,
)
from coldstart_host.gpu_asking import GpuQuestions
from coldstart_host.gpu_codes import RecoveryAction
from coldstart_host.gpu_link_questions import ask_fabric, ask_nvlinks

_FIELD_MEMORY_TEMPERATURE = 82
_FIELD_RESET = 226  # before field 230 there were two of them
_FIELD_DRAIN_AND_RESET = 227
_FIELD_RECOVERY_ACTION = 230


def ask_gpu(of: GpuQuestions, *, thorough: bool) -> None:
    """All questions; who it is comes first, so that whatever hangs or fails later has a name."""
    handle = of.ask("nvmlDeviceGetHandleByIndex", lambda: of.nvml.nvmlDeviceGetHandleByIndex(of.index))
    if handle is None:
        return
    of.handle = handle
    for part in (
        _identity,
        _recovery,
        _memory,
        _ecc,
        _repairs,
        _heat,
        _load,
        _pcie,
        _modes,
        _use,
        ask_nvlinks,
        ask_fabric,
    ):
        part(of)
    if thorough:
        _validate_inforom(of)


def _identity(of: GpuQuestions) -> None:
    of.values["uuid"] = of.plain("nvmlDeviceGetUUID")
    pci = of.plain("nvmlDeviceGetPciInfo")
    of.values["pci_bus_id"] = None if pci is None else normal_pci_address(_text(pci.busId))
    of.values["name"] = of.plain("nvmlDeviceGetName")
    of.values["serial"] = of.plain("nvmlDeviceGetSerial")


def _recovery(of: GpuQuestions) -> None:
    action, reset, drain_and_reset, memory_temperature = of.fields(
        _FIELD_RECOVERY_ACTION, _FIELD_RESET, _FIELD_DRAIN_AND_RESET, _FIELD_MEMORY_TEMPERATURE
    )
    if action is None and (reset is not None or drain_and_reset is not None):
        action = RecoveryAction.NONE
        if drain_and_reset:
            action = RecoveryAction.DRAIN_AND_RESET
        if reset:
            action = RecoveryAction.GPU_RESET
    of.values["recovery_action"] = None if action is None else int(action)
    of.values["memory_temperature_celsius"] = memory_temperature or None


def _memory(of: GpuQuestions) -> None:
    nvml = of.nvml
    memory = of.ask(
        "nvmlDeviceGetMemoryInfo",
        lambda: nvml.nvmlDeviceGetMemoryInfo(of.handle, version=nvml.nvmlMemory_v2),
        lambda: nvml.nvmlDeviceGetMemoryInfo(of.handle),
    )
    if memory is not None:
        of.values |= {"memory_total_bytes": memory.total, "memory_used_bytes": memory.used}


def _ecc(of: GpuQuestions) -> None:
    mode = of.plain("nvmlDeviceGetEccMode")
    if mode is not None:
        of.values |= {
            "ecc_enabled": of.switch("nvmlDeviceGetEccMode", mode[0]),
            "ecc_enabled_after_reboot": of.switch("nvmlDeviceGetEccMode", mode[1]),
        }
    of.values["ecc"] = of.ask("nvmlDeviceGetTotalEccErrors", lambda: _ecc_counts(of.nvml, of.handle))
    of.values["sram"] = of.ask("nvmlDeviceGetSramEccErrorStatus", lambda: _sram(of.nvml, of.handle))


def _ecc_counts(nvml: Any, handle: Any) -> EccCounts:
    corrected, uncorrected, volatile, aggregate = 0, 1, 0, 1
    return EccCounts(
        volatile_corrected=nvml.nvmlDeviceGetTotalEccErrors(handle, corrected, volatile),
        volatile_uncorrected=nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, volatile),
        aggregate_corrected=nvml.nvmlDeviceGetTotalEccErrors(handle, corrected, aggregate),
        aggregate_uncorrected=nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, aggregate),
    )


def _sram(nvml: Any, handle: Any) -> SramErrors:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return SramErrors(
        aggregate_uncorrected=status.aggregateUncParity + status.aggregateUncSecDed,
        volatile_uncorrected=status.volatileUncParity + status.volatileUncSecDed,
        threshold_exceeded=bool(status.bThresholdExceeded),
    )


def _repairs(of: GpuQuestions) -> None:
    """Row remapping from Ampere on, page retirement before; each generation does not know the other's."""
    rows = of.plain("nvmlDeviceGetRemappedRows")
    if rows is not None:
        of.values["remapped_rows"] = RemappedRows(rows[0], rows[1], bool(rows[2]), bool(rows[3]))
        spares = of.plain("nvmlDeviceGetRowRemapperHistogram")
        if spares is not None:
            of.values["row_spares"] = RowSpares(
                spares.max, spares.high, spares.partial, spares.low, spares.none
            )
    pending = of.plain("nvmlDeviceGetRetiredPagesPendingStatus")
    of.values["retired_pages_pending"] = None if pending is None else bool(pending)
    if pending is not None:
        single, double = (of.plain("nvmlDeviceGetRetiredPages", cause) for cause in (0, 1))
        if single is not None and double is not None:
            of.values["retired_pages"] = RetiredPages(len(single), len(double))
    repair = of.plain("nvmlDeviceGetRepairStatus")
    of.values["repair_pending"] = repair and RepairPending(bool(repair[0]), bool(repair[1]))
    flag = of.plain("nvmlDeviceGetUnrepairableMemoryFlag_v1")
    of.values["unrepairable_memory"] = None if flag is None else bool(flag)
    checksum = of.plain("nvmlDeviceGetInforomConfigurationChecksum")
    of.values["inforom_valid"] = None if checksum is None else True


def _heat(of: GpuQuestions) -> None:
    nvml = of.nvml
    of.values["clocks_events"] = of.ask(
        "nvmlDeviceGetCurrentClocksEventReasons",
        lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(of.handle),
        lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(of.handle),
    )
    of.values["performance_state"] = of.plain("nvmlDeviceGetPerformanceState")
    of.values["temperature_celsius"] = of.plain("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
    of.values["temperature_margin_celsius"] = of.plain("nvmlDeviceGetMarginTemperature")
    for name, threshold in (
        ("slowdown_celsius", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        ("shutdown_celsius", nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        ("memory_limit_celsius", nvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
    ):
        of.values[name] = of.plain("nvmlDeviceGetTemperatureThreshold", threshold)


def _load(of: GpuQuestions) -> None:
    """How hard it works at this moment: temperatures and clocks mean little without."""
    rates = of.plain("nvmlDeviceGetUtilizationRates")
    of.values["utilisation_percent"] = None if rates is None else int(rates.gpu)
    of.values["sm_clock_mhz"] = of.plain("nvmlDeviceGetClockInfo", of.nvml.NVML_CLOCK_SM)
    for name, call in (
        ("power_watts", "nvmlDeviceGetPowerUsage"),
        ("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit"),
    ):
        milliwatts = of.plain(call)
        of.values[name] = None if milliwatts is None else milliwatts / 1000


def _pcie(of: GpuQuestions) -> None:
    for name, call in (
        ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
        ("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
        ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
        ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
        ("pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
    ):
        of.values[name] = of.plain(call)


def _modes(of: GpuQuestions) -> None:
    persistence = of.plain("nvmlDeviceGetPersistenceMode")
    of.values["persistence"] = (
        None if persistence is None else of.switch("nvmlDeviceGetPersistenceMode", persistence)
    )
    mig = of.plain("nvmlDeviceGetMigMode")
    if mig is not None:
        of.values |= {
            "mig_enabled": of.switch("nvmlDeviceGetMigMode", mig[0]),
            "mig_enabled_after_reset": of.switch("nvmlDeviceGetMigMode", mig[1]),
        }
    of.values["compute_mode"] = of.plain("nvmlDeviceGetComputeMode")


def _use(of: GpuQuestions) -> None:
    """The processes of every kind that the GPU tells of; None where it tells of none."""
    kinds = {kind: of.ask(f"nvmlDeviceGet{kind}", *_ways(of, kind)) for kind in _PROCESS_KINDS}
    known = [processes for processes in kinds.values() if processes is not None]
    memory = {pid: used for processes in known for pid, used in processes}
    of.values["process_ids"] = tuple(sorted(memory)) if known else None
    of.values["process_memory"] = tuple(sorted(memory.items())) if known else None
    mps = kinds[_MPS_PROCESSES]
    of.values["mps_process_ids"] = None if mps is None else tuple(sorted(pid for pid, _ in mps))
    of.values["minor_number"] = of.plain("nvmlDeviceGetMinorNumber")


_MPS_PROCESSES = "MPSComputeRunningProcesses"
_PROCESS_KINDS = ("ComputeRunningProcesses", "GraphicsRunningProcesses", _MPS_PROCESSES)

_Processes = tuple[tuple[int, int | None], ...]


def _ways(of: GpuQuestions, kind: str) -> Iterator[Callable[[], _Processes]]:
    for version in (3, 2):
        function = getattr(of.nvml, f"nvmlDeviceGet{kind}_v{version}")
        yield lambda function=function: tuple(  # type: ignore[misc]
            (process.pid, process.usedGpuMemory) for process in function(of.handle)
        )


def _validate_inforom(of: GpuQuestions) -> None:
    of.ask("nvmlDeviceValidateInforom", lambda: of.nvml.nvmlDeviceValidateInforom(of.handle) or True)


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
