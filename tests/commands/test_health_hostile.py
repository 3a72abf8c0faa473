"""`coldstart health quick` where the host itself is in trouble: full, read-only, forbidden, left behind."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import Coldstart, Result
from stand_ins.gpu_driver import GpuDriver

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")


@pytest.fixture
def driver(tmp_path: Path) -> GpuDriver:
    driver = GpuDriver(tmp_path)
    driver.control("* count 2")
    return driver


def quick(coldstart: Coldstart, driver: GpuDriver, *arguments: str, **environment: str) -> Result:
    return coldstart("health", "quick", *arguments, environment=driver.environment | environment)


def findings(result: Result) -> dict[str, dict[str, Any]]:
    assert "Traceback" not in result.stderr
    return {finding["reason"]: finding for finding in json.loads(result.stdout)["findings"]}


@contextmanager
def small_disk(folder: Path, options: str = "size=1M") -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"{options},mode=0755", "none", folder], check=True, timeout=30
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True, timeout=60)


def folders(folder: Path) -> dict[str, str]:
    return {"COLDSTART_STATE_DIR": str(folder / "state"), "COLDSTART_RUN_DIR": str(folder / "run")}


def test_a_full_disk_takes_the_host_out_and_costs_no_answer(
    coldstart: Coldstart, driver: GpuDriver, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        with pytest.raises(OSError, match="No space"):
            (disk / "ballast").write_bytes(bytes(2 << 20))
        result = quick(coldstart, driver, "--json", **folders(disk))
        found = findings(result)
    assert result.status == 3
    assert found["disk_full"]["verdict"] == "drain"
    assert found["inventory_not_recorded"]["verdict"] == "ok"
    assert [gpu["verdict"] for gpu in json.loads(result.stdout)["gpus"]] == ["ok", "ok"]


def test_a_read_only_state_folder_warns_and_costs_no_answer(
    coldstart: Coldstart, driver: GpuDriver, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "size=1M,ro") as disk:
        result = quick(coldstart, driver, "--json", **folders(disk), COLDSTART_HEALTH_FAIL_PERCENT="1000")
        found = findings(result)
    assert found["disk_read_only"]["verdict"] == "degraded"
    assert {"inventory_not_recorded", "sample_not_recorded"} <= found.keys()
    assert result.status == 0, result.stderr


def test_a_user_without_permission_gets_no_ok(coldstart: Coldstart, driver: GpuDriver) -> None:
    driver.control("* count 2", "* error DeviceGetHandleByIndex 4")
    result = quick(coldstart, driver, "--json")
    assert result.status == 3
    assert findings(result)["nvml_no_permission"]["verdict"] == "unknown"


def test_a_library_that_is_newer_than_its_kernel_module_asks_for_the_reboot(
    coldstart: Coldstart, driver: GpuDriver
) -> None:
    driver.control("* error Init 18")
    result = quick(coldstart, driver, "--json", "--active")
    assert result.status == 3
    assert findings(result)["driver_version_mismatch"]["verdict"] == "reboot"


def test_every_gpu_that_hangs_costs_one_deadline_together(coldstart: Coldstart, driver: GpuDriver) -> None:
    driver.control("* count 8", "* hang DeviceGetTemperature")
    result = quick(coldstart, driver, "--json")
    assert result.status == 3
    document = json.loads(result.stdout)
    assert document["duration_seconds"] < 5
    assert [gpu["verdict"] for gpu in document["gpus"]] == ["unknown"] * 8
    hung = [finding for finding in document["findings"] if finding["reason"] == "probe_hang"]
    assert len(hung) == 8
    assert all("nvmlDeviceGetTemperature" in finding["evidence"] for finding in hung)
