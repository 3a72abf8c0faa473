"""The hardware script, with stand-ins in the place of the hardware."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import wait_until
from gpu.unpack_wheels import fits
from snapshot.servers import require_engine
from stand_ins.cuda_host import CudaHost

SCRIPT = Path(__file__).with_name("run.sh")


def _run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *arguments],
        env=dict(os.environ) | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )


@pytest.mark.timeout(300)
def test_the_script_runs_the_tests_and_the_servers_and_prints_a_table(tmp_path: Path) -> None:
    require_engine()
    host = CudaHost(tmp_path)
    environment = host.environment | {
        "GPU_PYTHON": sys.executable,
        "GPU_STAND_IN_PROGRAM": host.cuda.program,
        "OUT": str(tmp_path / "out"),
    }
    done = _run(environment, "--stand-in")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
    table = (tmp_path / "out" / "report.txt").read_text().splitlines()
    assert table[0].split()[:3] == ["workload", "way", "result"]
    ways = [line.split()[1] for line in table if "same answer" in line and line.startswith("libcuda")]
    assert ways == ["driver-api", "cuda-checkpoint"]
    assert table[-1] == "stand-ins: no GPU was used"


def _of(marker: Path) -> list[str]:
    """Command lines of what runs with this folder in its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if str(marker).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.mark.parametrize("how", ["limit", "TERM"])
def test_a_driver_that_hangs_costs_a_row_and_nothing_is_left_when_the_script_is_stopped(
    tmp_path: Path, how: str
) -> None:
    require_engine()
    host = CudaHost(tmp_path)
    host.cuda.fault("lock", "hang", times=99)
    out = tmp_path / "out"
    limits = {"GPU_TESTS_SECONDS": "2", "GPU_REPORT_SECONDS": "8" if how == "limit" else "100"}
    names = {"GPU_PYTHON": sys.executable, "GPU_STAND_IN_PROGRAM": host.cuda.program, "OUT": str(out)}
    script = subprocess.Popen(
        [SCRIPT, "--stand-in"],
        env=dict(os.environ) | host.environment | names | limits,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        calls = host.cuda.folder / "calls"
        table = out / "report.txt"
        if how == "TERM":
            wait_until(lambda: table.exists() and "workload" in table.read_text(), "the table has begun")
            before = len(host.cuda.calls())
            wait_until(lambda: len(host.cuda.calls()) > before + 1, "the driver is called")
            assert calls.exists()
            script.terminate()
        said, _ = script.communicate(timeout=90)
    finally:
        script.kill()
        script.wait()
    assert script.returncode == (143 if how == "TERM" else 1), said
    assert "libcuda" in table.read_text()
    assert "STOPPED" in said
    assert _of(tmp_path) == []


def test_the_script_tells_its_usage() -> None:
    done = _run({}, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("tests/gpu/run.sh [--stand-in]")
    assert "set -euo" not in done.stdout


def test_without_a_gpu_the_script_says_so(tmp_path: Path) -> None:
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a GPU")
    done = _run({"OUT": str(tmp_path)})
    assert done.returncode == (69 if os.geteuid() == 0 else 77)
    assert "no NVIDIA driver here" in done.stderr or "needs root" in done.stderr


def test_wheels_are_chosen_for_the_running_python() -> None:
    this, minor = f"cp3{sys.version_info.minor}", sys.version_info.minor
    assert fits("rich-15.0.0-py3-none-any.whl")
    assert fits(f"blake3-1.0.8-{this}-{this}-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
    assert fits("psutil-7.2.2-cp36-abi3-manylinux2010_x86_64.manylinux_2_12_x86_64.whl")
    assert not fits(f"blake3-1.0.8-cp3{minor + 1}-cp3{minor + 1}-manylinux_2_17_x86_64.whl")
    assert not fits(f"thing-1.0-cp3{minor + 1}-abi3-manylinux_2_17_x86_64.whl")
