"""Verdicts on kernel events: which GPU, how bad, and when one is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coldstart_health.inventory import Inventory, KnownGpu
from coldstart_health.kernel_checks import KernelLog, kernel_findings
from coldstart_health.kernel_events import decode, fold
from coldstart_health.kernel_reading import KernelRecord
from coldstart_health.verdict import Finding, Verdict
from coldstart_host.gpu import EccCounts, GpuFacts, NvmlReading, RemappedRows

UUID = "GPU-00000000-0000-0000-0000-000000000000"
HOUR_USEC = 3600 * 1_000_000
HEALTHY = GpuFacts(
    index=0,
    uuid=UUID,
    pci_bus_id="0000:0f:00.0",
    ecc=EccCounts(0, 0, 0, 0),
    remapped_rows=RemappedRows(0, 0, pending=False, failure=False),
    recovery_action=0,
)
OLD_DRIVER = replace(HEALTHY, recovery_action=None)


def log(*lines: str, **values: object) -> KernelLog:
    records = [KernelRecord(number, number, line) for number, line in enumerate(lines)]
    return replace(KernelLog("boot", "kmsg", fold((), decode(records))), **values)  # type: ignore[arg-type]


def findings(
    kernel_log: KernelLog, *gpus: GpuFacts, known: Inventory | None = None, gpuless: bool = False
) -> list[Finding]:
    reading = NvmlReading(count=len(gpus), gpus=gpus)
    return list(kernel_findings(kernel_log, reading, known, gpuless=gpuless))


def verdicts(kernel_log: KernelLog, *gpus: GpuFacts) -> list[tuple[str, Verdict, str]]:
    return [(found.reason, found.verdict, found.subject) for found in findings(kernel_log, *gpus)]


def x(code: int, words: str = "", address: str = "0000:0f:00") -> str:
    return f"NVRM: Xid (PCI:{address}): {code}, pid=1, name=python3, {words}"


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (13, Verdict.OK),
        (31, Verdict.OK),
        (43, Verdict.OK),
        (62, Verdict.RESET),
        (63, Verdict.OK),
        (64, Verdict.OK),  # NVML reads the rows: none waits, none failed
        (74, Verdict.RESET),
        (79, Verdict.REBOOT),
        (92, Verdict.OK),
        (94, Verdict.DEGRADED),
        (109, Verdict.RESET),
        (119, Verdict.RESET),
        (120, Verdict.RESET),
        (143, Verdict.RESET),
        (167, Verdict.DRAIN),
        (54, Verdict.DRAIN),
        (61, Verdict.DRAIN),
        (16, Verdict.UNKNOWN),
        (999, Verdict.UNKNOWN),
    ],
)
def test_an_xid_is_judged_on_the_gpu_that_nvml_has_at_its_address(code: int, verdict: Verdict) -> None:
    assert verdicts(log(x(code)), HEALTHY) == [(f"xid_{code}", verdict, UUID)]


def test_the_evidence_says_what_how_often_when_and_in_which_words() -> None:
    (finding,) = findings(log(x(119, "Timeout"), x(119, "Timeout again")), HEALTHY)
    assert finding.evidence.startswith("XID 119, the GPU's system processor (GSP) does not answer 2 times")
    assert finding.evidence.endswith("Timeout again")
    assert f"nvidia-smi --gpu-reset -i {UUID}" in (finding.action or "")


def test_a_gpu_in_another_pci_domain_is_another_gpu() -> None:
    (finding,) = findings(log(x(79, address="0009:0f:00")), HEALTHY)
    assert finding.subject == "pci:0009:0f:00.0"


def test_a_gpu_that_fell_off_the_bus_is_named_as_the_last_boot_knew_it() -> None:
    known = Inventory("boot", None, (KnownGpu("GPU-lost", None, None, "0000:0f:00.0"),))
    (finding,) = findings(log("NVRM: GPU 0000:0f:00.0: GPU has fallen off the bus."), known=known)
    assert (finding.reason, finding.verdict, finding.subject) == ("gpu_off_bus", Verdict.REBOOT, "GPU-lost")


def test_a_gpu_that_nvml_lost_is_named_as_the_driver_did_in_the_log() -> None:
    name = f"NVRM: GPU at PCI:0000:0f:00: {UUID}"
    assert verdicts(log(name, x(79))) == [("xid_79", Verdict.REBOOT, UUID)]


def test_an_application_fault_degrades_when_three_programs_met_it() -> None:
    lines = [f"NVRM: Xid (PCI:0000:0f:00): 13, pid={pid}, name=a" for pid in (7, 7, 7, 8)]
    assert verdicts(log(*lines), HEALTHY) == [("xid_13", Verdict.OK, UUID)]
    lines.append("NVRM: Xid (PCI:0000:0f:00): 13, pid=9, name=a")
    assert verdicts(log(*lines), HEALTHY) == [("xid_13", Verdict.DEGRADED, UUID)]


def test_contained_memory_errors_in_three_programs_ask_for_a_reset() -> None:
    lines = [f"NVRM: Xid (PCI:0000:0f:00): 94, pid={pid}, name=a" for pid in (7, 8, 9)]
    assert verdicts(log(*lines), HEALTHY) == [("xid_94", Verdict.RESET, UUID)]


def test_a_sympathetic_clean_up_follows_its_cause() -> None:
    (finding,) = findings(log(x(45, "Ch 01 caused by previous Xid 149")), HEALTHY)
    assert finding.verdict is Verdict.OK
    assert "caused by XID 149" in finding.evidence


def test_nvlink_errors_are_judged_by_their_words_and_not_by_their_number() -> None:
    fatal = x(149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000)")
    nonfatal = x(145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)")
    assert verdicts(log(fatal), HEALTHY) == [("xid_149", Verdict.RESET, UUID)]
    assert verdicts(log(nonfatal), HEALTHY) == [("xid_145", Verdict.OK, UUID)]


def changed(before: int, after: int) -> str:
    return x(154, f"GPU recovery action changed from {before:#x} (A) to {after:#x} (B)")


@pytest.mark.parametrize(
    ("action", "reason", "verdict"),
    [
        (1, "recovery_reset", Verdict.RESET),
        (2, "recovery_reboot", Verdict.REBOOT),
        (3, "recovery_drain_p2p", Verdict.DRAIN),
        (4, "recovery_drain_and_reset", Verdict.RESET),
        (9, "recovery_other", Verdict.UNKNOWN),
    ],
)
def test_the_last_recovery_action_of_the_driver_counts(action: int, reason: str, verdict: Verdict) -> None:
    assert verdicts(log(changed(0, 2), changed(2, action)), OLD_DRIVER) == [(reason, verdict, UUID)]


def test_a_recovery_action_back_to_none_ends_what_needed_a_reset() -> None:
    assert verdicts(log(x(119), changed(0, 1), changed(1, 0)), OLD_DRIVER) == [("xid_119", Verdict.OK, UUID)]
    (finding,) = findings(log(x(119), changed(0, 1), changed(1, 0)), OLD_DRIVER)
    assert "over: the GPU was reset since" in finding.evidence


def test_a_reset_does_not_end_what_needs_a_reboot_or_a_person() -> None:
    lines = (x(79), x(61), x(16), changed(0, 1), changed(1, 0))
    left = [verdict for _, verdict, _ in verdicts(log(*lines), OLD_DRIVER)]
    assert left == [Verdict.REBOOT, Verdict.DRAIN, Verdict.UNKNOWN]


def test_an_event_after_the_reset_is_open() -> None:
    lines = (changed(0, 1), changed(1, 0), x(119))
    assert verdicts(log(*lines), OLD_DRIVER) == [("xid_119", Verdict.RESET, UUID)]


def test_nvml_says_that_the_recovery_is_done_where_the_log_lost_the_line() -> None:
    lines = (x(119), changed(0, 1))
    assert verdicts(log(*lines), HEALTHY) == [("xid_119", Verdict.OK, UUID)]
    assert ("recovery_reset", Verdict.RESET, UUID) in verdicts(log(*lines), OLD_DRIVER)


def test_a_driver_that_never_asked_for_a_recovery_ends_nothing_by_asking_for_none() -> None:
    assert verdicts(log(x(119)), HEALTHY) == [("xid_119", Verdict.RESET, UUID)]


@pytest.mark.parametrize("code", [48, 95, 140, 171, 172])
def test_a_memory_error_is_over_when_its_counter_went_back_with_a_reset(code: int) -> None:
    counted = replace(HEALTHY, ecc=EccCounts(0, 1, 0, 1))
    waiting = replace(HEALTHY, remapped_rows=RemappedRows(0, 1, pending=True, failure=False))
    no_counters = replace(HEALTHY, ecc=None)
    assert verdicts(log(x(code)), HEALTHY)[0][1] is Verdict.OK
    for facts in (counted, waiting, no_counters):
        assert verdicts(log(x(code)), facts)[0][1] is Verdict.RESET
    assert verdicts(log(x(code)))[0][1] is Verdict.RESET


def test_a_failed_remapping_needs_a_reset_where_nvml_cannot_tell() -> None:
    assert verdicts(log(x(64)), replace(HEALTHY, remapped_rows=None))[0][1] is Verdict.RESET


def test_a_gpu_that_started_after_all_is_well() -> None:
    line = "NVRM: GPU 0000:0f:00.0: RmInitAdapter failed! (0x62:0x65:1792)"
    assert verdicts(log(line), HEALTHY) == [("gpu_init_failed", Verdict.OK, UUID)]
    assert verdicts(log(line)) == [("gpu_init_failed", Verdict.RESET, "pci:0000:0f:00.0")]


def test_a_fatal_switch_error_takes_the_host_and_a_non_fatal_one_informs() -> None:
    switch = "nvidia-nvswitch{}: SXid (PCI:0000:0{}:00.0): {}, {}, Link 30"
    kernel_log = log(switch.format(0, 5, 20034, "Fatal"), switch.format(1, 6, 12028, "Non-fatal"))
    assert verdicts(kernel_log, HEALTHY) == [
        ("sxid_20034", Verdict.REBOOT, "fabric"),
        ("sxid_12028", Verdict.OK, "fabric"),
    ]


@pytest.mark.parametrize(
    ("line", "reason", "verdict", "later"),
    [
        ("Out of memory: Killed process 9 (a)", "oom_kill", Verdict.DEGRADED, Verdict.OK),
        ("Memory cgroup out of memory: Killed process 9 (a)", "oom_kill_cgroup", Verdict.OK, Verdict.OK),
        ("INFO: task a:9 blocked for more than 120 seconds.", "hung_task", Verdict.DEGRADED, Verdict.OK),
        (
            "INFO: task nvidia-smi:9 blocked for more than 120 seconds.",
            "driver_hung_task",
            Verdict.DRAIN,
            Verdict.OK,
        ),
        ("I/O error, dev sdb, sector 1", "disk_io_error", Verdict.DEGRADED, Verdict.DEGRADED),
        (
            "EXT4-fs (sdb1): Remounting filesystem read-only",
            "disk_stopped",
            Verdict.DRAIN,
            Verdict.DRAIN,
        ),
        (
            "EDAC MC0: 1 UE memory read error on DIMM0",
            "host_memory_uncorrectable",
            Verdict.DRAIN,
            Verdict.DRAIN,
        ),
    ],
)
def test_host_events_of_the_last_hour_and_those_that_stay(
    line: str, reason: str, verdict: Verdict, later: Verdict
) -> None:
    assert verdicts(log(line)) == [(reason, verdict, "host")]
    assert verdicts(log(line, now_usec=2 * HOUR_USEC)) == [(reason, later, "host")]


def test_records_that_nobody_read_are_said_once_as_a_fault_and_then_as_a_fact() -> None:
    assert verdicts(log(gap="12 records"), HEALTHY) == [("kernel_log_gap", Verdict.DEGRADED, "host")]
    assert verdicts(log(earlier_gap="12 records"), HEALTHY) == [("kernel_log_gap", Verdict.OK, "host")]


def test_a_damaged_record_and_a_hole_in_the_log_together_are_unknown() -> None:
    damaged = log(record_damaged="/x", gap="12 records")
    assert {verdict for _, verdict, _ in verdicts(damaged, HEALTHY)} == {Verdict.UNKNOWN, Verdict.DEGRADED}
    assert verdicts(log(record_damaged="/x"), HEALTHY) == [
        ("kernel_log_record_damaged", Verdict.DEGRADED, "host")
    ]


def test_a_log_that_was_not_read_to_its_end_is_unknown() -> None:
    assert verdicts(log(cut=True), HEALTHY) == [("kernel_log_cut", Verdict.UNKNOWN, "host")]


def test_a_host_without_gpus_is_not_taken_out_by_a_hole_in_its_log() -> None:
    holes = log(gap="12 records", cut=True, record_damaged="/x")
    assert {finding.verdict for finding in findings(holes, gpuless=True)} == {Verdict.OK}
