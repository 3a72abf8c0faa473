"""The quarantine as `health quick` keeps it: through a driver with faults, over simulated reboots."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from coldstart_cli import config as configuration
from coldstart_health import checks
from coldstart_health.quarantine import QuarantineUnreadableError, quarantine_path
from coldstart_health.verdict import Finding, HealthReport, Verdict
from stand_ins.gpu_host import GpuHost, blocking, state_folder

UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
BAD = UUID.format(1)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    return GpuHost(tmp_path, monkeypatch)


def verdict(report: HealthReport, subject: str = BAD) -> Verdict:
    return next(gpu.verdict for gpu in report.gpus if gpu.subject == subject)


def quarantined(report: HealthReport) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.reason == "quarantined"]
    return finding


RESET = "1 remap_pending 1"
HOT = "1 temperature 93"
REPLACE = "1 remap_failure 1"
LOST = "1 error DeviceGetHandleByIndex 15"


def test_healthy_gpus_leave_no_state(host: GpuHost) -> None:
    host.quick()
    assert not quarantine_path(state_folder()).exists()
    assert blocking() == ()


def test_a_bad_gpu_is_recorded_with_all_its_names_and_reported_once(host: GpuHost) -> None:
    report = host.quick(RESET)
    assert [finding.reason for finding in report.findings] == ["row_remap_pending"]
    (blocked,) = blocking()
    name = blocked.name
    assert (name.uuid, name.serial, name.pci_bus_id) == (BAD, "1650000000002", "0000:1b:00.0")
    assert blocked.verdict is Verdict.RESET
    assert [cause.reason for cause in blocked.causes] == ["row_remap_pending"]


def test_an_unknown_gpu_blocks_now_and_does_not_enter(host: GpuHost) -> None:
    assert verdict(host.quick("1 error DeviceGetEccMode 999")) is Verdict.UNKNOWN
    assert blocking() == ()
    assert host.quick().overall is Verdict.OK


def test_a_gpu_that_looks_well_again_stays_in_with_since_when_and_why(host: GpuHost) -> None:
    host.quick(HOT)
    report = host.quick()
    assert verdict(report) is Verdict.DRAIN
    assert verdict(report, UUID.format(0)) is Verdict.OK
    finding = quarantined(report)
    assert finding.evidence.startswith("since 20")
    assert "temperature_shutdown (drain): 93 C, limit 92 C" in finding.evidence
    assert finding.action == (
        f"3 clean runs release it (1 so far), or `coldstart health clear {BAD} --reason TEXT`"
    )


def test_three_clean_runs_release_a_drained_gpu(host: GpuHost) -> None:
    host.quick(HOT)
    assert [verdict(host.quick()) for _ in range(3)] == [Verdict.DRAIN, Verdict.DRAIN, Verdict.OK]
    assert blocking() == ()


def test_clean_runs_must_be_in_a_row(host: GpuHost) -> None:
    host.quick(HOT)
    host.quick()
    host.quick()
    host.quick(HOT)
    assert [verdict(host.quick()) for _ in range(3)] == [Verdict.DRAIN, Verdict.DRAIN, Verdict.OK]


def test_clean_runs_in_quick_succession_count_once(host: GpuHost) -> None:
    host.quick(HOT)
    interval = {"health__clean_interval_seconds": 3600.0}
    assert [verdict(host.quick(**interval)) for _ in range(4)] == [Verdict.DRAIN] * 4
    host.reboot()
    host.quick(**interval)
    host.reboot()
    assert verdict(host.quick(**interval)) is Verdict.OK


def test_a_run_that_could_not_look_proves_nothing(host: GpuHost) -> None:
    host.quick(HOT)
    for _ in range(2):
        host.quick("1 hang DeviceGetName", health__clean_runs=1)
    assert quarantined(host.quick(health__clean_runs=9)).verdict is Verdict.DRAIN


def test_a_pending_reset_that_is_gone_was_a_reset_and_releases(host: GpuHost) -> None:
    host.quick(RESET)
    assert host.quick().overall is Verdict.OK
    (record,) = json.loads(quarantine_path(state_folder()).read_text())["gpus"]
    assert [(repair["kind"], repair["helped"]) for repair in record["repairs"]] == [("reset", True)]


def test_a_complaint_that_mig_silences_is_no_reset(host: GpuHost) -> None:
    host.quick(RESET)
    assert verdict(host.quick("1 mig 1")) is Verdict.RESET
    host.reboot()
    assert verdict(host.quick("1 mig 1")) is Verdict.OK


def test_a_lost_gpu_that_is_back_waits_for_the_reboot(host: GpuHost) -> None:
    host.quick()
    host.quick(LOST)
    assert verdict(host.quick()) is Verdict.REBOOT
    host.reboot()
    assert verdict(host.quick()) is Verdict.OK
    assert blocking() == ()


def test_a_gpu_that_lost_its_uuid_is_known_from_the_last_boot(host: GpuHost) -> None:
    host.quick()
    host.quick(LOST)
    (blocked,) = blocking()
    name = blocked.name
    assert (name.uuid, name.serial, name.pci_bus_id) == (BAD, "1650000000002", "0000:1b:00.0")


def test_a_reset_that_did_not_help_becomes_a_reboot_and_then_a_replacement(host: GpuHost) -> None:
    assert verdict(host.quick(RESET)) is Verdict.RESET
    host.reboot()
    report = host.quick(RESET)
    assert verdict(report) is Verdict.REBOOT
    assert "row_remap_pending (reboot: a reboot did not help)" in quarantined(report).evidence
    host.reboot()
    report = host.quick(RESET)
    assert verdict(report) is Verdict.REPLACE
    assert "have it replaced" in (quarantined(report).action or "")


def test_the_same_fault_seen_again_in_the_same_boot_is_no_failed_repair(host: GpuHost) -> None:
    assert [verdict(host.quick(LOST), "index:1") for _ in range(4)] == [Verdict.REBOOT] * 4


def test_a_reset_shown_by_counters_that_fell_escalates_a_fault_that_is_there_again(host: GpuHost) -> None:
    assert verdict(host.quick(RESET, "1 corrected 500")) is Verdict.RESET
    assert verdict(host.quick(RESET, "1 corrected 600")) is Verdict.RESET
    assert verdict(host.quick(RESET, "1 corrected 3")) is Verdict.REBOOT


def test_another_fault_after_the_reboot_shows_too_that_the_reboot_did_not_help(host: GpuHost) -> None:
    host.quick("1 recovery 2")
    host.reboot()
    assert verdict(host.quick("1 uncorrected 1")) is Verdict.REPLACE


def test_two_repairs_of_one_kind_are_enough_even_when_each_helped_for_a_while(host: GpuHost) -> None:
    for _ in range(2):
        assert verdict(host.quick(RESET)) is Verdict.RESET
        assert verdict(host.quick()) is Verdict.OK
    report = host.quick(RESET)
    assert verdict(report) is Verdict.REPLACE
    assert "2 resets within 30 days did not keep it well" in quarantined(report).evidence


def test_the_limit_of_repairs_is_the_operators(host: GpuHost) -> None:
    for _ in range(5):
        assert verdict(host.quick(RESET, health__repair_limit=0)) is Verdict.RESET
        assert verdict(host.quick()) is Verdict.OK


def test_old_repairs_are_forgotten(host: GpuHost) -> None:
    for _ in range(2):
        host.quick(RESET)
        host.quick()
    path = quarantine_path(state_folder())
    document = json.loads(path.read_text())
    for repair in document["gpus"][0]["repairs"]:
        repair["at"] |= {"boot_id": "long ago", "utc": "2020-01-01T00:00:00+00:00"}
    path.write_text(json.dumps(document))
    assert verdict(host.quick(RESET)) is Verdict.RESET


def test_a_clock_that_went_backwards_neither_forgets_nor_releases(host: GpuHost) -> None:
    for _ in range(2):
        host.quick(RESET)
        host.quick()
    host.quick(HOT)
    path = quarantine_path(state_folder())
    document = json.loads(path.read_text())
    # all of it was written while the clock said 2099
    text = json.dumps(document).replace('"utc": "20', '"utc": "21')
    path.write_text(text)
    host.reboot()
    report = host.quick(RESET)
    assert verdict(report) is Verdict.REPLACE
    assert "temperature_shutdown" in quarantined(report).evidence


def test_a_replacement_never_expires(host: GpuHost) -> None:
    host.quick(REPLACE)
    for _ in range(4):
        host.reboot()
        assert verdict(host.quick()) is Verdict.REPLACE


def test_without_automatic_release_nothing_leaves_by_itself(host: GpuHost) -> None:
    host.quick(RESET)
    host.reboot()
    report = host.quick(health__auto_release=False)
    assert verdict(report) is Verdict.RESET
    assert "; only `coldstart health clear" in (quarantined(report).action or "")


def test_a_gpu_moved_to_another_slot_is_recognised(host: GpuHost) -> None:
    host.quick(REPLACE)
    host.reboot()
    report = host.quick("0 uuid 1", "1 uuid 0")
    assert verdict(report) is Verdict.REPLACE
    assert verdict(report, UUID.format(0)) is Verdict.OK
    (blocked,) = blocking()
    assert (blocked.name.uuid, blocked.name.pci_bus_id) == (BAD, "0000:1a:00.0")


def test_a_new_gpu_in_the_slot_of_a_bad_one_is_not_blamed_for_it(host: GpuHost) -> None:
    host.quick(REPLACE)
    host.reboot()
    assert host.quick("1 uuid 7").overall is Verdict.OK
    assert blocking() == ()
    host.reboot()
    assert verdict(host.quick()) is Verdict.REPLACE, "and it is still in quarantine when it comes back"


def test_a_gpu_that_is_gone_after_the_reboot_it_needed_is_to_be_replaced(host: GpuHost) -> None:
    host.quick()
    host.quick(LOST)
    host.reboot()
    report = host.quick("* count 1")
    assert [finding.reason for finding in report.findings] == ["gpu_missing"]
    host.reboot()
    assert verdict(host.quick()) is Verdict.REPLACE


def test_a_driver_that_hangs_before_the_quarantined_gpu_does_not_hide_it(host: GpuHost) -> None:
    host.quick(REPLACE)
    report = host.quick("0 hang DeviceGetName")
    assert quarantined(report).subject == BAD
    assert report.overall is Verdict.REPLACE


def test_a_rehearsal_reports_and_writes_nothing(host: GpuHost) -> None:
    host.driver.control("* count 2", RESET)
    report = checks.quick_check(configuration.load(), record=False)
    assert verdict(report) is Verdict.RESET
    assert not (state_folder() / "health").exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "\xff",
        "[" * 100_000,
        '{"schema": "coldstart.health.quarantine", "version": 1}',
        '{"schema": "coldstart.health.quarantine", "version": 1, "sequence": 1, "gpus": "none"}',
        '{"schema": "coldstart.health.quarantine", "version": 1, "sequence": -1, "gpus": []}',
        '{"schema": "coldstart.health.quarantine", "version": 0, "sequence": 1, "gpus": []}',
        '{"schema": "coldstart.health.inventory", "version": 1, "gpus": []}',
        '{"schema": "coldstart.health.quarantine", "version": 1, "sequence": 1, "gpus": [{}]}',
    ],
)
def test_a_damaged_state_is_unknown_kept_as_it_is_and_copied_aside_once(host: GpuHost, content: str) -> None:
    path = quarantine_path(state_folder())
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode("latin-1"))
    for _ in range(2):
        report = host.quick(RESET)
        (finding,) = [f for f in report.findings if f.reason == "quarantine_unreadable"]
        assert finding.verdict is Verdict.UNKNOWN
        assert str(path) in finding.evidence
        assert verdict(report) is Verdict.RESET, "what is found now counts all the same"
    assert path.read_bytes() == content.encode("latin-1")
    (copy,) = path.parent.glob("quarantine.json.damaged-*")
    assert copy.read_bytes() == path.read_bytes()
    with pytest.raises(QuarantineUnreadableError):
        blocking()


def test_every_value_of_the_wrong_type_is_damage(host: GpuHost) -> None:
    host.quick(RESET)
    path = quarantine_path(state_folder())
    whole = path.read_text()
    document = json.loads(whole)
    wrong: dict[str, object] = {
        "subject": None,
        "present": 1,
        "causes": {},
        "repairs": [1],
        "marks": {"a": "b"},
    }
    for key, value in wrong.items():
        broken = {**document, "gpus": [{**document["gpus"][0], key: value}]}
        path.write_text(json.dumps(broken))
        assert "quarantine_unreadable" in [finding.reason for finding in host.quick().findings], key


def test_a_state_of_a_newer_version_is_unknown_and_not_damaged(host: GpuHost) -> None:
    path = quarantine_path(state_folder())
    path.parent.mkdir(parents=True)
    path.write_text('{"schema": "coldstart.health.quarantine", "version": 2}')
    report = host.quick()
    assert report.overall is Verdict.UNKNOWN
    assert "newer than this coldstart" in report.summary
    assert [entry.name for entry in path.parent.glob("quarantine*")] == ["quarantine.json"]


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_something_else_in_the_place_of_the_state_is_unknown(host: GpuHost, kind: str) -> None:
    path = quarantine_path(state_folder())
    path.parent.mkdir(parents=True)
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert host.quick().overall is Verdict.UNKNOWN
