"""`coldstart health deep`: DCGM's answer translated, and the cases in which it does not ask."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli import config as configuration
from coldstart_cli.errors import BusyError
from coldstart_cli.files import exclusive_lock
from coldstart_health import deep as deep_run
from conftest import Coldstart, Result, shared_data, wait_until
from stand_ins.gpu_driver import Dcgmi, GpuDriver

GPU_SOURCES = {"nvml", "inventory", "fabric", "dcgm", "deep"}
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
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


def reasons(content: dict[str, Any]) -> list[str]:
    found = [finding["reason"] for finding in content["findings"] if finding["source"] in GPU_SOURCES]
    # what tests that run beside this one leave for a moment is not this one's
    return [reason for reason in found if reason != "diagnosis_left_over"]


def test_an_isolated_gpu_is_named_by_uuid_and_the_other_stays_ok(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    environment = driver.environment | dcgmi.prints(shared_data(ISOLATED), status=205)
    result = deep(coldstart, environment, "--json")
    assert result.status == 3, result.stderr
    content = document(result)
    assert [(gpu["subject"][-1], gpu["verdict"]) for gpu in content["gpus"]] == [("0", "ok"), ("1", "drain")]
    assert content["dcgm_version"] == "4.1.1"
    assert reasons(content) == ["faulty_memory"]
    assert dcgmi.calls == ["diag -r 3 -j"]


def test_people_read_one_line_per_gpu_with_evidence_and_action(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    environment = driver.environment | dcgmi.prints(shared_data(ISOLATED), status=205)
    result = deep(coldstart, environment)
    assert result.status == 3
    assert re.search("GPU 1 +drain +faulty_memory +have NVIDIA's field diagnostic", result.stdout)
    assert "faulty_memory: memory: Found 2 faulty memory elements on GPU 1" in result.stdout
    assert "coldstart: error: nothing may be placed on this host: drain: faulty_memory" in result.stderr


def test_persistence_off_alone_warns_although_dcgmi_ends_with_226(coldstart: Coldstart, dcgmi: Dcgmi) -> None:
    output = shared_data("health/dcgmi-real/v4.2.3-r1-gb10-persistence-off.json")
    result = deep(coldstart, dcgmi.prints(output, status=226) | {"LD_LIBRARY_PATH": ""}, "--level", "1")
    assert result.status == 0, result.stderr
    # a machine whose clock nobody sets is degraded, too
    assert "coldstart: warning: degraded, and may serve: degraded: " in result.stderr
    assert "persistence_off" in result.stdout


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
    assert ([gpu["verdict"] for gpu in content["gpus"]], reasons(content)) == (["ok"], [])
    assert [check["name"] for check in content["checks"]] == ["nvml", "dcgm", "kernel_log"]


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


@pytest.mark.parametrize(
    "line",
    [
        "1 hang DeviceGetUUID",
        "1 hang DeviceGetComputeRunningProcesses",
        "1 error DeviceGetComputeRunningProcesses 999",
        "1 error DeviceGetComputeRunningProcesses 4",
        "1 error DeviceGetComputeRunningProcesses 3",
        "1 error DeviceGetGraphicsRunningProcesses 4",
        "1 error DeviceGetMPSComputeRunningProcesses 999",
        "1 crash DeviceGetComputeRunningProcesses",
        "1 error DeviceGetHandleByIndex 3",
        "1 error DeviceGetMigMode 999",
        "1 vanish DeviceGetEccMode",
        "* error DeviceGetCount 999",
        "* error Init 999",
        "* hang Init",
    ],
)
def test_a_gpu_whose_use_cannot_be_read_is_not_diagnosed(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi, line: str
) -> None:
    driver.control("* count 2", line)
    result = deep(coldstart, driver.environment | dcgmi.hangs(), "--level", "3")
    assert result.status == 75, result.stderr
    assert "cannot tell whether" in result.stderr
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
    assert reasons(document(result)) == ["probe_hang"]


def test_what_nvml_knows_outweighs_a_diagnosis_that_passed(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    driver.control("* count 1", "0 recovery 2")
    output = shared_data("health/dcgmi-real/v3.1-r3-t4-pass.json")
    result = deep(coldstart, driver.environment | dcgmi.prints(output))
    assert result.status == 3
    assert "reboot: recovery_reboot" in result.stderr


def passes(*gpus: int) -> str:
    """A 4.x document in which every test of these GPUs passed."""
    return diagnosed({gpu: {"status": "Pass"} for gpu in gpus})


def diagnosed(results: dict[int, dict[str, Any]]) -> str:
    entities = [{"entity_group": "GPU", "entity_id": gpu, **found} for gpu, found in results.items()]
    tests = [{"name": "memory", "results": entities}]
    return json.dumps(
        {
            "DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]},
            "metadata": {"version": "4.6.0"},
        }
    )


FAULTY = {"status": "Fail", "warnings": [{"warning": "faulty", "error_id": 52}]}
HOT = {"status": "Fail", "warnings": [{"warning": "thermal violation", "error_id": 41}]}


def two_models(driver: GpuDriver, dcgmi: Dcgmi) -> None:
    driver.control("* count 4", "2 model 1", "3 model 1")
    models = ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "A100", "A100")
    list_models(dcgmi, *models)


def list_models(dcgmi: Dcgmi, *models: str) -> None:
    dcgmi.discovers(
        *(
            (model, f"00000000:{0x1A + number:X}:00.0", UUID.format(number))
            for number, model in enumerate(models)
        )
    )


def test_each_model_is_diagnosed_by_itself(coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi) -> None:
    two_models(driver, dcgmi)
    dcgmi.answers(passes(0, 1))
    dcgmi.answers(diagnosed({2: {"status": "Pass"}, 3: FAULTY}), status=205)
    result = deep(coldstart, driver.environment | dcgmi.environment, "--json")
    assert dcgmi.calls == ["diag -r 3 -j -i 0,1", "diag -r 3 -j -i 2,3"]
    assert result.status == 3, result.stderr
    assert [gpu["verdict"] for gpu in document(result)["gpus"]] == ["ok", "ok", "ok", "drain"]
    kept = Path(coldstart.environment["COLDSTART_STATE_DIR"]) / "health"
    assert (kept / "dcgmi-diag.out").read_text() == passes(0, 1)
    assert "faulty" in (kept / "dcgmi-diag.1.out").read_text()
    assert json.loads((kept / "deep.json").read_text())["verdict"] == "drain"


def test_heat_is_looked_at_again_and_counts_when_it_comes_twice(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    list_models(dcgmi, "H100", "H100")
    for again, status, verdict in ((passes(0, 1), 0, "ok"), (diagnosed({0: HOT, 1: HOT}), 226, "degraded")):
        dcgmi.answers(diagnosed({0: HOT, 1: {"status": "Pass"}}), status=226)
        dcgmi.answers(again, status=status)
        result = deep(coldstart, driver.environment | dcgmi.environment, "--json")
        assert result.status == 0, result.stderr
        assert document(result)["gpus"][0]["verdict"] == verdict
    assert len(dcgmi.calls) == 4


def in_background(coldstart: Coldstart, environment: dict[str, str], dcgmi: Dcgmi) -> subprocess.Popen[str]:
    """`health deep`, once it has come to the diagnosis that hangs."""
    process = subprocess.Popen(
        [coldstart.program, "health", "deep"],
        env=coldstart.environment | environment,
        cwd=coldstart.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: dcgmi.hanging or process.poll() is not None, "the diagnosis to run")
    assert dcgmi.hanging, process.communicate()
    return process


def quick_verdicts(coldstart: Coldstart, driver: GpuDriver) -> tuple[int, list[str], list[str]]:
    limits = {"COLDSTART_HEALTH_WARN_PERCENT": "1000", "COLDSTART_HEALTH_FAIL_PERCENT": "1000"}
    result = coldstart("health", "quick", "--json", environment=driver.environment | limits)
    content = json.loads(result.stdout)
    return result.status, [gpu["verdict"] for gpu in content["gpus"]], reasons(content)


def test_while_it_runs_its_gpus_are_out_of_the_pool_and_a_crash_gives_them_back(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    process = in_background(coldstart, driver.environment | dcgmi.hangs(), dcgmi)
    try:
        assert quick_verdicts(coldstart, driver) == (3, ["unknown", "unknown"], ["diagnosing", "diagnosing"])
        process.kill()
        process.wait()
        assert quick_verdicts(coldstart, driver)[:2] == (0, ["ok", "ok"])
    finally:
        process.kill()
        process.communicate()
        for pid in dcgmi.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_interrupted_it_keeps_what_finished_and_the_rest_is_unknown(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    two_models(driver, dcgmi)
    dcgmi.answers(diagnosed({0: FAULTY, 1: {"status": "Pass"}}), status=205)
    process = in_background(coldstart, driver.environment | dcgmi.hangs(2), dcgmi)
    process.terminate()
    assert process.wait(timeout=60) == 143
    process.communicate()
    state = Path(coldstart.environment["COLDSTART_STATE_DIR"]) / "health"
    saved = json.loads((state / "deep.json").read_text())
    assert [gpu["verdict"] for gpu in saved["gpus"]] == ["drain", "ok", "unknown", "unknown"]
    aborted, mixed = ["diagnosis_aborted"] * 2, ["mixed_models"] * 2
    assert sorted(reasons(saved)) == [*aborted, "faulty_memory", *mixed]
    run = Path(coldstart.environment["COLDSTART_RUN_DIR"]) / "health"
    assert not (run / "diagnosing.json").exists()


def test_a_diagnosis_that_somebody_else_started_is_not_disturbed(
    driver: GpuDriver, dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (driver.environment | dcgmi.hangs()).items():
        monkeypatch.setenv(name, value)
    # a real process of that name would stop the tests that run beside these
    monkeypatch.setattr(deep_run, "processes_named", lambda *names: (4711,) if names == ("nvvs",) else ())
    with pytest.raises(BusyError, match="another diagnosis is running: pid 4711"):
        deep_run.deep_check(configuration.load())
    assert dcgmi.calls == []


def test_an_inforom_that_does_not_verify_is_found(
    coldstart: Coldstart, driver: GpuDriver, dcgmi: Dcgmi
) -> None:
    driver.control("* count 2", "1 error DeviceValidateInforom 14")
    list_models(dcgmi, "H100", "H100")
    dcgmi.answers(passes(0, 1))
    result = deep(coldstart, driver.environment | dcgmi.environment, "--json")
    assert [gpu["verdict"] for gpu in document(result)["gpus"]] == ["ok", "drain"]
    assert reasons(document(result)) == ["inforom_corrupt"]
