"""Each fault that NVML can report, through the driver stand-in and the probe, with the verdict it earns."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldstart_health.gpu_checks import gpu_findings
from coldstart_health.verdict import Finding, Verdict
from coldstart_host.gpu_probe import read_gpus
from stand_ins.gpu_driver import GpuDriver

BAD = 1  # the GPU that gets the fault; its equals stand beside it


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuDriver:
    driver = GpuDriver(tmp_path)
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    return driver


def findings(driver: GpuDriver, *lines: str) -> tuple[list[Finding], list[Finding]]:
    """Findings on the bad GPU, and on its neighbour."""
    driver.control("* count 2", *(f"{BAD} {line}" for line in lines))
    gpus = read_gpus().gpus
    return list(gpu_findings(gpus[BAD], gpus)), list(gpu_findings(gpus[0], gpus))


@pytest.mark.parametrize(
    ("line", "reason", "verdict"),
    [
        ("error DeviceGetHandleByIndex 15", "gpu_lost", Verdict.REBOOT),
        ("error DeviceGetTemperature 15", "gpu_lost", Verdict.REBOOT),
        ("error DeviceGetEccMode 16", "reset_required", Verdict.RESET),
        ("error DeviceGetName 14", "inforom_corrupt", Verdict.DRAIN),
        ("error DeviceGetHandleByIndex 8", "power_cable", Verdict.DRAIN),
        ("error DeviceGetHandleByIndex 4", "nvml_no_permission", Verdict.UNKNOWN),
        ("error DeviceGetPersistenceMode 10", "probe_hang", Verdict.UNKNOWN),
        ("error DeviceGetEccMode 999", "nvml_error", Verdict.UNKNOWN),
        ("error DeviceGetNvLinkState 999", "nvml_error", Verdict.UNKNOWN),
        ("remap_failure 1", "row_remap_failure", Verdict.REPLACE),
        ("remap_pending 1", "row_remap_pending", Verdict.RESET),
        ("sram_exceeded 1", "sram_threshold", Verdict.REPLACE),
        ("uncorrected 1", "ecc_uncorrectable", Verdict.RESET),
        ("recovery 1", "recovery_reset", Verdict.RESET),
        ("recovery 2", "recovery_reboot", Verdict.REBOOT),
        ("recovery 3", "recovery_drain_p2p", Verdict.DRAIN),
        ("recovery 4", "recovery_drain_and_reset", Verdict.RESET),
        ("recovery 5", "recovery_imex_domain", Verdict.DRAIN),
        ("recovery 6", "recovery_bus_reset", Verdict.RESET),
        ("recovery 7", "recovery_reboot", Verdict.REBOOT),
        ("recovery 42", "recovery_other", Verdict.UNKNOWN),
        ("clocks 72", "clocks_held_down", Verdict.DEGRADED),
        ("temperature 90", "temperature_slowdown", Verdict.DEGRADED),
        ("temperature 93", "temperature_shutdown", Verdict.DRAIN),
        ("pcie_width 8", "pcie_width", Verdict.DEGRADED),
        ("nvlinks_active 17", "nvlink_down", Verdict.DEGRADED),
        ("fabric_state 1", "fabric_not_started", Verdict.DRAIN),
        ("fabric_state 2", "fabric_in_progress", Verdict.UNKNOWN),
        ("fabric_status 23", "fabric_failed", Verdict.DRAIN),
        ("fabric_summary 2", "fabric_unhealthy", Verdict.DRAIN),
        ("fabric_summary 3", "fabric_limited", Verdict.DEGRADED),
        ("persistence 0", "persistence_off", Verdict.DEGRADED),
        ("ecc 0", "ecc_off", Verdict.DEGRADED),
        ("ecc_pending 0", "ecc_off_pending", Verdict.DEGRADED),
        ("compute_mode 2", "compute_prohibited", Verdict.DRAIN),
        ("mig 1", "mig_enabled", Verdict.OK),
    ],
)
def test_a_fault_has_its_verdict_and_stays_with_its_gpu(
    driver: GpuDriver, line: str, reason: str, verdict: Verdict
) -> None:
    bad, neighbour = findings(driver, line)
    assert [(finding.reason, finding.verdict) for finding in bad] == [(reason, verdict)]
    assert neighbour == []
    assert bad[0].evidence
    assert "{gpu}" not in (bad[0].action or "")


@pytest.mark.parametrize(
    "line",
    [
        "corrected 100000",
        "uncorrected_aggregate 3",
        "remap_correctable 5",
        "remap_uncorrectable 2",
        "clocks 5",  # idle, and the software's power cap
        "pcie_generation 1",
        "processes 3",
        "fabric_state 0",
        "error DeviceGetRemappedRows 3",
        "recovery_code 3",
        "compute_mode 3",
        "nvlinks_active 18",
        # a margin instead of a threshold, as on Hopper
        "slowdown 2",
    ],
)
def test_what_is_no_fault_has_no_finding(driver: GpuDriver, line: str) -> None:
    bad, neighbour = findings(driver, line)
    assert bad == []
    assert neighbour == []


def test_an_action_names_the_gpu_it_is_for(driver: GpuDriver) -> None:
    (finding,) = findings(driver, "remap_pending 1")[0]
    assert finding.action == f"drain it, then `nvidia-smi --gpu-reset -i {finding.subject}`"
    assert finding.subject.startswith("GPU-")
