"""Asks NVML in this process. A hung driver hangs the caller: everybody but the probe uses `gpu_probe`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from coldstart_host.gpu import (
    EccCounts,
    Fabric,
    GpuFacts,
    NvmlCode,
    NvmlFault,
    RemappedRows,
    SramErrors,
    normal_pci_address,
)

T = TypeVar("T")

_INVALID_ARGUMENT = 2
_NO_DATA = 21
# a question the GPU or an older driver does not know; ECC counters without ECC answer so too
_SKIPPED = {NvmlCode.NOT_SUPPORTED, NvmlCode.FUNCTION_NOT_FOUND, NvmlCode.ARGUMENT_VERSION_MISMATCH, _NO_DATA}
_FIELD_RECOVERY_ACTION = 230
_NVLINK_LIMIT = 64


class NvmlUnusableError(Exception):
    """NVML did not start, or did not tell how many GPUs there are."""

    def __init__(self, fault: NvmlFault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class NvmlSession:
    """NVML started in this process; one handle at a time."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._must("nvmlInit", pynvml.nvmlInit)
        self.driver_version: str | None = self._may(pynvml.nvmlSystemGetDriverVersion)
        cuda = self._may(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        self.cuda_version = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        self.count: int = self._must("nvmlDeviceGetCount", pynvml.nvmlDeviceGetCount)

    def read(self, index: int) -> GpuFacts:
        reader = _Reader(self._nvml)
        handle = reader.ask(
            "nvmlDeviceGetHandleByIndex", lambda: self._nvml.nvmlDeviceGetHandleByIndex(index)
        )
        if handle is None:
            return GpuFacts(index=index, faults=tuple(reader.faults), skipped=tuple(reader.skipped))
        return _read_gpu(index, handle, reader)

    def close(self) -> None:
        self._may(self._nvml.nvmlShutdown)

    def _must(self, call: str, function: Callable[[], T]) -> T:
        try:
            return _twice(self._nvml, function)
        except self._nvml.NVMLError as error:
            raise NvmlUnusableError(NvmlFault(call, error.value, str(error))) from error

    def _may(self, function: Callable[[], T]) -> T | None:
        try:
            return function()
        except self._nvml.NVMLError:
            return None


class _Reader:
    """Sorts the answers of one GPU: a value, a question it does not know, or a fault."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.faults: list[NvmlFault] = []
        self.skipped: list[str] = []
        self._lost = False

    def ask(self, call: str, *ways: Callable[[], T]) -> T | None:
        """The first way that the driver knows; a GPU that is lost is not asked again."""
        if self._lost:
            return None
        for way in ways:
            try:
                return _twice(self.nvml, way)
            except self.nvml.NVMLError as error:
                if error.value in _SKIPPED:
                    continue
                self.faults.append(NvmlFault(call, error.value, str(error)))
                self._lost = error.value == NvmlCode.GPU_IS_LOST
                return None
        self.skipped.append(call)
        return None


def _twice(nvml: Any, function: Callable[[], T]) -> T:
    try:
        return function()
    except nvml.NVMLError as error:
        if error.value != NvmlCode.UNKNOWN:
            raise
        return function()  # "unknown" is often momentary: a driver that was just loaded, a reset under way


def _read_gpu(index: int, handle: Any, reader: _Reader) -> GpuFacts:
    nvml, ask = reader.nvml, reader.ask
    uuid = ask("nvmlDeviceGetUUID", lambda: nvml.nvmlDeviceGetUUID(handle))
    pci = ask("nvmlDeviceGetPciInfo", lambda: nvml.nvmlDeviceGetPciInfo(handle))
    memory = ask(
        "nvmlDeviceGetMemoryInfo",
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2),
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
    )
    ecc_mode = ask("nvmlDeviceGetEccMode", lambda: nvml.nvmlDeviceGetEccMode(handle))
    rows = ask("nvmlDeviceGetRemappedRows", lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    retired = ask(
        "nvmlDeviceGetRetiredPagesPendingStatus",
        lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle),
    )
    persistence = ask("nvmlDeviceGetPersistenceMode", lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    mig = ask("nvmlDeviceGetMigMode", lambda: nvml.nvmlDeviceGetMigMode(handle))
    links = _nvlinks(handle, reader)
    return GpuFacts(
        index=index,
        uuid=uuid,
        name=ask("nvmlDeviceGetName", lambda: nvml.nvmlDeviceGetName(handle)),
        serial=ask("nvmlDeviceGetSerial", lambda: nvml.nvmlDeviceGetSerial(handle)),
        pci_bus_id=None if pci is None else normal_pci_address(_text(pci.busId)),
        memory_total_bytes=None if memory is None else memory.total,
        memory_used_bytes=None if memory is None else memory.used,
        ecc_enabled=None if ecc_mode is None else bool(ecc_mode[0]),
        ecc_enabled_after_reboot=None if ecc_mode is None else bool(ecc_mode[1]),
        ecc=ask("nvmlDeviceGetTotalEccErrors", lambda: _ecc_counts(nvml, handle)),
        sram=ask("nvmlDeviceGetSramEccErrorStatus", lambda: _sram(nvml, handle)),
        remapped_rows=None if rows is None else RemappedRows(rows[0], rows[1], bool(rows[2]), bool(rows[3])),
        retired_pages_pending=None if retired is None else bool(retired),
        recovery_action=ask("field 230", lambda: _field(nvml, handle, _FIELD_RECOVERY_ACTION)),
        clocks_events=ask(
            "nvmlDeviceGetCurrentClocksEventReasons",
            lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        ),
        temperature_celsius=ask(
            "nvmlDeviceGetTemperature",
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        ),
        slowdown_celsius=_threshold(handle, reader, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        shutdown_celsius=_threshold(handle, reader, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        **_pcie(handle, reader),
        persistence=None if persistence is None else bool(persistence),
        mig_enabled=None if mig is None else bool(mig[0]),
        compute_mode=ask("nvmlDeviceGetComputeMode", lambda: nvml.nvmlDeviceGetComputeMode(handle)),
        process_ids=ask(
            "nvmlDeviceGetComputeRunningProcesses",
            lambda: _pids(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)),
            lambda: _pids(nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)),
        ),
        nvlinks_active=None if links is None else sum(links),
        nvlinks=None if links is None else len(links),
        fabric=ask(
            "nvmlDeviceGetGpuFabricInfo",
            lambda: _fabric(nvml, handle, nvml.c_nvmlGpuFabricInfo_v3_t),
            lambda: _fabric(nvml, handle, nvml.c_nvmlGpuFabricInfo_v2_t),
        ),
        skipped=tuple(reader.skipped),
        faults=tuple(reader.faults),
    )


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


def _field(nvml: Any, handle: Any, number: int) -> int:
    value = nvml.nvmlDeviceGetFieldValues(handle, [number])[0]
    if value.nvmlReturn != 0:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _fabric(nvml: Any, handle: Any, layout: Any) -> Fabric:
    info = layout()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    summary = getattr(info, "healthSummary", None)
    # NVML writes one byte of state, nvidia-ml-py reads four
    return Fabric(info.state & 0xFF, info.status, info.healthMask, summary)


def _threshold(handle: Any, reader: _Reader, which: int) -> int | None:
    call = "nvmlDeviceGetTemperatureThreshold"
    return reader.ask(call, lambda: int(reader.nvml.nvmlDeviceGetTemperatureThreshold(handle, which)))


def _pcie(handle: Any, reader: _Reader) -> dict[str, int | None]:
    functions = {
        "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
        "pcie_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
        "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
        "pcie_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    }
    return {field: reader.ask(call, _bound(reader.nvml, call, handle)) for field, call in functions.items()}


def _bound(nvml: Any, call: str, handle: Any) -> Callable[[], int]:
    return lambda: int(getattr(nvml, call)(handle))


def _pids(processes: list[Any]) -> tuple[int, ...]:
    return tuple(sorted(process.pid for process in processes))


def _nvlinks(handle: Any, reader: _Reader) -> list[bool] | None:
    """The state of each link, until NVML says that there is no such link; None without NVLink."""
    links = list(_link_states(handle, reader))
    return links or None


def _link_states(handle: Any, reader: _Reader) -> Iterator[bool]:
    for link in range(_NVLINK_LIMIT):
        try:
            yield bool(reader.nvml.nvmlDeviceGetNvLinkState(handle, link))
        except reader.nvml.NVMLError as error:
            if error.value not in {*_SKIPPED, _INVALID_ARGUMENT}:
                reader.faults.append(NvmlFault("nvmlDeviceGetNvLinkState", error.value, str(error)))
            return


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
