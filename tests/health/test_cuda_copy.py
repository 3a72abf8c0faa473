"""The copy to every GPU and back, through the stand-in of the CUDA library, and what its answers mean."""

from __future__ import annotations

import time

import pytest

from coldstart_cli.errors import UnavailableError
from coldstart_health.cuda_checks import copy_findings
from coldstart_health.verdict import Verdict
from coldstart_host.cuda_copy import CopyProbeFailedError, CopyResult, copy_to_gpus
from coldstart_host.gpu import GpuFacts
from stand_ins.gpu_driver import GpuDriver, has_real_driver

BUSES = ("0000:1a:00.0", "0000:1b:00.0")


def gpu(index: int, **more: object) -> GpuFacts:
    return GpuFacts(index, uuid=f"GPU-{index}", pci_bus_id=BUSES[index], **more)  # type: ignore[arg-type]


def copies(driver: GpuDriver, *lines: str, deadline_seconds: float = 60) -> tuple[CopyResult, ...]:
    driver.control("* count 2", *lines)
    return copy_to_gpus(BUSES, deadline_seconds=deadline_seconds, size_bytes=1 << 20)


def found(results: tuple[CopyResult, ...], **more: object) -> list[tuple[str, Verdict, str]]:
    findings = list(copy_findings(results, [gpu(0), gpu(1, **more)]))
    assert all(finding.evidence and finding.action and "{gpu}" not in finding.action for finding in findings)
    return [(finding.reason, finding.verdict, finding.subject) for finding in findings]


def test_a_pattern_comes_back_from_every_gpu_and_its_speed_is_told(driver: GpuDriver) -> None:
    results = copies(driver)
    assert [result.pci_bus_id for result in results] == list(BUSES)
    assert all(result.passed for result in results)
    assert all((result.to_device_bytes_per_second or 0) > 1e6 for result in results)
    assert found(results) == []


def test_wrong_bytes_take_their_gpu_out(driver: GpuDriver) -> None:
    results = copies(driver, "1 cuda_wrong_bytes 5")
    assert [result.wrong_bytes for result in results] == [0, 15]
    assert found(results) == [("copy_mismatch", Verdict.DRAIN, "GPU-1")]


@pytest.mark.parametrize(
    ("line", "reason", "verdict"),
    [
        ("error cuMemAlloc_v2 2", "cuda_out_of_memory", Verdict.UNKNOWN),
        ("error cuDevicePrimaryCtxRetain 46", "gpu_busy", Verdict.UNKNOWN),
        ("error cuDevicePrimaryCtxRetain 802", "fabric_not_started", Verdict.DRAIN),
        ("error cuMemcpyHtoD_v2 214", "ecc_uncorrectable", Verdict.RESET),
        ("error cuMemcpyDtoH_v2 719", "cuda_context_broken", Verdict.RESET),
        ("error cuDeviceGetByPCIBusId 101", "cuda_device_missing", Verdict.DRAIN),
        ("error cuCtxSynchronize 12345", "cuda_error", Verdict.UNKNOWN),
    ],
)
def test_an_error_of_cuda_has_its_verdict_and_stays_with_its_gpu(
    driver: GpuDriver, line: str, reason: str, verdict: Verdict
) -> None:
    assert found(copies(driver, f"1 {line}")) == [(reason, verdict, "GPU-1")]


@pytest.mark.parametrize(
    ("line", "reason", "verdict"),
    [
        ("* cuda_devices 0", "cuda_device_missing", Verdict.DRAIN),
        ("* error cuInit 803", "driver_version_mismatch", Verdict.REBOOT),
        ("* error cuInit 999", "cuda_error", Verdict.UNKNOWN),
    ],
)
def test_a_cuda_that_does_not_start_concerns_every_gpu(
    driver: GpuDriver, line: str, reason: str, verdict: Verdict
) -> None:
    assert found(copies(driver, line)) == [(reason, verdict, "GPU-0"), (reason, verdict, "GPU-1")]


def test_memory_that_the_gpus_own_processes_hold_is_no_fault(driver: GpuDriver) -> None:
    results = copies(driver, "1 error cuMemAlloc_v2 2")
    assert found(results, process_ids=(4000,)) == [("copy_skipped", Verdict.OK, "GPU-1")]


@pytest.mark.parametrize("scope", ["1", "*"])
def test_a_hang_costs_its_deadline_once_and_names_the_call(driver: GpuDriver, scope: str) -> None:
    started = time.monotonic()
    results = copies(driver, f"{scope} hang cuMemcpyHtoD_v2", deadline_seconds=8)
    assert time.monotonic() - started < 15
    hung = [result for result in results if result.hung]
    assert {result.call for result in hung} == {"cuMemcpyHtoD"}
    assert len(hung) == (2 if scope == "*" else 1)
    assert found(tuple(hung))[-1] == ("probe_hang", Verdict.UNKNOWN, "GPU-1")


def test_a_start_that_hangs_is_named(driver: GpuDriver) -> None:
    results = copies(driver, "* hang cuInit", deadline_seconds=5)
    assert [(result.hung, result.call) for result in results] == [(True, "cuInit")] * 2


def test_a_library_that_kills_its_process_is_an_error_and_no_answer(driver: GpuDriver) -> None:
    with pytest.raises(CopyProbeFailedError, match="status 134"):
        copies(driver, "1 crash cuMemAlloc_v2")


def test_without_the_library_there_is_no_answer_either(monkeypatch: pytest.MonkeyPatch) -> None:
    if has_real_driver():
        pytest.skip("this host has NVIDIA's driver")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    with pytest.raises(UnavailableError, match=r"libcuda\.so\.1"):
        copy_to_gpus(BUSES, deadline_seconds=30)


def test_a_copy_far_below_what_the_bus_carries_warns() -> None:
    slow = CopyResult(BUSES[1], to_device_bytes_per_second=3e9, to_host_bytes_per_second=50e9)
    link = {"pcie_generation_max": 5, "pcie_width_max": 16}
    assert found((slow,), **link) == [("copy_bandwidth_low", Verdict.DEGRADED, "GPU-1")]
    assert found((slow,), pcie_generation_max=2, pcie_width_max=16) == []
    assert found((slow,)) == []
