"""What `coldstart doctor` says about this host, and about hosts with gaps."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from coldstart_host import doctor_gpu, doctor_programs, doctor_system, gpu_module
from coldstart_host.cpu import CpuFacts, read_cpu_facts
from coldstart_host.doctor import examine, standard_checks
from coldstart_host.doctor_finding import Budget, DoctorInput, Finding, Status
from coldstart_host.kernel import criu_needed
from conftest import Coldstart, Result, wait_until
from stand_ins.cuda import CudaStandIn

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="criu check needs root")


def _document(result: Result) -> dict[str, Any]:
    document = json.loads(result.stdout)
    assert document["schema"] == "coldstart.doctor"
    assert document["version"] == 1
    return document


def _check(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [check for check in document["checks"] if check["check"] == name]
    return found


def _script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def configured(tmp_path: Path) -> DoctorInput:
    return DoctorInput(
        criu="criu",
        runc="runc",
        skopeo="skopeo",
        cuda_checkpoint="cuda-checkpoint",
        dcgmi="dcgmi",
        state_folder=tmp_path / "state",
        cache_folder=tmp_path / "cache",
    )


# --- the command ---


def test_the_document_has_checks_cpu_configuration_and_installation(coldstart: Coldstart) -> None:
    document = _document(coldstart("doctor", "--json"))
    assert [check["check"] for check in document["checks"]] == [name for name, _ in standard_checks()]
    assert CpuFacts.from_dict(document["cpu"]) == read_cpu_facts()
    state = next(entry for entry in document["configuration"] if entry["key"] == "state_dir")
    assert state["source"] == "environment COLDSTART_STATE_DIR"
    assert document["store"] == f"{state['value']}/store"
    assert document["coldstart"]["packages"]["typer"]
    assert document["ok"] is not any(check["status"] == "fault" for check in document["checks"])


@needs_root
def test_this_host_with_everything_installed_is_fine(coldstart: Coldstart) -> None:
    result = coldstart("doctor")
    assert result.status == 0, result.stdout
    assert "check passed in" in result.stdout
    assert "fault  " not in result.stdout


def test_without_criu_the_status_is_3_and_the_remedy_is_shown(coldstart: Coldstart, tmp_path: Path) -> None:
    missing = {"COLDSTART_PROGRAMS_CRIU": f"{tmp_path}/no-criu"}
    result = coldstart("doctor", environment=missing)
    assert result.status == 3
    assert f"fault  criu             program is not installed: {tmp_path}/no-criu" in result.stdout
    assert "does not work: snap create, snap restore, launch from a snapshot" in result.stdout
    assert "remedy: run `make setup`" in result.stdout
    assert "coldstart: error: this host has faults: criu" in result.stderr
    document = _document(coldstart("doctor", "--json", environment=missing))
    assert document["ok"] is False


@needs_root
def test_a_criu_that_hangs_is_ended_and_the_answer_still_comes_in_time(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    mark = tmp_path / "pid"
    criu = _script(tmp_path / "criu", f"trap '' TERM; echo $$ > {mark}; sleep 300")
    started = time.monotonic()
    result = coldstart("doctor", environment={"COLDSTART_PROGRAMS_CRIU": criu})
    assert time.monotonic() - started < 60
    assert result.status == 3
    assert "no end after" in result.stdout
    pid = int(mark.read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the hung criu to be gone")


def test_a_wrong_folder_is_a_fault_with_the_key_to_change(coldstart: Coldstart, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    result = coldstart("doctor", "--json", environment={"COLDSTART_CACHE_DIR": str(blocker / "cache")})
    check = _check(_document(result), "cache folder")
    assert check["detail"] == f"{blocker} cannot be written to"
    assert check["remedy"] == "name another folder with `cache_dir` in the configuration"


def test_nothing_is_created(coldstart: Coldstart, tmp_path: Path) -> None:
    coldstart("doctor")
    assert list(tmp_path.iterdir()) == []


# --- the runner ---


def test_a_check_that_does_not_answer_is_a_finding(configured: DoctorInput) -> None:
    never = threading.Event()

    def stuck(_: DoctorInput, __: Budget) -> Finding:
        never.wait(120)
        raise AssertionError

    def fine(_: DoctorInput, __: Budget) -> Finding:
        return Finding("", Status.OK, "fine")

    started = time.monotonic()
    findings = examine(configured, [("stuck", stuck), ("fine", fine)], deadline_seconds=3)
    assert time.monotonic() - started < 60
    never.set()
    assert [(finding.check, finding.status) for finding in findings] == [
        ("stuck", Status.FAULT),
        ("fine", Status.OK),
    ]
    assert findings[0].detail == "no answer within 3 s"


def test_a_check_with_a_bug_does_not_hide_the_others(configured: DoctorInput) -> None:
    def broken(_: DoctorInput, __: Budget) -> Finding:
        raise ZeroDivisionError

    (finding,) = examine(configured, [("broken", broken)])
    assert finding.status is Status.FAULT
    assert "ZeroDivisionError" in finding.detail


def test_a_budget_that_is_spent_starts_nothing(configured: DoctorInput) -> None:
    def late(_: DoctorInput, budget: Budget) -> Finding:
        budget.run("sleep", "0.3")
        budget.run("touch", str(configured.state_folder))
        raise AssertionError

    (finding,) = examine(configured, [("late", late)], deadline_seconds=0.2)
    assert "no end after" in finding.detail
    assert not configured.state_folder.exists()


# --- criu ---


@pytest.mark.parametrize(
    ("kernel", "criu"),
    [((5, 15), (3, 16)), ((6, 12), (3, 16)), ((6, 13), (4, 1)), ((6, 16), (4, 2)), ((7, 0), (4, 2))],
)
def test_the_criu_a_kernel_needs(kernel: tuple[int, int], criu: tuple[int, int]) -> None:
    assert criu_needed(kernel) == criu


def test_a_criu_too_old_for_the_kernel_is_a_fault(tmp_path: Path, configured: DoctorInput) -> None:
    criu = _script(tmp_path / "criu", "echo 'Version: 3.11'")
    finding = doctor_programs.criu(_with(configured, criu=criu), Budget(10))
    assert finding.status is Status.FAULT
    assert "version 3.11: Linux" in finding.detail


@needs_root
def test_a_failing_criu_check_shows_the_error_and_not_the_noise(
    tmp_path: Path, configured: DoctorInput
) -> None:
    script = """
        [ "$1" = --version ] && { echo 'Version: 9.0'; exit 0; }
        echo 'Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds' >&2
        echo "Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self" >&2
        exit 1"""
    finding = doctor_programs.criu(_with(configured, criu=_script(tmp_path / "criu", script)), Budget(10))
    assert finding.status is Status.FAULT
    assert finding.detail.endswith("vdso: Unexpected rt vDSO area bounds")


def test_a_program_without_a_version_is_not_taken_for_the_real_one(
    tmp_path: Path, configured: DoctorInput
) -> None:
    runc = _script(tmp_path / "runc", "echo something else")
    (finding,) = examine(_with(configured, runc=runc), [("runc", doctor_programs.runc)])
    assert finding.status is Status.FAULT
    assert "tells no version" in finding.detail


# --- GPUs ---


def test_missing_gpu_programs_are_notes_without_a_gpu_and_faults_with_one(
    configured: DoctorInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = _with(configured, cuda_checkpoint="no-such-cuda", dcgmi="no-such-dcgmi")
    monkeypatch.setattr(doctor_gpu, "pci_gpus", lambda: ())
    monkeypatch.setattr(gpu_module, "_DRIVER_VERSION", tmp_path / "version")
    checks = (doctor_gpu.driver, doctor_gpu.cuda_checkpoint, doctor_gpu.dcgm)
    assert [check(bare, Budget(5)).status for check in checks] == [Status.NOTE] * 3
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    )
    assert gpu_module.module_version() == "580.95.05"
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n"
    )
    assert gpu_module.module_version() == "535.129.03"
    for check in checks[1:]:
        finding = check(bare, Budget(5))
        assert finding.status is Status.FAULT
        assert finding.cost
        assert finding.remedy


def test_a_gpu_without_a_driver_is_a_fault(
    configured: DoctorInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coldstart_host.pci import PciGpu

    monkeypatch.setattr(gpu_module, "_DRIVER_VERSION", tmp_path / "version")
    monkeypatch.setattr(doctor_gpu, "pci_gpus", lambda: (PciGpu("0000:0f:00.0", "0x2335", None),))
    finding = doctor_gpu.driver(configured, Budget(5))
    assert finding.status is Status.FAULT
    assert "no driver is loaded" in finding.detail


@pytest.mark.parametrize(("version", "status"), [("580.65.06", Status.NOTE), ("560.35.03", Status.FAULT)])
def test_without_cuda_checkpoint_a_driver_with_a_checkpoint_api_will_do(
    configured: DoctorInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, status: Status
) -> None:
    path = tmp_path / "version"
    path.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Jan  1\n")
    monkeypatch.setattr(gpu_module, "_DRIVER_VERSION", path)
    finding = doctor_gpu.cuda_checkpoint(_with(configured, cuda_checkpoint="no-such-cuda"), Budget(5))
    assert finding.status is status


def test_cuda_checkpoint_is_asked_what_it_can_do(configured: DoctorInput, tmp_path: Path) -> None:
    stand_in = CudaStandIn(tmp_path / "cuda")
    finding = doctor_gpu.cuda_checkpoint(_with(configured, cuda_checkpoint=stand_in.program), Budget(10))
    assert finding.status is Status.OK
    assert finding.facts == {"path": stand_in.program, "version": "580.65.06", "device_map": True}


# --- the host ---


def test_a_full_disk_is_a_fault_and_a_short_one_a_note(
    configured: DoctorInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk],
        capture_output=True,
        timeout=60,
        check=False,
    )
    if mount.returncode != 0:
        pytest.skip("mounting needs root")
    try:
        small = _with(configured, state_folder=disk / "below" / "state")
        finding = doctor_system.state_folder(small, Budget(5))
        assert finding.status is Status.FAULT
        assert finding.facts["total_bytes"] == 64 << 20
        monkeypatch.setattr(doctor_system, "_LOW_BYTES", 1)
        (disk / "ballast").write_bytes(bytes(60 << 20))
        assert doctor_system.state_folder(small, Budget(5)).status is Status.NOTE
    finally:
        subprocess.run(["umount", disk], check=True, timeout=60)


def test_a_damaged_seccomp_profile_is_a_fault_and_an_absent_one_a_note(
    configured: DoctorInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "seccomp.json"
    monkeypatch.setattr(doctor_system, "_SECCOMP_PROFILES", (profile,))
    assert doctor_system.seccomp(configured, Budget(5)).status is Status.NOTE
    profile.write_text("{")
    assert doctor_system.seccomp(configured, Budget(5)).status is Status.FAULT
    profile.write_text("{}")
    assert doctor_system.seccomp(configured, Budget(5)).status is Status.OK


def _with(configured: DoctorInput, **changes: Any) -> DoctorInput:
    from dataclasses import replace

    return replace(configured, **changes)
