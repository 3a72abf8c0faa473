"""NVML's numbers by name: return codes, clocks event reasons, recovery actions, modes."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class NvmlCode(IntEnum):
    """NVML's return codes, as of driver 580."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
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
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


# a question that the GPU or its driver does not know; ECC counters without ECC answer so too
SKIPPED_CODES = frozenset(
    {
        NvmlCode.NOT_SUPPORTED,
        NvmlCode.FUNCTION_NOT_FOUND,
        NvmlCode.NO_DATA,
        NvmlCode.VGPU_ECC_NOT_SUPPORTED,
        NvmlCode.ARGUMENT_VERSION_MISMATCH,
        NvmlCode.DEPRECATED,
    }
)


# nobody may serve on a GPU that these do not name: no code excuses them
IDENTIFYING_CALLS = frozenset({"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo"})
# they decide whether a GPU is whole; "no data" there is a failure to look, and no lack of the feature
DECISIVE_CALLS = frozenset(
    {
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetRetiredPages",
        "nvmlDeviceGetRepairStatus",
        "nvmlDeviceGetUnrepairableMemoryFlag_v1",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetFieldValues",
        "field 230",
    }
)


def skipped_codes(call: str) -> frozenset[int]:
    """The codes by which a GPU or its driver says that it does not know this question."""
    if call in IDENTIFYING_CALLS:
        return frozenset()
    return SKIPPED_CODES - {NvmlCode.NO_DATA} if call in DECISIVE_CALLS else SKIPPED_CODES


class ClocksEvent(IntFlag):
    """Why the clocks are where they are; the last four point at heat, power or hardware."""

    IDLE = 0x1
    APPLICATION_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    POWER_BRAKE = 0x80
    DISPLAY = 0x100


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


class FabricSummary(IntEnum):
    NOT_SUPPORTED = 0
    HEALTHY = 1
    UNHEALTHY = 2
    LIMITED = 3


class ComputeMode(IntEnum):
    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3
