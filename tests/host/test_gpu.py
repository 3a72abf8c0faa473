"""NVML through the probe: whole, old, faulty, hung, dead, and beyond the reach of KILL."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_host.gpu import (
    EccCounts,
    Fabric,
    GpuFacts,
    NvLinkErrors,
    NvmlFault,
    RemappedRows,
    RowSpares,
    gpu_from_json,
    gpu_to_json,
    normal_pci_address,
)
from coldstart_host.gpu_probe import ProbeFailedError, read_gpus
from coldstart_host.pci import PciGpu, nvswitches, pci_gpus
from conftest import wait_until
from stand_ins.gpu_driver import GpuDriver, has_real_driver

NO_CLUSTER = "00000000-0000-0000-0000-000000000000"


def install(driver: GpuDriver, monkeypatch: pytest.MonkeyPatch) -> GpuDriver:
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    return driver


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuDriver:
    return install(GpuDriver(tmp_path), monkeypatch)


def test_eight_gpus_are_read_with_all_they_say(driver: GpuDriver) -> None:
    driver.control("3 uncorrected 2", "3 remap_pending 1", "3 processes 2", "3 recovery 1")
    reading = read_gpus()
    assert reading.complete
    assert (reading.driver_version, reading.cuda_version, reading.count) == ("570.86.15", "12.8", 8)
    assert len({gpu.uuid for gpu in reading.gpus}) == 8
    gpu = reading.gpus[3]
    assert gpu.pci_bus_id == "0000:1d:00.0"
    assert gpu.memory_total_bytes == 80 << 30
    assert gpu.ecc == EccCounts(0, 2, 0, 0)
    assert gpu.remapped_rows == RemappedRows(0, 0, pending=True, failure=False)
    assert gpu.process_ids == (4000, 4001)
    assert gpu.recovery_action == 1
    assert (gpu.nvlinks_active, gpu.nvlinks) == (18, 18)
    assert gpu.fabric == Fabric(3, 0, 0, 1, cluster_uuid=NO_CLUSTER, clique=0)
    assert gpu.faults == ()


def test_what_a_gpu_does_not_support_is_skipped_and_no_fault(driver: GpuDriver) -> None:
    driver.control(
        "* count 1", "0 error DeviceGetMigMode 3", "0 error DeviceGetEccMode 3", "0 recovery_code 3"
    )
    (gpu,) = read_gpus().gpus
    assert (gpu.mig_enabled, gpu.ecc_enabled, gpu.recovery_action) == (None, None, None)
    assert gpu.faults == ()
    assert {"nvmlDeviceGetMigMode", "nvmlDeviceGetEccMode", "field 230"} <= set(gpu.skipped)


def test_a_driver_without_the_newer_functions_is_read_through_the_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(GpuDriver(tmp_path, old=True), monkeypatch).control("* count 1", "0 processes 1")
    (gpu,) = read_gpus().gpus
    assert gpu.memory_total_bytes == 80 << 30
    assert gpu.clocks_events == 1
    assert gpu.process_ids == (4000,)
    assert (gpu.remapped_rows, gpu.sram, gpu.nvlinks, gpu.fabric, gpu.recovery_action) == (None,) * 5
    assert gpu.faults == ()


def test_an_older_fabric_structure_is_asked_when_the_newer_is_refused(driver: GpuDriver) -> None:
    driver.control("* count 1", "0 fabric_v2_only 1")
    (gpu,) = read_gpus().gpus
    assert gpu.fabric == Fabric(3, 0, 0, None, cluster_uuid=NO_CLUSTER, clique=0)


def test_a_lost_gpu_leaves_the_others_readable(driver: GpuDriver) -> None:
    driver.control("5 error DeviceGetHandleByIndex 15")
    reading = read_gpus()
    assert [gpu.readable for gpu in reading.gpus] == [True] * 5 + [False] + [True] * 2
    assert [fault.code for fault in reading.gpus[5].faults] == [15]
    assert reading.gpus[5].subject == "index:5"
    assert not reading.complete


def test_a_gpu_lost_halfway_is_not_asked_on(driver: GpuDriver) -> None:
    driver.control("* count 1", "0 error DeviceGetEccMode 15", "0 error DeviceGetMigMode 999")
    (gpu,) = read_gpus().gpus
    assert [fault.call for fault in gpu.faults] == ["nvmlDeviceGetEccMode"]


@pytest.mark.parametrize("code", [9, 18, 4, 999])
def test_a_driver_that_does_not_start_says_why(driver: GpuDriver, code: int) -> None:
    driver.control(f"* error Init {code}")
    reading = read_gpus()
    assert reading.fault is not None
    assert (reading.fault.call, reading.fault.code) == ("nvmlInit", code)
    assert not reading.complete


def test_without_a_driver_library_that_is_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    if has_real_driver():
        pytest.skip("this host has NVIDIA's driver")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    reading = read_gpus()
    assert reading.fault is not None
    assert reading.fault.code == 12


def test_a_hang_keeps_what_was_read_and_names_the_step(driver: GpuDriver) -> None:
    driver.control("3 hang DeviceGetTemperature")
    started = time.monotonic()
    reading = read_gpus(deadline_seconds=6)
    assert time.monotonic() - started < 30
    assert reading.hung == "GPU 3 in nvmlDeviceGetTemperature"
    assert [gpu.index for gpu in reading.gpus if gpu.hung is None] == [0, 1, 2, 4, 5, 6, 7]
    assert reading.gpus[3].uuid, "what came before the hang is kept"
    assert reading.count == 8


def test_a_driver_that_hangs_at_the_start_is_named_so(driver: GpuDriver) -> None:
    driver.control("* hang Init")
    assert read_gpus(deadline_seconds=5).hung == "start of NVML"


def test_a_driver_that_hangs_on_every_gpu_costs_its_deadline_once(driver: GpuDriver) -> None:
    driver.control("* count 16", "* hang DeviceGetEccMode")
    started = time.monotonic()
    reading = read_gpus(deadline_seconds=6)
    assert time.monotonic() - started < 60
    assert len([gpu for gpu in reading.gpus if gpu.hung == "nvmlDeviceGetEccMode"]) == 16


def test_a_driver_that_hangs_at_its_end_has_told_all_it_knows(driver: GpuDriver) -> None:
    driver.control("* hang Shutdown")
    reading = read_gpus(deadline_seconds=6)
    assert reading.hung == "shutdown of NVML"
    assert reading.complete


def test_one_of_sixteen_gpus_vanishes_half_way(driver: GpuDriver) -> None:
    driver.control("* count 16", "9 vanish DeviceGetEccMode")
    reading = read_gpus()
    assert [gpu.index for gpu in reading.gpus if gpu.faults] == [9]
    (fault,) = reading.gpus[9].faults
    assert (fault.call, fault.code) == ("nvmlDeviceGetEccMode", 15)
    assert reading.gpus[9].uuid


def test_a_library_that_kills_its_process_is_an_error_and_no_answer(driver: GpuDriver) -> None:
    driver.control("* crash Init")
    with pytest.raises(ProbeFailedError, match="status 134"):
        read_gpus()


def test_a_call_that_kills_its_process_costs_its_own_gpu_alone(driver: GpuDriver) -> None:
    driver.control("2 crash DeviceGetTemperature", "5 crash DeviceGetName")
    reading = read_gpus()
    assert [(gpu.index, gpu.hung) for gpu in reading.gpus if gpu.died] == [
        (2, "nvmlDeviceGetTemperature"),
        (5, "nvmlDeviceGetName"),
    ]
    assert all(gpu.readable for gpu in reading.gpus), "who it is was told before"
    assert [gpu.index for gpu in reading.gpus if gpu.hung is None] == [0, 1, 3, 4, 6, 7]
    assert (reading.count, len(reading.gpus), reading.died) == (8, 8, True)
    assert reading.hung == "GPU 2 in nvmlDeviceGetTemperature, GPU 5 in nvmlDeviceGetName"


def test_a_name_with_foreign_bytes_is_kept_readable(driver: GpuDriver) -> None:
    driver.control("* count 1", "0 foreign_name 1")
    assert read_gpus().gpus[0].name == "NVIDIA H\ufffd00"


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup v1 freezer: its processes ignore KILL until thawed, like one that waits for a hung driver."""
    group = Path("/sys/fs/cgroup/freezer") / f"coldstart-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup v1 freezer here: {error.strerror}")
    yield group
    pids = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    (group / "freezer.state").write_text("THAWED")
    for pid in pids:
        os.waitpid(pid, 0)
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the frozen probe to end")
    group.rmdir()


def test_a_probe_that_kill_cannot_end_does_not_hold_its_caller(driver: GpuDriver, freezer: Path) -> None:
    driver.control(f"2 freeze DeviceGetName {freezer}")
    started = time.monotonic()
    reading = read_gpus(deadline_seconds=5)
    assert time.monotonic() - started < 60
    assert reading.hung
    assert (freezer / "cgroup.procs").read_text().strip(), "the probe was frozen and is still there"


def test_facts_survive_json() -> None:
    facts = GpuFacts(
        index=1,
        uuid="GPU-1",
        ecc=EccCounts(1, 2, 3, 4),
        process_ids=(7,),
        fabric=Fabric(3, 0, 0, None),
        nvlink_errors=(NvLinkErrors(3, 1, 0, 0, 0, None),),
        row_spares=RowSpares(1, 2, 3, 4, 5),
        hung="call",
        skipped=("a",),
        faults=(NvmlFault("call", 999, "text"),),
    )
    assert gpu_from_json(json.loads(json.dumps(gpu_to_json(facts)))) == facts


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("00000000:0F:00.0", "0000:0f:00.0"),
        ("00000009:01:00.0", "0009:01:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("weird", "weird"),
    ],
)
def test_bus_addresses_have_one_form(given: str, normal: str) -> None:
    assert normal_pci_address(given) == normal


def pci_device(bus: Path, address: str, vendor: str, kind: str, driver: str | None) -> None:
    device = bus / address
    device.mkdir(parents=True)
    for name, value in {"vendor": vendor, "class": kind, "device": "0x2330"}.items():
        (device / name).write_text(value + "\n")
    if driver:
        (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


def test_only_nvidia_display_devices_count_as_gpus(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:02:00.0", "0x10de", "0x030200", "nvidia")
    pci_device(tmp_path, "0000:01:00.0", "0x10de", "0x030000", None)
    pci_device(tmp_path, "0000:01:00.1", "0x10de", "0x040300", "snd_hda_intel")
    pci_device(tmp_path, "0000:03:00.0", "0x8086", "0x030000", "i915")
    pci_device(tmp_path, "0000:04:00.0", "0x10de", "0x030200", "vfio-pci")
    found = pci_gpus(tmp_path)
    assert found[:2] == (
        PciGpu("0000:01:00.0", "0x2330", None),
        PciGpu("0000:02:00.0", "0x2330", "nvidia"),
    )
    assert [gpu.ours for gpu in found] == [True, True, False]


def test_nvswitches_are_the_bridges_among_nvidias_devices(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:05:00.0", "0x10de", "0x068000", "nvidia-nvswitch")
    pci_device(tmp_path, "0000:06:00.0", "0x15b3", "0x068000", None)
    pci_device(tmp_path, "0000:07:00.0", "0x10de", "0x030200", "nvidia")
    assert [switch.address for switch in nvswitches(tmp_path)] == ["0000:05:00.0"]


def test_a_host_without_a_pci_bus_has_no_gpus(tmp_path: Path) -> None:
    assert pci_gpus(tmp_path / "absent") == ()


@pytest.mark.gpu
def test_the_real_driver_answers_for_every_gpu() -> None:
    reading = read_gpus(deadline_seconds=60)
    assert reading.complete
    assert reading.count
    assert all(gpu.name and gpu.pci_bus_id for gpu in reading.gpus)
