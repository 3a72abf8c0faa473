"""NVML's return codes and recovery actions as verdicts; a failure to look is never ok."""

from __future__ import annotations

from coldstart_health.verdict import Finding, Verdict
from coldstart_host.gpu import NvmlFault
from coldstart_host.gpu_codes import NvmlCode, RecoveryAction

SOURCE = "nvml"
RESET = "drain it, then `nvidia-smi --gpu-reset -i {gpu}`"
LOOK = "see `nvidia-smi -q -i {gpu}`"
_NVRM = "see `dmesg` for NVRM lines"
_AGAIN = "look again; reboot if it repeats"
_BUG = "report it with `coldstart health quick --json`"

# (reason, verdict, action) of each code; what is not here is `nvml_error`, unknown
FAULTS: dict[int, tuple[str, Verdict, str]] = {
    NvmlCode.UNINITIALIZED: ("nvml_uninitialized", Verdict.UNKNOWN, _AGAIN),
    NvmlCode.INVALID_ARGUMENT: ("nvml_invalid_argument", Verdict.UNKNOWN, _BUG),
    NvmlCode.NO_PERMISSION: ("nvml_no_permission", Verdict.UNKNOWN, "run as root"),
    NvmlCode.ALREADY_INITIALIZED: ("nvml_uninitialized", Verdict.UNKNOWN, _AGAIN),
    NvmlCode.NOT_FOUND: ("nvml_not_found", Verdict.UNKNOWN, LOOK),
    NvmlCode.INSUFFICIENT_SIZE: ("nvml_invalid_argument", Verdict.UNKNOWN, _AGAIN),
    NvmlCode.INSUFFICIENT_POWER: ("power_cable", Verdict.DRAIN, "check the GPU's power cables"),
    NvmlCode.DRIVER_NOT_LOADED: ("driver_not_loaded", Verdict.DRAIN, "modprobe nvidia"),
    NvmlCode.TIMEOUT: ("probe_hang", Verdict.UNKNOWN, f"{_NVRM}; reboot if it repeats"),
    NvmlCode.IRQ_ISSUE: ("irq_issue", Verdict.DRAIN, _NVRM),
    NvmlCode.LIBRARY_NOT_FOUND: ("driver_missing", Verdict.DRAIN, "install NVIDIA's driver"),
    NvmlCode.CORRUPTED_INFOROM: (
        "inforom_corrupt",
        Verdict.DRAIN,
        "have NVIDIA's field diagnostic run on it",
    ),
    NvmlCode.GPU_IS_LOST: (
        "gpu_lost",
        Verdict.REBOOT,
        "reboot the host; replace the GPU if it is lost again",
    ),
    NvmlCode.RESET_REQUIRED: ("reset_required", Verdict.RESET, RESET),
    NvmlCode.OPERATING_SYSTEM: (
        "driver_blocked",
        Verdict.UNKNOWN,
        "see `dmesg` and the cgroup's device rules",
    ),
    NvmlCode.LIB_RM_VERSION_MISMATCH: (
        "driver_version_mismatch",
        Verdict.REBOOT,
        "reboot: the driver was upgraded while its old kernel module stayed loaded",
    ),
    NvmlCode.IN_USE: ("gpu_busy", Verdict.UNKNOWN, "look again when the GPU is idle"),
    NvmlCode.MEMORY: ("nvml_out_of_memory", Verdict.UNKNOWN, "free memory of the host, then look again"),
    NvmlCode.NO_DATA: ("nvml_no_data", Verdict.UNKNOWN, LOOK),
    NvmlCode.INSUFFICIENT_RESOURCES: ("nvml_out_of_resources", Verdict.UNKNOWN, _NVRM),
    NvmlCode.FREQ_NOT_SUPPORTED: ("nvml_invalid_argument", Verdict.UNKNOWN, _BUG),
    NvmlCode.NOT_READY: (
        "nvml_not_ready",
        Verdict.UNKNOWN,
        "look again when the fabric and confidential computing are set up",
    ),
    NvmlCode.GPU_NOT_FOUND: ("gpu_missing", Verdict.DRAIN, "look with `lspci -d 10de:`, then reboot"),
    NvmlCode.INVALID_STATE: ("nvml_invalid_state", Verdict.UNKNOWN, LOOK),
    NvmlCode.RESET_TYPE_NOT_SUPPORTED: ("nvml_invalid_argument", Verdict.UNKNOWN, _BUG),
    NvmlCode.UNKNOWN: ("nvml_error", Verdict.UNKNOWN, _NVRM),
}

RECOVERY: dict[int, tuple[str, Verdict, str]] = {
    RecoveryAction.GPU_RESET: ("recovery_reset", Verdict.RESET, RESET),
    RecoveryAction.NODE_REBOOT: ("recovery_reboot", Verdict.REBOOT, "drain and reboot the host"),
    RecoveryAction.DRAIN_P2P: (
        "recovery_drain_p2p",
        Verdict.DRAIN,
        "stop all peer-to-peer work, then look again",
    ),
    RecoveryAction.DRAIN_AND_RESET: ("recovery_drain_and_reset", Verdict.RESET, RESET),
    RecoveryAction.RECOVER_IMEX_DOMAIN: (
        "recovery_imex_domain",
        Verdict.DRAIN,
        "restart nvidia-imex on every node of the domain",
    ),
    RecoveryAction.BUS_RESET: ("recovery_bus_reset", Verdict.RESET, "drain it, then reset its PCI bus"),
    RecoveryAction.SYSTEM_REBOOT: ("recovery_reboot", Verdict.REBOOT, "drain and reboot the host"),
}


def fault_finding(fault: NvmlFault, subject: str, *, about: str = "") -> Finding:
    """One failed NVML call as a finding; `about` adds to the evidence."""
    reason, verdict, action = FAULTS.get(fault.code, ("nvml_error", Verdict.UNKNOWN, LOOK))
    evidence = f"{fault.call}: {fault.text} (NVML {fault.code}){about}"
    return Finding(reason, verdict, subject, SOURCE, evidence, action.format(gpu=subject))


def recovery_finding(action: int, subject: str, source: str, evidence: str) -> Finding:
    """What the driver wants done, as the kernel log has it."""
    if action == RecoveryAction.NONE:
        return Finding("recovery_none", Verdict.OK, subject, source, evidence)
    reason, verdict, remedy = RECOVERY.get(action, ("recovery_other", Verdict.UNKNOWN, LOOK))
    return Finding(reason, verdict, subject, source, evidence, remedy.format(gpu=subject))
