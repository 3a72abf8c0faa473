"""`coldstart health quick` as an operator, a unit and a script see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Coldstart, Result
from stand_ins.gpu_driver import Dcgmi, GpuDriver, has_real_driver

# the figures of the machine that runs the tests must not decide them
GPU_SOURCES = {"nvml", "inventory", "fabric", "dcgm", "deep", "cuda"}
UNLIMITED = {"COLDSTART_HEALTH_WARN_PERCENT": "1000", "COLDSTART_HEALTH_FAIL_PERCENT": "1000"}


@pytest.fixture
def driver(tmp_path: Path) -> GpuDriver:
    return GpuDriver(tmp_path)


def quick(coldstart: Coldstart, driver: GpuDriver | None, *arguments: str, **environment: str) -> Result:
    given = UNLIMITED | (driver.environment if driver else {"LD_LIBRARY_PATH": ""}) | environment
    return coldstart("health", "quick", *arguments, environment=given)


def document(result: Result) -> dict[str, Any]:
    content = json.loads(result.stdout)
    assert (content["schema"], content["version"]) == ("coldstart.health.quick", 1)
    assert isinstance(content, dict)
    return content


def reasons(content: dict[str, Any]) -> list[str]:
    return [finding["reason"] for finding in content["findings"] if finding["source"] in GPU_SOURCES]


def test_a_host_without_gpus_is_said_to_be_one(coldstart: Coldstart) -> None:
    if has_real_driver():
        pytest.skip("this host has NVIDIA's driver")
    result = quick(coldstart, None)
    assert result.status == 0, result.stderr
    assert "no GPU on this host, and none is expected" in result.stdout
    assert "host  CPU" in result.stdout


def test_every_gpu_has_a_line_that_begins_with_its_verdict(coldstart: Coldstart, driver: GpuDriver) -> None:
    driver.control("2 remap_pending 1", "4 persistence 0")
    result = quick(coldstart, driver)
    assert result.status == 3
    lines = [line.split() for line in result.stdout.splitlines() if " GPU " in line]
    assert [words[0] for words in lines] == ["ok", "ok", "reset", "ok", "degraded", "ok", "ok", "ok"]
    assert "GPU-00000000-0000-0000-0000-000000000002" in lines[2]
    assert "row_remap_pending: a row remapping waits for a reset; drain it, then" in result.stdout
    assert "coldstart: error: nothing may be placed on this host: reset: row_remap_pending" in result.stderr
    assert "hint: drain it, then `nvidia-smi --gpu-reset -i GPU-" in result.stderr


def test_degraded_may_serve_and_warns(coldstart: Coldstart, driver: GpuDriver) -> None:
    driver.control("* persistence 0")
    result = quick(coldstart, driver)
    assert result.status == 0
    assert "coldstart: warning: degraded, and may serve" in result.stderr


def test_the_document_holds_verdicts_facts_and_figures(coldstart: Coldstart, driver: GpuDriver) -> None:
    driver.control("* count 2", "1 uncorrected 4")
    result = quick(coldstart, driver, "--json", "--expect-gpus", "2")
    assert result.status == 3
    content = document(result)
    assert (content["verdict"], content["may_serve"]) == ("reset", False)
    assert reasons(content) == ["ecc_uncorrectable"]
    assert content["expected_gpus"] == {"count": 2, "source": "command line", "explicit": True}
    assert [gpu["verdict"] for gpu in content["gpus"]] == ["ok", "reset"]
    assert content["gpus"][1]["facts"]["ecc"]["volatile_uncorrected"] == 4
    assert content["driver_version"] == "570.86.15"
    assert content["host"]["pressure"]["disks"]
    assert all(check["ran"] for check in content["checks"])


def test_seven_of_eight_gpus_are_not_enough(coldstart: Coldstart, driver: GpuDriver) -> None:
    assert quick(coldstart, driver).status == 0
    driver.control("* count 7")
    result = quick(coldstart, driver, "--json")
    assert result.status == 3
    assert reasons(document(result)) == ["gpu_missing"]


def test_the_configured_count_is_the_expectation(coldstart: Coldstart, driver: GpuDriver) -> None:
    result = quick(coldstart, driver, "--json", COLDSTART_HEALTH_EXPECT_GPUS="9")
    assert result.status == 3
    assert document(result)["expected_gpus"]["source"] == "environment COLDSTART_HEALTH_EXPECT_GPUS"


def test_a_hung_driver_answers_unknown(coldstart: Coldstart, driver: GpuDriver) -> None:
    driver.control("* hang DeviceGetCount")
    result = quick(coldstart, driver, "--json")
    assert result.status == 3
    content = document(result)
    assert reasons(content) == ["probe_hang"]
    assert content["duration_seconds"] < 5


def test_active_without_dcgm_copies_a_pattern_to_every_gpu_and_back(
    coldstart: Coldstart, driver: GpuDriver
) -> None:
    # a bus that the memory of this machine, which plays the GPU's, can keep up with
    slow_bus = "* pcie_generation_max 1"
    without = {"COLDSTART_PROGRAMS_DCGMI": "no-such-dcgmi"}
    driver.control("* count 2", slow_bus)
    result = quick(coldstart, driver, "--active", "--json", **without)
    assert result.status == 0, result.stderr
    content = document(result)
    assert reasons(content) == []
    assert {check["name"] for check in content["checks"]} >= {"nvml", "cuda", "pressure"}
    assert all(copy["to_device_bytes_per_second"] > 0 for copy in content["copies"])
    driver.control("* count 2", slow_bus, "1 cuda_wrong_bytes 1")
    result = quick(coldstart, driver, "--active", "--json", **without)
    assert result.status == 3
    assert reasons(document(result)) == ["copy_mismatch"]


def test_active_with_neither_dcgm_nor_cuda_is_unavailable_with_the_remedy(
    coldstart: Coldstart, driver: GpuDriver, tmp_path: Path
) -> None:
    if has_real_driver():
        pytest.skip("this host has NVIDIA's driver")
    only_nvml = tmp_path / "only-nvml"
    only_nvml.mkdir()
    library = Path(driver.environment["LD_LIBRARY_PATH"]) / "libnvidia-ml.so.1"
    (only_nvml / library.name).symlink_to(library)
    without = {"COLDSTART_PROGRAMS_DCGMI": "no-such-dcgmi", "LD_LIBRARY_PATH": str(only_nvml)}
    result = quick(coldstart, driver, "--active", **without)
    assert result.status == 69
    assert "cuda_not_checked" in result.stdout
    assert "coldstart: error: cannot use CUDA: libcuda.so.1" in result.stderr


def test_a_sick_gpu_outweighs_an_absent_dcgm(coldstart: Coldstart, driver: GpuDriver) -> None:
    driver.control("0 remap_failure 1")
    result = quick(coldstart, driver, "--active", COLDSTART_PROGRAMS_DCGMI="no-such-dcgmi")
    assert result.status == 3
    assert "replace: row_remap_failure" in result.stderr


def test_active_that_hangs_ends_at_its_deadline(
    coldstart: Coldstart, driver: GpuDriver, tmp_path: Path
) -> None:
    result = quick(coldstart, driver, "--active", "--active-timeout", "1", **Dcgmi(tmp_path).hangs())
    assert result.status == 3
    assert "dcgmi diag -r 1: no end after 1 s, killed" in result.stdout


def test_thresholds_come_from_the_configuration(coldstart: Coldstart, driver: GpuDriver) -> None:
    result = quick(
        coldstart,
        driver,
        "--json",
        COLDSTART_HEALTH_WARN_PERCENT="0.0001",
        COLDSTART_HEALTH_FAIL_PERCENT="0.0001",
    )
    assert result.status == 3
    assert {"memory_short", "disk_full"} <= {item["reason"] for item in document(result)["findings"]}


def test_a_wrong_threshold_is_a_configuration_error(coldstart: Coldstart, driver: GpuDriver) -> None:
    result = quick(coldstart, driver, COLDSTART_HEALTH_WARN_PERCENT="2000")
    assert result.status == 78
    assert "health.warn_percent" in result.stderr


def test_a_negative_count_is_refused(coldstart: Coldstart, driver: GpuDriver) -> None:
    assert quick(coldstart, driver, "--expect-gpus", "-1").status == 2
