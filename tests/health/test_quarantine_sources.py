"""Who may say that a fault is gone: what DCGM found, only DCGM; what the kernel log told once, a new boot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli import config as configuration
from coldstart_health.deep import deep_check
from coldstart_health.identity import seen_gpus
from coldstart_health.inventory import Inventory, KnownGpu
from coldstart_health.moment import Moment
from coldstart_health.quarantine import load_quarantine, quarantine_path
from coldstart_health.quarantine_policy import Policy, RunFacts
from coldstart_health.quarantine_record import Quarantine
from coldstart_health.quarantine_run import after_run, quarantine_findings
from coldstart_health.verdict import HOST, Finding, HealthReport, Verdict
from coldstart_host.gpu import GpuFacts, NvmlReading
from conftest import Coldstart
from stand_ins.gpu_driver import Dcgmi, GpuDriver
from stand_ins.gpu_host import GpuHost, blocking, state_folder

UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
FAULTY = {"status": "Fail", "warnings": [{"warning": "Found faulty memory elements", "error_id": 52}]}
PASS: dict[str, Any] = {"status": "Pass"}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    return GpuHost(tmp_path, monkeypatch)


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dcgmi:
    stand_in = Dcgmi(tmp_path)
    for name, value in stand_in.environment.items():
        monkeypatch.setenv(name, value)
    return stand_in


def deep(
    host: GpuHost, dcgmi: Dcgmi, *results: dict[str, Any], listed: bool = True, level: int = 3
) -> HealthReport:
    host.driver.control("* count 2")
    if listed:
        names = [("H100", f"00000000:{0x1A + number:X}:00.0", UUID.format(number)) for number in range(2)]
        dcgmi.discovers(*names)
    entities = [{"entity_group": "GPU", "entity_id": number, **found} for number, found in enumerate(results)]
    tests = [{"name": "memory", "results": entities}]
    document = {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}}
    failed = any(found is FAULTY for found in results)
    dcgmi.answers(json.dumps(document), status=205 if failed else 0)
    return deep_check(configuration.load(), level=level)


def test_what_a_diagnosis_found_is_not_disproved_by_quick_checks(host: GpuHost, dcgmi: Dcgmi) -> None:
    assert deep(host, dcgmi, PASS, FAULTY).overall is Verdict.DRAIN
    for _ in range(4):
        host.reboot()
        report = host.quick()
        assert report.overall is Verdict.DRAIN
    (finding,) = [finding for finding in report.findings if finding.reason == "quarantined"]
    assert finding.subject == UUID.format(1)
    assert "a clean `coldstart health deep --level 3` releases it" in (finding.action or "")
    assert deep(host, dcgmi, PASS, PASS, level=2).overall is Verdict.DRAIN, "a shallower one neither"
    assert deep(host, dcgmi, PASS, PASS).overall is Verdict.OK
    assert host.quick().overall is Verdict.OK


def test_a_gpu_that_only_dcgm_can_number_blocks_the_host_until_a_clean_diagnosis(
    host: GpuHost, dcgmi: Dcgmi
) -> None:
    assert deep(host, dcgmi, PASS, FAULTY, listed=False).overall is Verdict.DRAIN
    (blocked,) = blocking()
    assert not blocked.name.is_gpu
    report = host.quick()
    assert report.host_verdict is Verdict.DRAIN
    assert deep(host, dcgmi, PASS, PASS, listed=False).overall is Verdict.OK


def test_a_diagnosis_that_tested_only_the_other_gpu_releases_nothing(host: GpuHost, dcgmi: Dcgmi) -> None:
    deep(host, dcgmi, PASS, FAULTY)
    assert deep(host, dcgmi, PASS, {"status": "Skip"}).overall is Verdict.DRAIN
    assert [record.name.uuid for record in blocking()] == [UUID.format(1)]


# --- findings as other sources make them ---

GPUS = tuple(
    GpuFacts(index, uuid=UUID.format(index), serial=f"s{index}", pci_bus_id=f"0000:{0x1A + index:x}:00.0")
    for index in range(2)
)
KNOWN = Inventory("boot", None, tuple(KnownGpu(g.uuid or "", None, g.serial, g.pci_bus_id) for g in GPUS))


def moment(boot: int, seconds: float) -> Moment:
    return Moment(f"boot-{boot}", seconds, "2026-11-29T12:00:00+00:00")


def run(
    state: Quarantine,
    *findings: Finding,
    boot: int = 1,
    at: float = 100,
    gpus: tuple[GpuFacts, ...] = GPUS,
    count: int = 2,
) -> Quarantine:
    reading = NvmlReading(count=count, gpus=gpus)
    facts = RunFacts(moment(boot, at), moment(boot, at + 1), counted=reading.complete)
    return after_run(state, seen_gpus(reading, findings, KNOWN), facts, Policy())


def xid(subject: str, verdict: Verdict = Verdict.REBOOT, evidence: str = "Xid 79") -> Finding:
    return Finding("xid_79", verdict, subject, "kernel_log", evidence)


def test_a_pci_address_of_the_kernel_log_is_the_gpu_that_nvml_reads_there() -> None:
    state = run(Quarantine(), xid("pci:0000:1b:00.0"))
    (record,) = state.records
    assert (record.name.uuid, record.verdict) == (UUID.format(1), Verdict.REBOOT)


def test_a_gpu_that_fell_off_the_bus_is_known_from_the_inventory_by_its_address() -> None:
    state = run(Quarantine(), xid("pci:0000:1b:00.0"), gpus=GPUS[:1], count=1)
    (record,) = state.records
    assert (record.name.uuid, record.name.serial) == (UUID.format(1), "s1")
    assert run(state, boot=2).records[0].causes == ()


def test_a_fatal_error_of_a_switch_blocks_the_host_until_a_clean_run_in_a_new_boot() -> None:
    fatal = Finding("sxid_20034", Verdict.REBOOT, "nvswitch:0000:05:00.0", "kernel_log", "Fatal")
    state = run(Quarantine(), fatal)
    assert [record.name.is_gpu for record in state.records if record.blocks] == [False]
    state = run(state, at=200)
    assert state.records[0].blocks, "gone from the log is not gone"
    seen = seen_gpus(NvmlReading(count=2, gpus=GPUS), (), KNOWN)
    assert [finding.subject for finding in quarantine_findings(state, seen, Policy())] == [
        "nvswitch:0000:05:00.0"
    ]
    assert not run(state, boot=2).records[0].blocks


def test_what_only_a_thorough_look_sees_is_not_disproved_by_a_quick_one() -> None:
    fault = "nvmlDeviceValidateInforom: corrupted (NVML 14)"
    state = run(Quarantine(), Finding("inforom_corrupt", Verdict.DRAIN, UUID.format(1), "nvml", fault))
    for number in range(2, 6):
        state = run(state, boot=number)
    assert state.records[0].blocks


def test_old_lines_of_the_log_after_a_reset_are_no_failed_reset() -> None:
    state = run(Quarantine(), xid(UUID.format(1), Verdict.RESET))
    assert run(state, xid(UUID.format(1), Verdict.RESET), at=200).records[0].verdict is Verdict.RESET


def test_a_line_of_the_log_that_is_over_after_a_reset_releases_what_needed_one() -> None:
    state = run(Quarantine(), xid(UUID.format(1), Verdict.RESET))
    assert run(state, at=200).records[0].blocks
    assert not run(state, xid(UUID.format(1), Verdict.OK, "over"), at=200).records[0].blocks
    reboot = run(Quarantine(), xid(UUID.format(1)))
    assert run(reboot, xid(UUID.format(1), Verdict.OK, "over"), at=200).records[0].blocks


def test_what_the_host_is_asked_anew_each_time_does_not_enter() -> None:
    full = Finding("disk_full", Verdict.DRAIN, HOST, "pressure", "full")
    missing = Finding("gpu_missing", Verdict.DRAIN, HOST, "inventory", "7 of 8")
    assert run(Quarantine(), full, missing).records == ()


def test_a_clean_run_that_began_before_the_fault_was_found_proves_nothing() -> None:
    hot = Finding("temperature_shutdown", Verdict.DRAIN, UUID.format(1), "nvml", "93 C")
    state = run(Quarantine(), hot, at=500)
    assert run(state, at=400).records[0].causes[0].clean_runs == 0
    assert run(state, at=600).records[0].causes[0].clean_runs == 1


def test_gpus_of_one_board_with_one_serial_number_are_told_apart() -> None:
    board = tuple(
        GpuFacts(gpu.index, uuid=gpu.uuid, serial="board", pci_bus_id=gpu.pci_bus_id) for gpu in GPUS
    )
    hot = Finding("temperature_shutdown", Verdict.DRAIN, UUID.format(1), "nvml", "93 C")
    state = run(Quarantine(), hot, gpus=board)
    state = run(state, hot, gpus=board, at=200)
    assert [(record.name.uuid, record.verdict) for record in state.records] == [
        (UUID.format(1), Verdict.DRAIN)
    ]


def test_many_gpus_are_kept_and_those_in_quarantine_never_dropped(host: GpuHost) -> None:
    host.quick("1 remap_failure 1")
    for number in range(3):
        host.reboot()
        host.quick(f"1 uuid {number + 2}", "1 remap_failure 1")
    assert [record.present for record in load_quarantine(state_folder()).records] == [
        False,
        False,
        False,
        True,
    ]


def test_checks_at_the_same_time_all_tell_of_the_fault_and_record_it_once(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    driver = GpuDriver(tmp_path)
    driver.control("* count 2", "0 remap_pending 1", "1 remap_failure 1")
    command = [str(Path(sys.executable).parent / "coldstart"), "health", "quick"]
    environment = coldstart.environment | driver.environment
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    checks = [subprocess.Popen(command, env=environment, **quiet) for _ in range(6)]  # type: ignore[call-overload]
    assert [check.wait(60) for check in checks] == [3] * 6
    document = json.loads(quarantine_path(Path(environment["COLDSTART_STATE_DIR"])).read_text())
    causes = {gpu["uuid"]: [cause["reason"] for cause in gpu["causes"]] for gpu in document["gpus"]}
    assert causes == {UUID.format(0): ["row_remap_pending"], UUID.format(1): ["row_remap_failure"]}
