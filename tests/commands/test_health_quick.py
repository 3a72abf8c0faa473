"""`coldstart health quick` as an operator, a unit and a script see it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coldstart_cli.prometheus import escaped_label
from conftest import Coldstart, Result
from stand_ins.gpu_driver import Dcgmi, GpuDriver, has_real_driver

# the figures of the machine that runs the tests must not decide them
GPU_SOURCES = {"nvml", "inventory", "fabric", "dcgm", "deep", "cuda"}
UNLIMITED = {"COLDSTART_HEALTH_WARN_PERCENT": "1000", "COLDSTART_HEALTH_FAIL_PERCENT": "1000"}
# a machine whose clock nobody sets is degraded
SERVES = "(ok|degraded)"


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
    found = [finding["reason"] for finding in content["findings"] if finding["source"] in GPU_SOURCES]
    # what tests that run beside this one leave for a moment is not this one's
    return [reason for reason in found if reason != "diagnosis_left_over"]


def test_a_host_without_gpus_is_said_to_be_one(coldstart: Coldstart) -> None:
    if has_real_driver():
        pytest.skip("this host has NVIDIA's driver")
    result = quick(coldstart, None)
    assert result.status == 0, result.stderr
    assert "no GPU on this host, and none is expected" in result.stdout
    assert re.search(rf"^{SERVES}: no GPU; CPU", result.stdout, re.MULTILINE)


def test_a_table_says_of_every_gpu_what_is_wrong_and_what_to_do(
    coldstart: Coldstart, driver: GpuDriver
) -> None:
    driver.control("2 remap_pending 1", "4 persistence 0", "4 ecc 0")
    result = quick(coldstart, driver)
    assert result.status == 3
    table = result.stdout.split("\n\n")[0].splitlines()
    assert table[0].split() == ["SUBJECT", "VERDICT", "REASON", "ACTION"]
    rows = [line[8:].split(maxsplit=2) for line in table[1:]]
    assert [line[:8].strip() for line in table[1:]] == [
        "host",
        "fabric",
        "GPU 0",
        "GPU 1",
        "GPU 2",
        "GPU 3",
        "GPU 4",
        "",
        "GPU 5",
        "GPU 6",
        "GPU 7",
    ]
    assert [row[0] for row in rows[1:] if row[0] != "ok"] == ["reset", "degraded", "degraded"]
    assert rows[4][1:] == [
        "row_remap_pending",
        "drain it, then `nvidia-smi --gpu-reset -i GPU-00000000-0000-0000-0000-000000000002`",
    ]
    assert "GPU 2  NVIDIA H100 80GB HBM3  GPU-00000000-0000-0000-0000-000000000002" in result.stdout
    assert "  row_remap_pending: a row remapping waits for a reset" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("reset: 8 GPUs (6 ok, 1 degraded, 1 reset); CPU")
    assert "coldstart: error: nothing may be placed on this host: reset: row_remap_pending" in result.stderr
    assert "hint: drain it, then `nvidia-smi --gpu-reset -i GPU-" in result.stderr


def test_every_gpu_is_named_when_more_is_asked_for(coldstart: Coldstart, driver: GpuDriver) -> None:
    driver.control("* count 2")
    assert "GPU-00000000" not in quick(coldstart, driver).stdout
    assert "GPU 1  NVIDIA H100 80GB HBM3  GPU-0000" in quick(coldstart, driver, "--verbose").stdout


@pytest.mark.parametrize(
    ("lines", "status", "word"),
    [
        ([], 0, "OK - ok"),
        (["0 persistence 0"], 1, "WARNING - degraded: persistence_off"),
        (["0 remap_pending 1"], 2, "CRITICAL - reset: row_remap_pending"),
        (["0 error DeviceGetEccMode 999"], 3, "UNKNOWN - unknown: nvml_error"),
        (["* error Init 4"], 3, "UNKNOWN - unknown: nvml_no_permission"),
    ],
)
def test_nagios_gets_one_line_with_figures_and_its_own_exit_status(
    coldstart: Coldstart, driver: GpuDriver, lines: list[str], status: int, word: str
) -> None:
    driver.control("* count 2", *lines)
    result = quick(coldstart, driver, "--nagios")
    if not lines and "clock_" in result.stdout:
        status, word = 1, "WARNING"
    assert result.status == status
    assert result.stderr == ""
    text, _, figures = result.stdout.rstrip("\n").partition(" | ")
    assert "\n" not in figures
    assert text.startswith(f"HEALTH {word}")
    figure = re.compile(r"('[^']+'|[^ ='|]+)=-?[\d.]+(s|%|B|c)?(;[\d.]*){0,4}")
    assert all(figure.fullmatch(part) for part in re.findall(r"(?:'[^']*'|[^ ])+", figures))


def test_nagios_is_told_of_an_error_as_unknown(coldstart: Coldstart, driver: GpuDriver) -> None:
    result = quick(coldstart, driver, "--nagios", COLDSTART_HEALTH_WARN_PERCENT="2000")
    assert result.status == 3
    assert result.stdout.startswith("HEALTH UNKNOWN - health.warn_percent")
    assert quick(coldstart, driver, "--nagios", "--json").status == 2


def test_a_nagios_line_that_nobody_gets_is_unknown(coldstart: Coldstart, driver: GpuDriver) -> None:
    command = ["sh", "-c", 'exec "$0" health quick --nagios >/dev/full', coldstart.program]
    environment = coldstart.environment | driver.environment
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 3
    assert "cannot write the answer: No space left on device" in result.stderr


def test_names_have_no_voice_in_a_label_of_the_textfile() -> None:
    assert escaped_label('a\x1b[31m\n"b\\\udcff') == 'a\\\\x1b[31m\\\\n\\"b\\\\\\\\xff'


def samples(path: Path) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = list(text_string_to_metric_families(path.read_text()))
    assert all(family.name.startswith("coldstart_health_") and family.documentation for family in families)
    return {
        (sample.name.removeprefix("coldstart_health_"), frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_textfile_is_read_by_prometheus_own_parser(
    coldstart: Coldstart, driver: GpuDriver, tmp_path: Path
) -> None:
    file = tmp_path / "textfile" / "coldstart.prom"
    file.parent.mkdir()
    driver.control("* count 2", "1 remap_pending 1")
    result = quick(coldstart, driver, "--prometheus", str(file), "--expect-gpus", "2")
    assert result.status == 3
    found = samples(file)
    gpu = {"run": "quick", "subject": "GPU-00000000-0000-0000-0000-000000000001", "gpu": "1"}

    def value(name: str, **labels: str) -> float | None:
        return found.get((name, frozenset(labels.items())))

    assert value("verdict", **gpu) == 4
    assert value("verdict", run="quick", subject="all", gpu="") == 4
    assert value("state", **gpu, verdict="reset") == 1
    assert value("state", **gpu, verdict="ok") == 0
    assert value("may_serve", run="quick") == 0
    assert value("gpus", run="quick", kind="expected") == 2
    assert value("gpu_temperature_celsius", **gpu) == 34
    reason = {key: text for key, text in gpu.items() if key != "gpu"}
    assert value("reason", **reason, reason="row_remap_pending", verdict="reset") == 1
    assert abs((value("last_success_timestamp_seconds", run="quick") or 0) - time.time()) < 60
    assert [path.name for path in file.parent.iterdir()] == ["coldstart.prom"]


def test_a_run_that_could_not_look_keeps_the_time_of_the_last_that_could(
    coldstart: Coldstart, driver: GpuDriver, tmp_path: Path
) -> None:
    file = tmp_path / "coldstart.prom"
    key = ("last_success_timestamp_seconds", frozenset({("run", "quick")}))
    driver.control("* count 1", "* crash Init")
    assert quick(coldstart, driver, "--prometheus", str(file)).status == 3
    assert key not in samples(file)
    driver.control("* count 1")
    quick(coldstart, driver, "--prometheus", str(file))
    success = samples(file)[key]
    driver.control("* count 1", "* crash Init")
    quick(coldstart, driver, "--prometheus", str(file))
    assert samples(file)[key] == success
    assert samples(file)["check_success", frozenset({("run", "quick"), ("check", "nvml")})] == 0


@pytest.mark.parametrize(
    ("name", "status"),
    [("a", 0), ("file", 0), ("nowhere/\n/x", 73), ("file/below", 73), ("fifo", 73), ("link", 73), (".", 73)],
)
def test_a_textfile_goes_where_it_is_wanted_or_is_refused_by_name(
    coldstart: Coldstart, driver: GpuDriver, tmp_path: Path, name: str, status: int
) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("file")
    result = quick(coldstart, driver, "--prometheus", str(tmp_path / name))
    assert result.status == status, result.stderr
    assert not list(tmp_path.glob("nowhere*")), "no folder was made"
    assert (tmp_path / "fifo").is_fifo()
    assert (tmp_path / "link").is_symlink()
    told = re.search(rf"^{SERVES}: 8 GPUs", result.stdout, re.MULTILINE)
    assert told, "the verdict is told all the same"
    driver.control("* remap_pending 1")
    assert quick(coldstart, driver, "--prometheus", str(tmp_path / name)).status == 3


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
    expected = {"count": 2, "source": "command line", "explicit": True, "named": False}
    assert content["expected_gpus"] == expected
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
