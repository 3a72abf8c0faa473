"""A GPU that gets worse than it was is degraded before it is dead; what it always did is no fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coldstart_cli import config as configuration
from coldstart_health.audit import this_person
from coldstart_health.baseline import baseline_path
from coldstart_health.clearing import forget_baseline
from coldstart_health.deep import deep_check
from coldstart_health.drift import ENOUGH
from coldstart_health.measures import figures
from coldstart_health.verdict import Finding, HealthReport, Verdict
from conftest import shared_data
from stand_ins.gpu_driver import Dcgmi
from stand_ins.gpu_host import GpuHost, state_folder

BAD = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = "GPU-00000000-0000-0000-0000-000000000000"
# under full load, as it always was
LOAD = ("1 utilisation 99", "1 power 690000", "1 temperature 62")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    return GpuHost(tmp_path, monkeypatch)


def drift(report: HealthReport) -> dict[str, Finding]:
    return {finding.reason: finding for finding in report.findings if finding.source == "baseline"}


def live(host: GpuHost, *faults: str, hours: int = ENOUGH) -> None:
    """Some hours in this state, with a check each."""
    for _ in range(hours):
        host.seconds += 3601
        assert drift(host.quick(*faults)) == {}


def test_what_a_gpu_always_did_is_usual(host: GpuHost) -> None:
    live(host, "* nvlinks_active 12", "* pcie_width_max 8", hours=8)


def test_fewer_links_than_ever_before_are_degraded_on_every_check(host: GpuHost) -> None:
    live(host)
    for _ in range(3):
        host.seconds += 3601
        report = host.quick("* nvlinks_active 16")
        assert {finding.subject for finding in drift(report).values()} <= {BAD, OTHER}
        assert drift(report)["nvlinks_fewer"].verdict is Verdict.DEGRADED
        assert "active NVLinks: 16, usual 18 (median of" in drift(report)["nvlinks_fewer"].evidence
        assert report.may_serve
    assert drift(host.quick()) == {}


def test_the_fault_never_becomes_the_usual(host: GpuHost) -> None:
    live(host)
    for _ in range(3 * ENOUGH):
        host.seconds += 3601
        report = host.quick("1 pcie_width_max 8")
    assert "possible PCIe width: 8, usual 16" in drift(report)["pcie_width_drift"].evidence


def test_a_few_checks_are_not_yet_usual(host: GpuHost) -> None:
    live(host, hours=ENOUGH - 1)
    assert drift(host.quick("1 nvlinks_active 16")) == {}


def test_many_checks_in_a_row_are_one_sample(host: GpuHost) -> None:
    for _ in range(3 * ENOUGH):
        host.quick()
    assert drift(host.quick("* nvlinks_active 16")) == {}


def test_heat_counts_under_full_load_alone(host: GpuHost) -> None:
    live(host, *LOAD)
    assert drift(host.quick(*LOAD, "1 temperature 70")) == {}
    report = host.quick(*LOAD, "1 temperature 75")
    assert "temperature under full load: 75 C, usual 62 C" in drift(report)["temperature_drift"].evidence
    host.seconds += 7200
    assert drift(host.quick("1 temperature 75")) == {}, "idle, and the last load is long ago"


def test_a_clock_that_scatters_little_may_still_move_a_little(host: GpuHost) -> None:
    live(host, *LOAD)
    assert drift(host.quick(*LOAD, "1 sm_clock 1900")) == {}
    assert "clock_drift" in drift(host.quick(*LOAD, "1 sm_clock 1500"))


def test_a_value_that_always_scattered_may_go_on_scattering(host: GpuHost) -> None:
    for temperature in (50, 70, 55, 65, 60, 52, 68):
        host.seconds += 3601
        host.quick(*LOAD, f"1 temperature {temperature}")
    assert drift(host.quick(*LOAD, "1 temperature 82")) == {}


def test_corrected_errors_count_by_their_pace(host: GpuHost) -> None:
    host.quick("1 corrected_aggregate 5000000")
    host.seconds += 3600
    assert drift(host.quick("1 corrected_aggregate 5000100")) == {}
    host.seconds += 3600
    report = host.quick("1 corrected_aggregate 5100100")
    assert drift(report)["ecc_rate_high"].subject == BAD
    assert "corrected ECC errors an hour" in drift(report)["ecc_rate_high"].evidence
    assert "ecc_rate_high" in drift(host.quick("1 corrected_aggregate 5100100")), "a minute later too"
    host.seconds += 7200
    assert drift(host.quick("1 corrected_aggregate 5100100")) == {}


def test_counters_that_a_reboot_or_a_reset_set_back_are_no_pace(host: GpuHost) -> None:
    host.quick("1 pcie_replays 100000")
    host.seconds += 3600
    host.quick("1 pcie_replays 100000")
    host.seconds += 3600
    assert drift(host.quick("1 pcie_replays 3")) == {}
    host.reboot()
    host.seconds += 7200
    assert drift(host.quick("1 pcie_replays 90000")) == {}
    host.seconds += 3600
    assert drift(host.quick("1 pcie_replays 90300")) == {}
    host.seconds += 3600
    assert "pcie_replay_rate_high" in drift(host.quick("1 pcie_replays 99000"))


def test_uncorrectable_errors_that_add_up_within_a_month_are_degraded(host: GpuHost) -> None:
    host.quick("1 uncorrected_aggregate 7")
    host.reboot()
    assert drift(host.quick("1 uncorrected_aggregate 9")) == {}
    host.reboot()
    report = host.quick("1 uncorrected_aggregate 11", "1 remap_uncorrectable 3")
    assert "4 more than on 2026-11-01" in drift(report)["ecc_uncorrected_rising"].evidence


def test_a_new_gpu_in_the_slot_starts_anew(host: GpuHost) -> None:
    live(host)
    host.reboot()
    assert drift(host.quick("1 uuid 7", "1 nvlinks_active 16", "0 nvlinks_active 18")) == {}


def test_a_sick_gpu_teaches_nothing(host: GpuHost) -> None:
    live(host, "1 remap_failure 1", "1 nvlinks_active 12", "0 nvlinks_active 12")
    (gpu,) = json.loads(baseline_path(state_folder()).read_text())["gpus"]
    assert gpu["uuid"] == OTHER


def test_the_baseline_is_bounded(host: GpuHost) -> None:
    live(host, hours=40)
    size = baseline_path(state_folder()).stat().st_size
    live(host, hours=20)
    assert baseline_path(state_folder()).stat().st_size < 1.05 * size
    assert size < 150_000


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"schema": "coldstart.health.baseline", "version": 9}', "NaN"]
)
def test_a_damaged_baseline_is_put_aside_said_and_begun_anew(host: GpuHost, content: str) -> None:
    path = baseline_path(state_folder())
    path.parent.mkdir(parents=True)
    path.write_text(content)
    report = host.quick()
    assert report.overall is Verdict.OK
    note = drift(report)["baseline_damaged"]
    assert f"put aside as {path}.damaged" in note.evidence
    assert path.with_name("baseline.json.damaged").read_text() == content
    assert drift(host.quick()) == {}


def test_a_person_can_say_that_it_is_to_be_so(host: GpuHost) -> None:
    live(host)
    assert "pcie_width_drift" in drift(host.quick("1 pcie_width_max 8"))
    forget_baseline(configuration.load(), "1", why="moved to an x8 slot", by=this_person())
    live(host, "1 pcie_width_max 8")


# --- what DCGM measures ---


def diagnosis(folder: Path, bandwidth: float) -> Path:
    """DCGM's real answer on a T4, with another bandwidth, and as a level that ran whole."""
    text = shared_data("health/dcgmi-real/v3.1-r3-t4-pass.json").read_text()
    path = folder / "diagnosis.json"
    path.write_text(text.replace("13.15 GB/s", f"{bandwidth:.2f} GB/s"))
    return path


def test_a_bus_that_became_slower_is_degraded_until_the_next_diagnosis(
    host: GpuHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcgmi = Dcgmi(tmp_path)

    def deep(bandwidth: float) -> HealthReport:
        for name, value in dcgmi.prints(diagnosis(tmp_path, bandwidth)).items():
            monkeypatch.setenv(name, value)
        host.driver.control("* count 1")
        host.seconds += 7 * 86400
        return deep_check(configuration.load())

    for week in range(ENOUGH):
        assert drift(deep(13.1 + week / 100)) == {}
    report = deep(6.4)
    assert report.overall is Verdict.DEGRADED
    evidence = drift(report)["pcie_bandwidth_drift"].evidence
    assert "bandwidth from the GPU (DCGM): 6.4 GB/s, usual 13.12 GB/s (median of 5" in evidence
    host.reboot()
    assert "pcie_bandwidth_drift" in drift(host.quick("* count 1"))
    assert drift(deep(13.0)) == {}
    assert drift(host.quick("* count 1")) == {}


def test_a_new_driver_is_named_and_in_time_has_its_own_usual(
    host: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(host, *LOAD)
    host.driver_version = "999.1"
    report = host.quick(*LOAD, "1 sm_clock 1500")
    assert "the driver was 570.86.15 then, and is 999.1" in drift(report)["clock_drift"].evidence
    for _ in range(ENOUGH):
        host.seconds += 3601
        report = host.quick(*LOAD, "1 sm_clock 1500")
    host.seconds += 3601
    assert drift(host.quick(*LOAD, "1 sm_clock 1500")) == {}
    assert "clock_drift" in drift(host.quick(*LOAD, "1 sm_clock 1200"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("GPU to Host bandwidth:\t\t55.10 GB/s", [(None, "gpu_to_host_bandwidth", 55.1)]),
        (
            "GPU 0 GPU 0 bidirectional bandwidth:\t22.48 GB/s, GPU 3 GPU to Host latency:\t\t2.309 us",
            [(0, "bidirectional_bandwidth", 22.48), (3, "gpu_to_host_latency", 2.309)],
        ),
        ("GPU 0 calculated at approximately 11103.02 gigaflops during", [(0, "gigaflops", 11103.02)]),
        ("GPU 0 relative stress level\t3184", [(0, "stress_level", 3184.0)]),
        ("GPU 0 power average:\t70 W", [(0, "power_average", 70.0)]),
        ("GPU 0 Allocated 15206918958 bytes (97.3%)", []),
    ],
)
def test_figures_are_found_in_dcgms_texts(text: str, found: list[tuple[int | None, str, float]]) -> None:
    assert list(figures(text)) == found
