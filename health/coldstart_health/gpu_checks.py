"""What NVML said about each GPU, turned into findings. A question a GPU does not know is no finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from coldstart_health.gpu_faults import LOOK, RECOVERY, RESET, SOURCE, fault_finding
from coldstart_health.verdict import Finding, Verdict
from coldstart_host.gpu import GpuFacts
from coldstart_host.gpu_codes import ClocksEvent, ComputeMode, RecoveryAction

# Hopper and later may answer a threshold with a margin; no GPU slows down below this
_PLAUSIBLE_THRESHOLD_CELSIUS = 60
# no data centre GPU works up there, whatever thresholds it tells of
_BOUND_CELSIUS = 110
# where NVIDIA and DCGM send a GPU back: DCGM errors 7, 8 and 132
_RETIRED_PAGES_LIMIT = 63
_DOUBLE_BIT_PAGES_WARNING = 15
_REMAPPED_ROWS_LIMIT = 512
# without the driver's own threshold (before 550) operators send a GPU back above this
_SRAM_WARNING = 4
# counted since the host booted, so the true rate is at least this: a link or slot that keeps failing
_ERRORS_PER_HOUR = 60
_SETTLING_SECONDS = 3600.0
_MEMORY_SHARE = 0.98
_REBOOT = "reload the driver or reboot; have it looked at if it repeats"
_REPLACE = "take it out of service and have it replaced"
_COOLING = "check cooling of the host"
_CLOCKS: dict[ClocksEvent, tuple[str, str, str]] = {
    ClocksEvent.HW_SLOWDOWN: (
        "clocks_hw_slowdown",
        "the hardware halves the clocks: too hot, or power failing",
        "check cooling and power of the host",
    ),
    ClocksEvent.SW_THERMAL: (
        "clocks_sw_thermal",
        "the driver lowers the clocks: GPU or memory above its operating temperature",
        _COOLING,
    ),
    ClocksEvent.HW_THERMAL: (
        "clocks_hw_thermal",
        "the hardware lowers the clocks: temperature too high",
        _COOLING,
    ),
    ClocksEvent.POWER_BRAKE: (
        "clocks_power_brake",
        "an external power brake lowers the clocks",
        "check the power supplies and the host's power limits",
    ),
}

Found = tuple[str, Verdict, str, str | None]


def gpu_findings(
    gpu: GpuFacts, all_gpus: Sequence[GpuFacts], *, uptime_seconds: float | None = None
) -> Iterator[Finding]:
    """Findings on one GPU; `all_gpus` are those of the host, to compare like with like."""
    for fault in gpu.faults:
        yield fault_finding(fault, gpu.subject)
    for reason, verdict, evidence, action in (
        *_hang(gpu),
        *_name(gpu),
        *_silence(gpu, all_gpus),
        *_rows(gpu),
        *_pages(gpu),
        *_memory(gpu, all_gpus),
        *_ecc(gpu),
        *_recovery(gpu),
        *_heat(gpu),
        *_pcie(gpu, uptime_seconds),
        *_nvlinks(gpu, all_gpus, uptime_seconds),
        *_configuration(gpu),
    ):
        command = None if action is None else action.format(gpu=gpu.subject)
        yield Finding(reason, verdict, gpu.subject, SOURCE, evidence, command)


def model_findings(gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
    """Different models side by side are said on each of the few: one of them may be the wrong part."""
    models: dict[str, list[GpuFacts]] = {}
    for gpu in gpus:
        if gpu.name:
            models.setdefault(gpu.name, []).append(gpu)
    usual = max(models, key=lambda name: len(models[name]), default="")
    for name, few in models.items():
        for gpu in few if name != usual else ():
            evidence = f"{name}, beside {len(models[usual])} {usual}"
            yield Finding("mixed_models", Verdict.OK, gpu.subject, SOURCE, evidence, None)


def duplicate_findings(gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
    """Two GPUs of one name: nothing that is known of that name, good or bad, belongs to either for sure."""
    names: dict[str, Callable[[GpuFacts], str | None]] = {
        "UUID": lambda gpu: gpu.uuid,
        "PCI address": lambda gpu: gpu.pci_bus_id,
    }
    for what, name_of in names.items():
        owners: dict[str, list[GpuFacts]] = {}
        for gpu in gpus:
            if name := name_of(gpu):
                owners.setdefault(name, []).append(gpu)
        for value, same in owners.items():
            for gpu in same if len(same) > 1 else ():
                indexes = ", ".join(str(other.index) for other in same)
                evidence = f"GPUs {indexes} all say that their {what} is {value}"
                yield Finding("gpu_name_duplicate", Verdict.UNKNOWN, gpu.subject, SOURCE, evidence, _REBOOT)


def _hang(gpu: GpuFacts) -> Iterator[Found]:
    if gpu.hung is not None and gpu.died:
        evidence = f"NVML ended its process, in {gpu.hung}"
        yield "probe_died", Verdict.UNKNOWN, evidence, "see `dmesg` for NVRM lines; reinstall NVIDIA's driver"
    elif gpu.hung is not None:
        evidence = f"the driver did not answer in time, in {gpu.hung or 'the start of its thread'}"
        yield "probe_hang", Verdict.UNKNOWN, evidence, "see `dmesg` for NVRM lines; reboot if it repeats"


def _name(gpu: GpuFacts) -> Iterator[Found]:
    if not gpu.readable and not gpu.faults and gpu.hung is None:
        yield "gpu_unidentified", Verdict.UNKNOWN, "NVML did not tell who it is", LOOK


_DECISIVE: dict[str, Callable[[GpuFacts], object]] = {
    "ECC counters": lambda gpu: gpu.ecc,
    "SRAM errors": lambda gpu: gpu.sram,
    "memory repairs": (
        lambda gpu: gpu.retired_pages_pending if gpu.remapped_rows is None else gpu.remapped_rows
    ),
    "unrepairable memory": lambda gpu: gpu.unrepairable_memory,
    "the recovery action": lambda gpu: gpu.recovery_action,
    "temperature": lambda gpu: gpu.temperature_celsius,
}


def _silence(gpu: GpuFacts, all_gpus: Sequence[GpuFacts]) -> Iterator[Found]:
    """What an equal GPU tells and this one calls unsupported; a fault or a hang says enough already."""
    if gpu.faults or gpu.hung is not None:
        return
    equals = [
        other
        for other in all_gpus
        if other is not gpu and other.name == gpu.name and other.mig_enabled == gpu.mig_enabled
    ]
    silent = [
        what
        for what, answer in _DECISIVE.items()
        if answer(gpu) is None
        and any(answer(other) is not None for other in equals)
        and not (what == "ECC counters" and gpu.ecc_enabled is False)
    ]
    if silent:
        evidence = f"does not tell of {', '.join(silent)}, and an equal GPU of this host does"
        yield "question_unanswered", Verdict.UNKNOWN, evidence, LOOK


def _rows(gpu: GpuFacts) -> Iterator[Found]:
    rows = gpu.remapped_rows
    if rows and rows.failure:
        evidence = f"a row could not be remapped ({rows.uncorrectable} remapped after uncorrectable errors)"
        yield "row_remap_failure", Verdict.REPLACE, evidence, _REPLACE
    if rows and rows.pending:
        yield "row_remap_pending", Verdict.RESET, "a row remapping waits for a reset", RESET
    if rows and rows.correctable + rows.uncorrectable >= _REMAPPED_ROWS_LIMIT:
        evidence = f"{rows.correctable + rows.uncorrectable} rows remapped, limit {_REMAPPED_ROWS_LIMIT}"
        yield "row_remap_limit", Verdict.REPLACE, evidence, _REPLACE
    if gpu.row_spares and gpu.row_spares.none:
        evidence = f"{gpu.row_spares.none} memory banks have no spare row left: the next fault there is final"
        yield "row_spares_exhausted", Verdict.DEGRADED, evidence, "plan its replacement"


def _pages(gpu: GpuFacts) -> Iterator[Found]:
    if gpu.retired_pages_pending:
        yield "page_retirement_pending", Verdict.RESET, "a page retirement waits for a reset", RESET
    pages = gpu.retired_pages
    if pages and pages.single_bit + pages.double_bit >= _RETIRED_PAGES_LIMIT:
        evidence = f"{pages.single_bit + pages.double_bit} pages retired, limit {_RETIRED_PAGES_LIMIT}"
        yield "retired_pages_limit", Verdict.REPLACE, evidence, _REPLACE
    elif pages and pages.double_bit > _DOUBLE_BIT_PAGES_WARNING:
        evidence = f"{pages.double_bit} pages retired for double-bit errors"
        yield "retired_pages_many", Verdict.DEGRADED, evidence, "plan its replacement if they increase"


def _memory(gpu: GpuFacts, all_gpus: Sequence[GpuFacts]) -> Iterator[Found]:
    if gpu.unrepairable_memory:
        yield "memory_unrepairable", Verdict.REPLACE, "the driver reports unrepairable memory", _REPLACE
    if gpu.repair_pending and (gpu.repair_pending.channel or gpu.repair_pending.tpc):
        what = "memory channel" if gpu.repair_pending.channel else "TPC"
        yield "repair_pending", Verdict.RESET, f"a {what} repair waits for a reset", RESET
    equals = [other.memory_total_bytes or 0 for other in all_gpus if other.name == gpu.name]
    if gpu.memory_total_bytes and gpu.memory_total_bytes < _MEMORY_SHARE * max(equals, default=0):
        # MIG and vGPU split a GPU for all; one that alone has less has lost a part
        evidence = (
            f"{gpu.memory_total_bytes >> 20} MiB of memory, {max(equals) >> 20} MiB on another {gpu.name}"
        )
        yield "memory_reduced", Verdict.DRAIN, evidence, LOOK


def _ecc(gpu: GpuFacts) -> Iterator[Found]:
    if gpu.sram and gpu.sram.threshold_exceeded:
        evidence = f"SRAM error threshold exceeded ({gpu.sram.aggregate_uncorrected} uncorrectable)"
        yield "sram_threshold", Verdict.REPLACE, evidence, _REPLACE
    elif gpu.sram and gpu.sram.aggregate_uncorrected > _SRAM_WARNING:
        evidence = f"{gpu.sram.aggregate_uncorrected} uncorrectable SRAM errors in its life"
        yield "sram_uncorrectable", Verdict.DEGRADED, evidence, "plan its replacement if they increase"
    if gpu.ecc and gpu.ecc.volatile_uncorrected:
        # the volatile count goes back to 0 with the reset that clears the fault
        evidence = f"{gpu.ecc.volatile_uncorrected} uncorrectable ECC errors since the driver was loaded"
        yield "ecc_uncorrectable", Verdict.RESET, evidence, RESET


def _recovery(gpu: GpuFacts) -> Iterator[Found]:
    if gpu.recovery_action in {None, RecoveryAction.NONE}:
        return
    reason, verdict, action = RECOVERY.get(
        gpu.recovery_action or 0, ("recovery_other", Verdict.UNKNOWN, LOOK)
    )
    yield reason, verdict, f"the driver asks for recovery action {gpu.recovery_action}", action


def _heat(gpu: GpuFacts) -> Iterator[Found]:
    events = ClocksEvent((gpu.clocks_events or 0) & 0x1FF)
    for event, (reason, evidence, action) in _CLOCKS.items():
        if event in events:
            yield reason, Verdict.DEGRADED, evidence, action
    yield from _temperature(gpu)
    heat, limit = gpu.memory_temperature_celsius, gpu.memory_limit_celsius
    if heat and limit and _PLAUSIBLE_THRESHOLD_CELSIUS <= limit <= heat:
        yield "memory_temperature", Verdict.DEGRADED, f"memory at {heat} C, limit {limit} C", _COOLING


def _temperature(gpu: GpuFacts) -> Iterator[Found]:
    heat = gpu.temperature_celsius
    for reason, verdict, limit in (
        ("temperature_shutdown", Verdict.DRAIN, gpu.shutdown_celsius),
        ("temperature_shutdown", Verdict.DRAIN, _BOUND_CELSIUS),
        ("temperature_slowdown", Verdict.DEGRADED, gpu.slowdown_celsius),
    ):
        if heat is not None and limit and _PLAUSIBLE_THRESHOLD_CELSIUS <= limit <= heat:
            yield reason, verdict, f"{heat} C, limit {limit} C", _COOLING
            return
    # Hopper and later count down to the slow-down instead
    margin = gpu.temperature_margin_celsius
    if margin is not None and margin <= 0:
        evidence = f"{heat} C, {-margin} C above where it slows down"
        yield "temperature_slowdown", Verdict.DEGRADED, evidence, _COOLING


def _pcie(gpu: GpuFacts, uptime_seconds: float | None) -> Iterator[Found]:
    reseat = "reseat the GPU or its riser"
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        evidence = f"PCIe x{gpu.pcie_width} of x{gpu.pcie_width_max}"
        yield "pcie_width", Verdict.DEGRADED, evidence, reseat
    # unlike the width the generation drops on an idle GPU, and says nothing there
    generation, highest = gpu.pcie_generation, gpu.pcie_generation_max
    if generation and highest and generation < highest and _works(gpu):
        evidence = f"PCIe generation {generation} of {highest} under load"
        yield "pcie_generation", Verdict.DEGRADED, evidence, reseat
    rate = _per_hour(gpu.pcie_replays, uptime_seconds)
    if rate >= _ERRORS_PER_HOUR:
        evidence = f"{gpu.pcie_replays} PCIe replays, at least {rate:.0f} an hour"
        yield "pcie_replay_rate", Verdict.DEGRADED, evidence, reseat


def _works(gpu: GpuFacts) -> bool:
    idle = gpu.clocks_events is None or bool(gpu.clocks_events & ClocksEvent.IDLE)
    return bool(gpu.process_ids) and not idle and gpu.performance_state == 0


def _nvlinks(gpu: GpuFacts, all_gpus: Sequence[GpuFacts], uptime_seconds: float | None) -> Iterator[Found]:
    look = "see `nvidia-smi nvlink --status -i {gpu}`"
    # no table of models knows what is wired on this host; the GPU's equals do
    active = [
        other.nvlinks_active
        for other in all_gpus
        if other.name == gpu.name and other.nvlinks_active is not None
    ]
    if gpu.nvlinks_active is not None and gpu.nvlinks_active < max(active, default=0):
        evidence = f"{gpu.nvlinks_active} NVLinks active, {max(active)} on another {gpu.name}"
        yield "nvlink_down", Verdict.DEGRADED, evidence, look
    for counts in gpu.nvlink_errors:
        rate = _per_hour(counts.total, uptime_seconds)
        if counts.recovery_failed:
            evidence = f"link {counts.link}: {counts.recovery_failed} recoveries failed"
            yield "nvlink_recovery_failed", Verdict.DRAIN, evidence, look
        elif rate >= _ERRORS_PER_HOUR:
            evidence = f"link {counts.link}: {counts.total} errors, at least {rate:.0f} an hour"
            yield "nvlink_errors", Verdict.DEGRADED, evidence, look


def _per_hour(count: int | None, uptime_seconds: float | None) -> float:
    """The least rate that a count since boot can mean; 0 where it is unknown."""
    if not count or not uptime_seconds:
        return 0.0
    return count / max(uptime_seconds, _SETTLING_SECONDS) * 3600.0


def _configuration(gpu: GpuFacts) -> Iterator[Found]:
    if gpu.persistence is False:
        evidence = "persistence mode is off: each start of NVML or CUDA costs 1-3 s a GPU"
        yield "persistence_off", Verdict.DEGRADED, evidence, "systemctl enable --now nvidia-persistenced"
    if gpu.ecc_enabled is False:
        yield "ecc_off", Verdict.DEGRADED, "ECC is off", "nvidia-smi -i {gpu} -e 1, then reboot"
    elif gpu.ecc_enabled and gpu.ecc_enabled_after_reboot is False:
        evidence = "ECC goes off at the next reboot"
        yield "ecc_off_pending", Verdict.DEGRADED, evidence, "nvidia-smi -i {gpu} -e 1"
    if gpu.compute_mode == ComputeMode.PROHIBITED:
        # unlike the other settings this one stops every replica
        evidence = "compute mode is `prohibited`: no program may use the GPU"
        yield "compute_prohibited", Verdict.DRAIN, evidence, "nvidia-smi -i {gpu} -c 0"
    elif gpu.compute_mode is not None and gpu.compute_mode not in set(ComputeMode):
        evidence = f"compute mode {gpu.compute_mode}, which this coldstart does not know"
        yield "compute_mode_other", Verdict.UNKNOWN, evidence, "nvidia-smi -i {gpu} -c 0"
    after = gpu.mig_enabled_after_reset
    if gpu.mig_enabled:
        yield "mig_enabled", Verdict.OK, "MIG is on: the GPU is split", "nvidia-smi -i {gpu} -mig 0"
    if after is not None and after != gpu.mig_enabled:
        evidence = f"MIG goes {'on' if after else 'off'} at the next reset"
        yield "mig_pending", Verdict.DEGRADED, evidence, RESET
