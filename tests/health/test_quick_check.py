"""The quick check as `launch` calls it: expectation, record, driver faults, fail closed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart_cli import config as configuration
from coldstart_cli.config import Scalar
from coldstart_cli.errors import ConfigError, UsageError
from coldstart_health import checks, kernel_record
from coldstart_health.audit import Person
from coldstart_health.clearing import clear_gpu
from coldstart_health.pressure import HostPressure
from coldstart_health.verdict import HealthReport, Verdict
from coldstart_host.clock import ClockFacts
from coldstart_host.fabric import FabricFacts
from coldstart_host.pci import PciGpu
from stand_ins.gpu_driver import Dcgmi, GpuDriver, has_real_driver
from stand_ins.kernel_log import KernelLogFile

GPU_UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
H100_ON_BUS = tuple(PciGpu(f"0000:{0x1A + index:02x}:00.0", "0x2330", "nvidia") for index in range(8))


@pytest.fixture(autouse=True)
def quiet_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle host without NVIDIA devices, whatever this one is."""
    monkeypatch.setattr(checks, "pci_gpus", tuple)
    idle = HostPressure(1.0, 2, 0.1, 100, 90, (), None, None)
    monkeypatch.setattr(checks, "read_pressure", lambda _: idle)
    in_time = ClockFacts(True, True, False, 0.01, 1_700_000_000.0, 36_000.0)
    monkeypatch.setattr(checks, "read_clock", lambda: in_time)
    monkeypatch.setattr(checks, "read_fabric", lambda: FabricFacts(0, False, False))
    monkeypatch.setattr(checks, "left_over", tuple)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)


def quick(expect: int | None = None, **settings: Scalar) -> HealthReport:
    return checks.quick_check(configuration.load({"health.expect_gpus": expect, **settings}))


def reasons(report: HealthReport) -> list[tuple[str, Verdict, str]]:
    return [(finding.reason, finding.verdict, finding.subject) for finding in report.findings]


def inventory() -> Path:
    return configuration.load().state_folder / "health" / "inventory.json"


def show_on_bus(monkeypatch: pytest.MonkeyPatch, *gpus: PciGpu) -> None:
    monkeypatch.setattr(checks, "pci_gpus", lambda: gpus)


def without_driver() -> None:
    if has_real_driver():
        pytest.skip("this host has NVIDIA's driver")


def test_a_host_without_gpus_that_expects_none_is_ok_and_says_so() -> None:
    without_driver()
    report = quick()
    assert report.overall is Verdict.OK
    (finding,) = report.findings
    assert finding.evidence == "no GPU on this host, and none is expected"
    assert not inventory().exists()


@pytest.mark.parametrize("kernel_driver", [None, "nouveau", "nvidia"])
def test_a_gpu_on_the_bus_without_a_driver_library_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, kernel_driver: str | None
) -> None:
    without_driver()
    show_on_bus(monkeypatch, PciGpu("0000:01:00.0", "0x2330", kernel_driver))
    assert reasons(quick()) == [("driver_missing", Verdict.DRAIN, "host")]


def test_a_gpu_handed_to_a_virtual_machine_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    without_driver()
    show_on_bus(monkeypatch, PciGpu("0000:01:00.0", "0x2330", "vfio-pci"))
    assert quick().overall is Verdict.OK


def test_an_expected_gpu_without_any_driver_is_a_fault() -> None:
    without_driver()
    report = quick(expect=1)
    assert reasons(report) == [("driver_missing", Verdict.DRAIN, "host")]
    assert "1 GPUs expected (command line)" in report.findings[0].evidence


def test_healthy_gpus_are_ok_and_remembered(driver: GpuDriver) -> None:
    report = quick()
    assert report.overall is Verdict.OK
    assert report.findings == ()
    assert [gpu.verdict for gpu in report.gpus] == [Verdict.OK] * 8
    assert {check.name for check in report.checks} == {"nvml", "pressure", "kernel_log"}
    record = json.loads(inventory().read_text())
    assert (record["schema"], record["version"]) == ("coldstart.health.inventory", 1)
    assert [gpu["uuid"] for gpu in record["gpus"]] == [GPU_UUID.format(index) for index in range(8)]


def test_a_quarantined_gpu_does_not_hide_behind_the_name_of_its_neighbour(driver: GpuDriver) -> None:
    driver.control("* count 2", "0 remap_failure 1")
    assert quick().overall is Verdict.REPLACE
    before = inventory().read_bytes()
    driver.control("* count 2", "0 uuid 1")
    report = quick()
    assert not report.may_serve
    assert ("gpu_name_duplicate", Verdict.UNKNOWN, GPU_UUID.format(1)) in reasons(report)
    assert ("quarantined", Verdict.REPLACE, GPU_UUID.format(0)) in reasons(report)
    assert [gpu.label for gpu in report.gpus][:2] == ["GPU 0", "GPU 1"]
    assert inventory().read_bytes() == before


def test_an_unchanged_record_is_not_written_again(driver: GpuDriver) -> None:
    quick()
    before = inventory().stat()
    quick()
    assert inventory().stat().st_ino == before.st_ino


def test_seven_gpus_where_the_last_boot_had_eight_name_the_missing_one(driver: GpuDriver) -> None:
    quick()
    driver.control("* count 7")
    report = quick()
    assert reasons(report) == [("gpu_missing", Verdict.DRAIN, "host")]
    assert "8 GPUs expected (last recorded boot), 7 found" in report.findings[0].evidence
    assert GPU_UUID.format(7) in report.findings[0].evidence
    assert len(json.loads(inventory().read_text())["gpus"]) == 8, "the fault must not become the record"


def test_eight_expected_and_seven_found_is_a_fault_on_the_first_boot_too(driver: GpuDriver) -> None:
    driver.control("* count 7")
    assert reasons(quick(expect=8)) == [("gpu_missing", Verdict.DRAIN, "host")]
    assert not inventory().exists()


def test_the_operator_can_accept_a_smaller_host(driver: GpuDriver) -> None:
    quick()
    driver.control("* count 7")
    assert quick(expect=7).overall is Verdict.OK
    assert quick().overall is Verdict.OK


def test_more_gpus_than_the_operator_expects_warn(driver: GpuDriver) -> None:
    assert reasons(quick(expect=4)) == [("gpu_unexpected", Verdict.DEGRADED, "host")]


def test_more_gpus_than_the_last_boot_had_are_welcome(driver: GpuDriver) -> None:
    driver.control("* count 4")
    quick()
    driver.control()
    assert quick().overall is Verdict.OK
    assert len(json.loads(inventory().read_text())["gpus"]) == 8


def test_a_gpu_on_the_bus_that_nvml_does_not_know_needs_a_reboot(
    driver: GpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_on_bus(monkeypatch, *H100_ON_BUS)
    driver.control("* count 7")
    report = quick()
    assert reasons(report) == [("gpu_not_started", Verdict.REBOOT, "pci:0000:21:00.0")]
    assert report.gpus[-1].subject == "pci:0000:21:00.0"
    assert report.gpus[-1].verdict is Verdict.REBOOT


def test_a_lost_gpu_is_found_among_the_others_and_not_forgotten(driver: GpuDriver) -> None:
    quick()
    driver.control("5 error DeviceGetHandleByIndex 15")
    report = quick()
    assert reasons(report) == [("gpu_lost", Verdict.REBOOT, "index:5")]
    assert report.host_verdict is Verdict.OK
    assert len(json.loads(inventory().read_text())["gpus"]) == 8


def test_a_driver_upgraded_without_a_reboot_asks_for_the_reboot(driver: GpuDriver) -> None:
    driver.control("* error Init 18")
    report = quick()
    assert reasons(report) == [("driver_version_mismatch", Verdict.REBOOT, "host")]
    assert "kernel module" in report.summary


def test_a_library_without_its_kernel_driver_is_a_fault_only_where_gpus_are_expected(
    driver: GpuDriver,
) -> None:
    driver.control("* error Init 9")
    assert quick().overall is Verdict.OK
    assert reasons(quick(expect=8)) == [("driver_not_loaded", Verdict.DRAIN, "host")]


@pytest.mark.parametrize("code", [4, 17, 999, 777])
def test_an_nvml_that_fails_is_never_read_as_no_problem(driver: GpuDriver, code: int) -> None:
    driver.control(f"* error Init {code}")
    assert quick(expect=0).overall is Verdict.UNKNOWN


def test_a_hung_driver_is_unknown_within_five_seconds(driver: GpuDriver) -> None:
    driver.control("6 hang DeviceGetRemappedRows")
    report = quick()
    assert [(finding.reason, finding.verdict) for finding in report.findings] == [
        ("probe_hang", Verdict.UNKNOWN)
    ]
    assert report.findings[0].subject == GPU_UUID.format(6)
    assert [gpu.verdict for gpu in report.gpus].count(Verdict.OK) == 7
    assert report.duration_seconds < 5
    assert not inventory().exists()


def test_a_gpu_at_which_nvml_crashes_is_unknown_and_the_others_are_judged(driver: GpuDriver) -> None:
    driver.control("1 crash DeviceGetName", "3 remap_pending 1")
    assert set(reasons(quick())) == {
        ("probe_died", Verdict.UNKNOWN, GPU_UUID.format(1)),
        ("row_remap_pending", Verdict.RESET, GPU_UUID.format(3)),
    }
    assert not inventory().exists()


def test_a_probe_that_dies_is_unknown(driver: GpuDriver) -> None:
    driver.control("* crash Init")
    report = quick()
    assert reasons(report) == [("nvml_not_checked", Verdict.UNKNOWN, "host")]
    assert report.unavailable is None


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"schema": "coldstart.health.inventory"}', "\xff"])
def test_a_damaged_record_is_unknown_and_not_an_empty_host(content: str) -> None:
    inventory().parent.mkdir(parents=True)
    inventory().write_bytes(content.encode("latin-1"))
    report = quick()
    assert ("inventory_unreadable", Verdict.UNKNOWN, "host") in reasons(report)
    assert str(inventory()) in report.summary


def test_a_record_of_a_newer_version_is_refused_by_name() -> None:
    inventory().parent.mkdir(parents=True)
    inventory().write_text('{"schema": "coldstart.health.inventory", "version": 2}')
    assert "newer than this coldstart" in quick().summary


def test_the_operators_word_replaces_a_damaged_record(driver: GpuDriver) -> None:
    inventory().parent.mkdir(parents=True)
    inventory().write_text("{")
    assert quick(expect=8).overall is Verdict.OK
    assert quick().overall is Verdict.OK


def test_a_negative_expectation_is_refused() -> None:
    with pytest.raises(UsageError, match="not negative: -1"):
        quick(expect=-1)


def test_thresholds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"health\.warn_percent"):
        quick(**{"health.warn_percent": 95.0})


def test_a_file_system_that_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(checks, "PRESSURE_DEADLINE_SECONDS", 0.2)
    monkeypatch.setattr(checks, "read_pressure", lambda _: never.wait(60))
    try:
        report = quick(expect=0)
    finally:
        never.set()
    assert ("pressure_not_checked", Verdict.UNKNOWN, "host") in reasons(report)


def test_an_xid_takes_its_gpu_out_and_stays_when_the_log_is_overwritten(
    driver: GpuDriver, kernel_log: KernelLogFile
) -> None:
    expected = [("xid_119", Verdict.RESET, GPU_UUID.format(2))]
    kernel_log.say("NVRM: Xid (PCI:0000:1c:00): 119, pid=7, name=python3, Timeout after 6s")
    assert reasons(quick()) == expected
    kernel_log.say("other")
    kernel_log.overwrite(2)
    report = quick()
    assert reasons(report) == expected
    assert [gpu.verdict for gpu in report.gpus].count(Verdict.OK) == 7


def test_a_cleared_gpu_does_not_come_back_out_of_old_lines(
    driver: GpuDriver, kernel_log: KernelLogFile
) -> None:
    line = "NVRM: Xid (PCI:0000:1c:00): 119, pid=7, name=python3, Timeout after 6s"
    kernel_log.say(line)
    assert quick().overall is Verdict.RESET
    by = Person(uid=0, user="root", sudo_user=None, login_uid=None, pid=1)
    clear_gpu(configuration.load(), GPU_UUID.format(2), why="reset by hand", by=by)
    assert quick().overall is Verdict.OK
    kernel_log.say(line)
    assert not quick().may_serve


def test_a_hidden_kernel_log_is_unknown_where_there_are_gpus(
    driver: GpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLDSTART_HEALTH_KERNEL_LOG", "/dev/null")
    report = quick()
    assert reasons(report) == [("kmsg_denied", Verdict.UNKNOWN, "host")]
    assert report.unavailable is None


def test_a_hidden_kernel_log_only_informs_where_no_gpu_is_nor_should_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_driver()
    monkeypatch.setenv("COLDSTART_HEALTH_KERNEL_LOG", "/dev/null")
    assert ("kmsg_denied", Verdict.OK, "host") in reasons(quick())
    assert ("kmsg_denied", Verdict.UNKNOWN, "host") in reasons(quick(expect=1))


def test_the_operator_may_judge_without_the_kernel_log_and_is_told(
    driver: GpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLDSTART_HEALTH_KERNEL_LOG", "none")
    assert reasons(quick()) == [("kernel_log_off", Verdict.OK, "host")]


def test_a_kernel_log_that_does_not_answer_is_unknown(
    driver: GpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(checks, "KERNEL_LOG_DEADLINE_SECONDS", 0.1)
    monkeypatch.setattr(kernel_record, "take_kernel_log", lambda *_, **__: never.wait(60))
    try:
        assert reasons(quick()) == [("kmsg_denied", Verdict.UNKNOWN, "host")]
    finally:
        never.set()


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    def install(environment: dict[str, str]) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return install


def active(deadline_seconds: float = 30) -> HealthReport:
    return checks.quick_check(configuration.load(), active=True, active_deadline_seconds=deadline_seconds)


def test_active_joins_dcgms_word_with_nvmls_by_serial_number(
    driver: GpuDriver, tmp_path: Path, dcgmi: Callable[[dict[str, str]], None]
) -> None:
    driver.control("* count 1")
    software = {
        "entity_group": "GPU",
        "entity_id": 0,
        "status": "Fail",
        "warnings": [{"warning": "Row remap failure on GPU 0", "error_id": 80, "error_severity": 6}],
    }
    document = {
        "DCGM Diagnostic": {
            "test_categories": [
                {"category": "Deployment", "tests": [{"name": "software", "results": [software]}]}
            ]
        },
        "entity_groups": [
            {"entity_group": "GPU", "entities": [{"entity_id": 0, "serial_num": "1650000000001"}]}
        ],
        "metadata": {"version": "4.6.0"},
    }
    output = tmp_path / "diag.json"
    output.write_text(json.dumps(document))
    stand_in = Dcgmi(tmp_path)
    dcgmi(stand_in.prints(output, status=226))
    report = active()
    assert stand_in.calls == ["diag -r 1 -j"]
    assert reasons(report) == [("row_remap_failure", Verdict.REPLACE, GPU_UUID.format(0))]
    assert [gpu.verdict for gpu in report.gpus] == [Verdict.REPLACE]
    assert report.dcgm_version == "4.6.0"


def test_active_has_nothing_to_do_where_there_is_no_gpu(
    tmp_path: Path, dcgmi: Callable[[dict[str, str]], None]
) -> None:
    without_driver()
    stand_in = Dcgmi(tmp_path)
    dcgmi(stand_in.hangs())
    assert active().overall is Verdict.OK
    assert stand_in.calls == []


def test_active_that_hangs_is_unknown_at_its_own_deadline(
    driver: GpuDriver, tmp_path: Path, dcgmi: Callable[[dict[str, str]], None]
) -> None:
    dcgmi(Dcgmi(tmp_path).hangs())
    report = active(deadline_seconds=5)
    assert reasons(report) == [("probe_hang", Verdict.UNKNOWN, "host")]
    assert "dcgmi diag -r 1" in report.summary


def test_an_inventory_file_names_the_gpus_that_should_be_here(driver: GpuDriver, tmp_path: Path) -> None:
    quick()
    given = tmp_path / "inventory.json"
    given.write_bytes(inventory().read_bytes())
    named = {"health.inventory": str(given)}
    assert quick(**named).findings == ()
    driver.control("* count 7")
    report = quick(**named)
    assert reasons(report) == [("gpu_missing", Verdict.DRAIN, "host")]
    assert f"8 GPUs expected (inventory {given})" in report.summary
    driver.control("7 uuid 77")
    report = quick(**named)
    assert reasons(report) == [("gpu_exchanged", Verdict.DEGRADED, "host")]
    driver.control("* count 9")
    assert reasons(quick(**named)) == [("gpu_unexpected", Verdict.DEGRADED, "host")]


def test_a_gpu_that_was_exchanged_since_the_last_boot_is_told(driver: GpuDriver) -> None:
    quick()
    driver.control("7 uuid 77")
    assert reasons(quick()) == [("gpu_exchanged", Verdict.OK, "host")]
    assert quick().findings == (), "it is the record now"


def test_an_inventory_file_that_is_not_there_is_unknown(driver: GpuDriver, tmp_path: Path) -> None:
    report = quick(**{"health.inventory": str(tmp_path / "absent.json")})
    assert ("inventory_unreadable", Verdict.UNKNOWN, "host") in reasons(report)


def test_one_of_sixteen_gpus_that_vanishes_half_way_is_the_only_one_judged(driver: GpuDriver) -> None:
    driver.control("* count 16")
    quick()
    driver.control("* count 16", "9 vanish DeviceGetEccMode")
    report = quick()
    assert [(finding.reason, finding.verdict) for finding in report.findings] == [
        ("gpu_lost", Verdict.REBOOT)
    ]
    assert [gpu.verdict for gpu in report.gpus].count(Verdict.OK) == 15
    assert report.host_verdict is Verdict.OK


@pytest.mark.parametrize("code", [28, 9])
def test_a_driver_that_finds_no_gpu_is_a_fault_only_where_one_is_expected(
    driver: GpuDriver, code: int
) -> None:
    driver.control(f"* error Init {code}")
    assert quick().overall is Verdict.OK
    assert quick(expect=8).overall is Verdict.DRAIN


def test_a_clock_that_jumped_between_two_runs_warns(
    driver: GpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick()
    set_ahead = ClockFacts(True, True, False, 0.01, 1_700_000_000.0 + 7200, 36_010.0)
    monkeypatch.setattr(checks, "read_clock", lambda: set_ahead)
    report = quick()
    assert reasons(report) == [("clock_jumped", Verdict.DEGRADED, "host")]
    assert "7200 s ahead" in report.summary
    assert quick().overall is Verdict.OK, "told once"
