"""`coldstart health deep`: DCGM's answer translated, and the cases in which it does not ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.files import exclusive_lock
from conftest import Coldstart, Result, shared_data
from stand_ins.gpu_driver import Dcgmi, GpuDriver

ISOLATED = "health/dcgmi-handwritten/v4.1-isolate-one-of-two.json"


@pytest.fixture
def driver(tmp_path: Path) -> GpuDriver:
    driver = GpuDriver(tmp_path)
    driver.control("* count 2")
    return driver


@pytest.fixture
def dcgmi(tmp_path: Path) -> Dcgmi:
    return Dcgmi(tmp_path)


def deep(coldstart: Coldstart, environment: dict[str, str], *arguments: str) -> Result:
    return coldstart("health", "deep", *arguments, environment=environment)


def document(result: Result) -> dict[str, Any]:
    content = json.loads(result.stdout)
    assert (content["schema"], content["version"]) == ("coldstart.health.deep", 1)
    assert isinstance(content, dict)
    return content


def test_an_isolated_gpu_is_named_by_uuid_and_the_other_stays_ok(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    environment = driver.environment | dcgmi.prints(shared_data(ISOLATED), status=205)
    result = deep(coldstart, environment, "--json")
    assert result.status == 3, result.stderr
    content = document(result)
    assert [(gpu["subject"][-1], gpu["verdict"]) for gpu in content["gpus"]] == [("0", "ok"), ("1", "drain")]
    assert content["dcgm_version"] == "4.1.1"
    assert [finding["reason"] for finding in content["findings"]] == ["faulty_memory"]
    assert dcgmi.calls == ["diag -r 3 -j"]


def test_people_read_one_line_per_gpu_with_evidence_and_action(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    environment = driver.environment | dcgmi.prints(shared_data(ISOLATED), status=205)
    result = deep(coldstart, environment)
    assert result.status == 3
    assert "drain     GPU 1  NVIDIA H100" in result.stdout
    assert "faulty_memory: memory: Found 2 faulty memory elements on GPU 1" in result.stdout
    assert "coldstart: error: nothing may be placed on this host: drain: faulty_memory" in result.stderr


def test_persistence_off_alone_warns_although_dcgmi_ends_with_226(coldstart: Coldstart, dcgmi: Dcgmi) -> None:
    output = shared_data("health/dcgmi-real/v4.2.3-r1-gb10-persistence-off.json")
    result = deep(coldstart, dcgmi.prints(output, status=226) | {"LD_LIBRARY_PATH": ""}, "--level", "1")
    assert result.status == 0, result.stderr
    assert "coldstart: warning: degraded, and may serve: degraded: persistence_off" in result.stderr


def test_a_run_in_which_everything_was_skipped_is_unknown_although_dcgmi_ends_with_0(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    output = shared_data("health/dcgmi-handwritten/v4.4-all-plugins-skip-exit-0.json")
    result = deep(coldstart, driver.environment | dcgmi.prints(output))
    assert result.status == 3
    assert "nothing_ran" in result.stdout


def test_the_real_pass_of_a_t4_is_ok(coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi) -> None:
    driver.control("* count 1")
    output = shared_data("health/dcgmi-real/v3.1-r3-t4-pass.json")
    result = deep(coldstart, driver.environment | dcgmi.prints(output), "--json")
    assert result.status == 0, result.stderr
    content = document(result)
    assert content["verdict"] == "ok"
    assert [check["name"] for check in content["checks"]] == ["nvml", "dcgm"]


def test_an_absent_dcgm_is_unavailable_with_the_remedy(coldstart: Coldstart) -> None:
    result = deep(coldstart, {"COLDSTART_PROGRAMS_DCGMI": "no-such-dcgmi"})
    assert result.status == 69
    assert result.stdout == ""
    assert "coldstart: error: program is not installed: no-such-dcgmi" in result.stderr
    assert "hint: install NVIDIA DCGM" in result.stderr


def test_a_gpu_in_use_is_not_diagnosed(coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi) -> None:
    driver.control("* count 2", "1 processes 2")
    result = deep(coldstart, driver.environment | dcgmi.hangs())
    assert result.status == 75
    assert "is in use: 2 processes, pid 4000, 4001" in result.stderr
    assert dcgmi.calls == []


def test_a_gpu_split_by_mig_is_not_diagnosed(coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi) -> None:
    driver.control("* count 2", "0 mig 1")
    result = deep(coldstart, driver.environment | dcgmi.hangs())
    assert result.status == 69
    assert "MIG is on" in result.stderr
    assert "-mig 0" in result.stderr
    assert dcgmi.calls == []


def test_level_one_puts_no_load_on_a_gpu_and_runs_beside_its_user(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi, tmp_path: Path
) -> None:
    driver.control("* count 2", "1 processes 2")
    output = shared_data("health/dcgmi-handwritten/v4.4-all-plugins-skip-exit-0.json")
    result = deep(coldstart, driver.environment | dcgmi.prints(output), "--level", "1")
    assert dcgmi.calls == ["diag -r 1 -j"]
    assert result.status == 3, "the plugins it lists were skipped"


def test_another_diagnosis_at_work_says_so(coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi) -> None:
    output = shared_data("health/dcgmi-handwritten/v4.x-runtime-error.json")
    result = deep(coldstart, driver.environment | dcgmi.prints(output, status=226))
    assert result.status == 75
    assert "another diagnosis is running" in result.stderr


def test_two_diagnoses_do_not_run_at_once(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi, tmp_path: Path
) -> None:
    with exclusive_lock(Path(coldstart.environment["COLDSTART_RUN_DIR"]) / "health-deep.lock"):
        result = deep(coldstart, driver.environment | dcgmi.hangs())
    assert result.status == 75
    assert "locked by another process" in result.stderr
    assert dcgmi.calls == []


def test_a_dcgmi_that_hangs_ends_at_the_deadline(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    result = deep(coldstart, driver.environment | dcgmi.hangs(), "--timeout", "1", "--json")
    assert result.status == 3
    assert [finding["reason"] for finding in document(result)["findings"]] == ["probe_hang"]


def test_what_nvml_knows_outweighs_a_diagnosis_that_passed(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    driver.control("* count 1", "0 recovery 2")
    output = shared_data("health/dcgmi-real/v3.1-r3-t4-pass.json")
    result = deep(coldstart, driver.environment | dcgmi.prints(output))
    assert result.status == 3
    assert "reboot: recovery_reboot" in result.stderr
