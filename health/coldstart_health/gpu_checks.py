"""What NVML said about each GPU, turned into findings. A question a GPU does not know is no finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coldstart_health.verdict import Finding, Verdict
from coldstart_host.gpu import (
    ClocksEvent,
    ComputeMode,
    FabricState,
    GpuFacts,
    NvmlCode,
    NvmlFault,
    RecoveryAction,
)

_SOURCE = "nvml"
# Hopper and later may answer a threshold with a margin; no GPU slows down below this
_PLAUSIBLE_THRESHOLD_CELSIUS = 60
_RESET = "drain it, then `nvidia-smi --gpu-reset -i {gpu}`"
_REPLACE = "take it out of service and have it replaced"
_LOOK = "see `nvidia-smi -q -i {gpu}`"

# (reason, verdict, action) of each NVML code; what is not here is `nvml_error`, unknown
_FAULTS: dict[int, tuple[str, Verdict, str]] = {
    NvmlCode.NO_PERMISSION: ("nvml_no_permission", Verdict.UNKNOWN, "run as root"),
    NvmlCode.INSUFFICIENT_POWER: ("power_cable", Verdict.DRAIN, "check the GPU's power cables"),
    NvmlCode.DRIVER_NOT_LOADED: ("driver_not_loaded", Verdict.DRAIN, "modprobe nvidia"),
    NvmlCode.TIMEOUT: ("probe_hang", Verdict.UNKNOWN, "see `dmesg` for NVRM lines; reboot if it repeats"),
    NvmlCode.IRQ_ISSUE: ("irq_issue", Verdict.DRAIN, "see `dmesg` for NVRM lines"),
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
    NvmlCode.RESET_REQUIRED: ("reset_required", Verdict.RESET, _RESET),
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
}

_RECOVERY: dict[int, tuple[str, Verdict, str]] = {
    RecoveryAction.GPU_RESET: ("recovery_reset", Verdict.RESET, _RESET),
    RecoveryAction.NODE_REBOOT: ("recovery_reboot", Verdict.REBOOT, "drain and reboot the host"),
    RecoveryAction.DRAIN_P2P: (
        "recovery_drain_p2p",
        Verdict.DRAIN,
        "stop all peer-to-peer work, then look again",
    ),
    RecoveryAction.DRAIN_AND_RESET: ("recovery_drain_and_reset", Verdict.RESET, _RESET),
    RecoveryAction.RECOVER_IMEX_DOMAIN: (
        "recovery_imex_domain",
        Verdict.DRAIN,
        "restart nvidia-imex on every node of the domain",
    ),
    RecoveryAction.BUS_RESET: ("recovery_bus_reset", Verdict.RESET, "drain it, then reset its PCI bus"),
    RecoveryAction.SYSTEM_REBOOT: ("recovery_reboot", Verdict.REBOOT, "drain and reboot the host"),
}
_CLOCKS_WORDS = {
    ClocksEvent.HW_SLOWDOWN: "hardware slowdown",
    ClocksEvent.SW_THERMAL: "software thermal limit",
    ClocksEvent.HW_THERMAL: "hardware thermal limit",
    ClocksEvent.POWER_BRAKE: "power brake",
}


def fault_finding(fault: NvmlFault, subject: str) -> Finding:
    """One failed NVML call as a finding; a failure to look is never ok."""
    reason, verdict, action = _FAULTS.get(fault.code, ("nvml_error", Verdict.UNKNOWN, _LOOK))
    evidence = f"{fault.call}: {fault.text} (NVML {fault.code})"
    return Finding(reason, verdict, subject, _SOURCE, evidence, action.format(gpu=subject))


def gpu_findings(gpu: GpuFacts, all_gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
    """Findings on one GPU; `all_gpus` are those of the host, to compare like with like."""
    for fault in gpu.faults:
        yield fault_finding(fault, gpu.subject)
    for reason, verdict, evidence, action in (
        *_memory(gpu),
        *_recovery(gpu),
        *_heat(gpu),
        *_links(gpu, all_gpus),
        *_fabric(gpu),
        *_configuration(gpu),
    ):
        yield Finding(reason, verdict, gpu.subject, _SOURCE, evidence, action.format(gpu=gpu.subject))


Found = tuple[str, Verdict, str, str]


def _memory(gpu: GpuFacts) -> Iterator[Found]:
    rows = gpu.remapped_rows
    if rows and rows.failure:
        evidence = f"a row could not be remapped ({rows.uncorrectable} remapped after uncorrectable errors)"
        yield "row_remap_failure", Verdict.REPLACE, evidence, _REPLACE
    if rows and rows.pending:
        yield "row_remap_pending", Verdict.RESET, "a row remapping waits for a reset", _RESET
    if gpu.retired_pages_pending:
        yield "page_retirement_pending", Verdict.RESET, "a page retirement waits for a reset", _RESET
    if gpu.sram and gpu.sram.threshold_exceeded:
        evidence = f"SRAM error threshold exceeded ({gpu.sram.aggregate_uncorrected} uncorrectable)"
        yield "sram_threshold", Verdict.REPLACE, evidence, _REPLACE
    if gpu.ecc and gpu.ecc.volatile_uncorrected:
        # the volatile count goes back to 0 with the reset that clears the fault
        evidence = f"{gpu.ecc.volatile_uncorrected} uncorrectable ECC errors since the driver was loaded"
        yield "ecc_uncorrectable", Verdict.RESET, evidence, _RESET


def _recovery(gpu: GpuFacts) -> Iterator[Found]:
    if gpu.recovery_action in {None, RecoveryAction.NONE}:
        return
    reason, verdict, action = _RECOVERY.get(
        gpu.recovery_action or 0, ("recovery_other", Verdict.UNKNOWN, _LOOK)
    )
    yield reason, verdict, f"the driver asks for recovery action {gpu.recovery_action}", action


def _heat(gpu: GpuFacts) -> Iterator[Found]:
    events = ClocksEvent(gpu.clocks_events or 0)
    words = [word for event, word in _CLOCKS_WORDS.items() if event in events]
    if words:
        evidence = f"clocks are held down: {', '.join(words)}"
        yield "clocks_held_down", Verdict.DEGRADED, evidence, "check cooling and power of the host"
    if gpu.temperature_celsius is None:
        return
    for reason, verdict, limit in (
        ("temperature_shutdown", Verdict.DRAIN, gpu.shutdown_celsius),
        ("temperature_slowdown", Verdict.DEGRADED, gpu.slowdown_celsius),
    ):
        if limit and _PLAUSIBLE_THRESHOLD_CELSIUS <= limit <= gpu.temperature_celsius:
            yield (
                reason,
                verdict,
                f"{gpu.temperature_celsius} C, limit {limit} C",
                "check cooling of the host",
            )
            return


def _links(gpu: GpuFacts, all_gpus: Sequence[GpuFacts]) -> Iterator[Found]:
    # the generation drops on an idle GPU and says nothing; the width does not
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        evidence = f"PCIe x{gpu.pcie_width} of x{gpu.pcie_width_max}"
        yield "pcie_width", Verdict.DEGRADED, evidence, "reseat the GPU or its riser"
    # no table of models knows what is wired on this host; the GPU's equals do
    active = [
        other.nvlinks_active
        for other in all_gpus
        if other.name == gpu.name and other.nvlinks_active is not None
    ]
    if gpu.nvlinks_active is not None and gpu.nvlinks_active < max(active, default=0):
        evidence = f"{gpu.nvlinks_active} NVLinks active, {max(active)} on another {gpu.name}"
        yield "nvlink_down", Verdict.DEGRADED, evidence, "see `nvidia-smi nvlink --status -i {gpu}`"


def _fabric(gpu: GpuFacts) -> Iterator[Found]:
    fabric = gpu.fabric
    if fabric is None or fabric.state == FabricState.NOT_SUPPORTED:
        return
    manager = "systemctl status nvidia-fabricmanager"
    if fabric.state == FabricState.IN_PROGRESS:
        yield "fabric_in_progress", Verdict.UNKNOWN, "NVLink fabric is still being set up", "ask again later"
    elif fabric.state != FabricState.COMPLETED:
        # CUDA does not start on such a GPU: "system not yet initialized"
        yield "fabric_not_started", Verdict.DRAIN, "NVLink fabric is not set up", manager
    elif fabric.status:
        evidence = f"NVLink fabric completed with status {fabric.status}"
        yield "fabric_failed", Verdict.DRAIN, evidence, manager
    elif fabric.health_summary == 2:
        evidence = f"NVLink fabric is unhealthy (mask {fabric.health_mask:#x})"
        yield "fabric_unhealthy", Verdict.DRAIN, evidence, manager
    elif fabric.health_summary == 3:
        evidence = f"NVLink fabric has limited capacity (mask {fabric.health_mask:#x})"
        yield "fabric_limited", Verdict.DEGRADED, evidence, manager


def _configuration(gpu: GpuFacts) -> Iterator[Found]:
    if gpu.persistence is False:
        evidence = "persistence mode is off: each start of NVML or CUDA costs 1-3 s a GPU"
        yield "persistence_off", Verdict.DEGRADED, evidence, "systemctl enable --now nvidia-persistenced"
    if gpu.ecc_enabled is False:
        yield "ecc_off", Verdict.DEGRADED, "ECC is off", "nvidia-smi -i {gpu} -e 1, then reboot"
    elif gpu.ecc_enabled and gpu.ecc_enabled_after_reboot is False:
        yield (
            "ecc_off_pending",
            Verdict.DEGRADED,
            "ECC goes off at the next reboot",
            "nvidia-smi -i {gpu} -e 1",
        )
    if gpu.compute_mode == ComputeMode.PROHIBITED:
        # unlike the other settings this one stops every replica
        evidence = "compute mode is `prohibited`: no program may use the GPU"
        yield "compute_prohibited", Verdict.DRAIN, evidence, "nvidia-smi -i {gpu} -c 0"
    if gpu.mig_enabled:
        yield "mig_enabled", Verdict.OK, "MIG is on: the GPU is split", "nvidia-smi -i {gpu} -mig 0"
