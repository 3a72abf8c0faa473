"""Each fault that NVML can report, through the driver stand-in and the probe, with the verdict it earns."""

from __future__ import annotations

import pytest

from coldstart_health.gpu_checks import duplicate_findings, gpu_findings, model_findings
from coldstart_health.gpu_faults import FAULTS
from coldstart_health.verdict import Finding, Verdict
from coldstart_host.gpu import GpuFacts
from coldstart_host.gpu_codes import SKIPPED_CODES
from coldstart_host.gpu_probe import read_gpus
from stand_ins.gpu_driver import GpuDriver

UPTIME_SECONDS = 20 * 3600.0
BAD = 1  # the GPU that gets the fault; its equals stand beside it


def findings(driver: GpuDriver, *lines: str) -> tuple[list[Finding], list[Finding]]:
    """Findings on the bad GPU, and on its neighbour."""
    driver.control("* count 2", *(f"{BAD} {line}" for line in lines))
    gpus = read_gpus().gpus
    bad, neighbour = (
        list(gpu_findings(gpu, gpus, uptime_seconds=UPTIME_SECONDS)) for gpu in (gpus[BAD], gpus[0])
    )
    return bad, neighbour


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
        ("clocks 8", "clocks_hw_slowdown", Verdict.DEGRADED),
        ("clocks 32", "clocks_sw_thermal", Verdict.DEGRADED),
        ("clocks 64", "clocks_hw_thermal", Verdict.DEGRADED),
        ("clocks 128", "clocks_power_brake", Verdict.DEGRADED),
        ("temperature 90", "temperature_slowdown", Verdict.DEGRADED),
        ("temperature 93", "temperature_shutdown", Verdict.DRAIN),
        ("margin 0", "temperature_slowdown", Verdict.DEGRADED),
        ("memory_temperature 96", "memory_temperature", Verdict.DEGRADED),
        ("remap_uncorrectable 512", "row_remap_limit", Verdict.REPLACE),
        ("banks_exhausted 1", "row_spares_exhausted", Verdict.DEGRADED),
        ("unrepairable 1", "memory_unrepairable", Verdict.REPLACE),
        ("repair_channel 1", "repair_pending", Verdict.RESET),
        ("repair_tpc 1", "repair_pending", Verdict.RESET),
        ("memory_gib 60", "memory_reduced", Verdict.DRAIN),
        ("sram_uncorrected_aggregate 5", "sram_uncorrectable", Verdict.DEGRADED),
        ("error DeviceGetInforomConfigurationChecksum 14", "inforom_corrupt", Verdict.DRAIN),
        ("pcie_replays 1200", "pcie_replay_rate", Verdict.DEGRADED),
        ("replay_3 1200", "nvlink_errors", Verdict.DEGRADED),
        ("mig_pending 1", "mig_pending", Verdict.DEGRADED),
        ("pcie_width 8", "pcie_width", Verdict.DEGRADED),
        ("nvlinks_active 17", "nvlink_down", Verdict.DEGRADED),
        ("persistence 0", "persistence_off", Verdict.DEGRADED),
        ("ecc 0", "ecc_off", Verdict.DEGRADED),
        ("ecc_pending 0", "ecc_off_pending", Verdict.DEGRADED),
        ("compute_mode 2", "compute_prohibited", Verdict.DRAIN),
        ("ecc 7", "nvml_error", Verdict.UNKNOWN),
        ("ecc_pending 2", "nvml_error", Verdict.UNKNOWN),
        ("persistence 7", "nvml_error", Verdict.UNKNOWN),
        ("mig_pending 2", "nvml_error", Verdict.UNKNOWN),
        ("compute_mode 4", "compute_mode_other", Verdict.UNKNOWN),
        ("compute_mode 255", "compute_mode_other", Verdict.UNKNOWN),
        ("mig 1", "mig_enabled", Verdict.OK),
        *(
            (f"error DeviceGet{call} {code}", "nvml_error" if code == 3 else "nvml_no_data", Verdict.UNKNOWN)
            for call in ("HandleByIndex", "UUID", "PciInfo")
            for code in (3, 21)
        ),
        *(
            (f"error DeviceGet{call} 21", "nvml_no_data", Verdict.UNKNOWN)
            for call in (
                "RemappedRows",
                "TotalEccErrors",
                "EccMode",
                "SramEccErrorStatus",
                "UnrepairableMemoryFlag",
                "Temperature",
            )
        ),
        ("recovery_code 21", "nvml_no_data", Verdict.UNKNOWN),
        *(
            (f"error DeviceGet{call} 3", "question_unanswered", Verdict.UNKNOWN)
            for call in ("RemappedRows", "TotalEccErrors", "SramEccErrorStatus", "Temperature")
        ),
        ("recovery_code 3", "question_unanswered", Verdict.UNKNOWN),
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
        "sram_uncorrected_aggregate 4",
        "pcie_replays 59",
        "crc_flit_7 59",
        "nvlink5 1",
        "error DeviceGetInforomConfigurationChecksum 3",
        "error DeviceGetMarginTemperature 13",
        "remap_correctable 5",
        "remap_uncorrectable 2",
        "clocks 5",  # idle, and the software's power cap
        "pcie_generation 1",
        "processes 3",
        "fabric_state 0",
        "compute_mode 3",
        "nvlinks_active 18",
        # a margin instead of a threshold, as on Hopper
        "slowdown 2",
        "memory_limit 5",
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


@pytest.mark.parametrize(
    ("lines", "reason", "verdict"),
    [
        (["retired_pending 1"], "page_retirement_pending", Verdict.RESET),
        (["retired_single 40", "retired_double 23"], "retired_pages_limit", Verdict.REPLACE),
        (["retired_double 16"], "retired_pages_many", Verdict.DEGRADED),
        (["retired_double 15"], None, None),
    ],
)
def test_before_ampere_pages_are_retired(
    driver: GpuDriver, lines: list[str], reason: str | None, verdict: Verdict | None
) -> None:
    bad, neighbour = findings(driver, "volta 1", *lines)
    assert [(finding.reason, finding.verdict) for finding in bad] == ([(reason, verdict)] if reason else [])
    assert neighbour == []


@pytest.mark.parametrize(
    ("lines", "reason"),
    [(["reset 1"], "recovery_reset"), (["drain_and_reset 1"], "recovery_drain_and_reset"), ([], None)],
)
def test_a_driver_before_the_recovery_field_has_two_older_ones(
    driver: GpuDriver, lines: list[str], reason: str | None
) -> None:
    bad, _ = findings(driver, "recovery_code 3", "reset_code 0", *lines)
    assert [finding.reason for finding in bad] == ([reason] if reason else [])


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["recovery_failed_2 1", "recovery_2 1"], "nvlink_recovery_failed"),
        (["recovery_failed_2 4"], "nvlink_recovery_failed"),
        (["effective_2 1200"], "nvlink_errors"),
    ],
)
def test_links_of_the_fifth_generation_are_counted_by_their_fields(
    driver: GpuDriver, lines: list[str], reason: str
) -> None:
    bad, _ = findings(driver, "nvlink5 1", *lines)
    assert [finding.reason for finding in bad] == [reason]
    assert bad[0].evidence.startswith("link 2:")


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["processes 1", "clocks 0"], ["pcie_generation"]),
        (["processes 1", "clocks 1"], []),
        (["clocks 0"], []),
        (["processes 1", "clocks 0", "performance_state 8"], []),
        (["processes 1", "clocks 0", "pcie_generation 5"], []),
    ],
)
def test_the_pcie_generation_counts_only_under_load(
    driver: GpuDriver, lines: list[str], found: list[str]
) -> None:
    assert [finding.reason for finding in findings(driver, *lines)[0]] == found


def test_processes_of_every_kind_are_seen(driver: GpuDriver) -> None:
    driver.control("* count 1", "* processes 1", "* graphics_processes 2", "* mps_processes 1")
    assert read_gpus().gpus[0].process_ids == (4000, 5000, 5001, 6000)


def test_every_return_code_of_nvml_is_skipped_or_has_a_reason_of_its_own() -> None:
    import pynvml

    names = {name: getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")}
    assert len(names) >= 30
    for name, code in names.items():
        both = code == pynvml.NVML_ERROR_NO_DATA  # skipped where the question decides nothing
        assert ((code in SKIPPED_CODES) != (code in FAULTS)) != both, name
    assert all(not verdict.may_serve for _, verdict, _ in FAULTS.values())


def test_a_return_code_that_nobody_knows_is_unknown(driver: GpuDriver) -> None:
    (finding,) = findings(driver, "error DeviceGetEccMode 777")[0]
    assert (finding.reason, finding.verdict) == ("nvml_error", Verdict.UNKNOWN)
    assert "NVML 777" in finding.evidence


def test_a_call_that_hangs_is_named_on_its_gpu_and_its_neighbour_is_well(driver: GpuDriver) -> None:
    driver.control("* count 2", "1 hang DeviceGetTemperature")
    gpus = read_gpus(deadline_seconds=6).gpus
    assert list(gpu_findings(gpus[0], gpus)) == []
    (finding,) = gpu_findings(gpus[1], gpus)
    assert (finding.reason, finding.verdict) == ("probe_hang", Verdict.UNKNOWN)
    assert finding.subject.startswith("GPU-")
    assert "nvmlDeviceGetTemperature" in finding.evidence


@pytest.mark.parametrize("line", ["error DeviceGetRemappedRows 3", "recovery_code 3", "recovery_code 2"])
def test_what_no_gpu_of_a_model_answers_is_not_asked_of_it(driver: GpuDriver, line: str) -> None:
    driver.control("* count 2", f"* {line}")
    gpus = read_gpus().gpus
    assert [finding for gpu in gpus for finding in gpu_findings(gpu, gpus)] == []


def test_a_heat_beyond_every_gpu_needs_no_threshold(driver: GpuDriver) -> None:
    bad, _ = findings(driver, "temperature 200", "error DeviceGetTemperatureThreshold 3")
    assert [(finding.reason, finding.verdict) for finding in bad] == [("temperature_shutdown", Verdict.DRAIN)]


def test_a_gpu_that_told_neither_name_nor_fault_is_unknown() -> None:
    nameless = GpuFacts(index=0)
    assert [(f.reason, f.verdict) for f in gpu_findings(nameless, [nameless])] == [
        ("gpu_unidentified", Verdict.UNKNOWN)
    ]


@pytest.mark.parametrize("line", ["0 uuid 1", "0 bus 27"])
def test_two_gpus_of_one_name_are_unknown_both(driver: GpuDriver, line: str) -> None:
    driver.control("* count 2", line)
    found = list(duplicate_findings(read_gpus().gpus))
    assert {(f.reason, f.verdict) for f in found} == {("gpu_name_duplicate", Verdict.UNKNOWN)}
    assert len(found) == 2
    assert "GPUs 0, 1" in found[0].evidence


def test_the_odd_model_of_a_host_is_pointed_at(driver: GpuDriver) -> None:
    driver.control("* count 4", "2 model 1")
    (finding,) = model_findings(read_gpus().gpus)
    assert (finding.reason, finding.verdict) == ("mixed_models", Verdict.OK)
    assert finding.subject.endswith("2")
    assert finding.evidence == "NVIDIA A100-SXM4-80GB, beside 3 NVIDIA H100 80GB HBM3"
