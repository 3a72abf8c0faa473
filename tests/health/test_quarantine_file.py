"""The quarantine's file among many processes, killed writers, and file systems that take nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli import config as configuration
from coldstart_cli.files import exclusive_lock
from coldstart_health import quarantine
from coldstart_health.audit import SIZE_LIMIT_BYTES, append_audit, audit_path
from coldstart_health.quarantine import QuarantineUnreadableError, load_quarantine, quarantine_path
from coldstart_health.standing import standing
from coldstart_health.verdict import Verdict
from conftest import wait_until
from stand_ins.gpu_host import GpuHost, state_folder

# what a run that finds a bad GPU does to the file, as often as it is asked to
WRITER = """
import sys
from pathlib import Path
from typing import Any
from coldstart_health.audit import append_audit
from coldstart_health.escalation import found_bad
from coldstart_health.moment import now
from coldstart_health.quarantine import update_quarantine
from coldstart_health.quarantine_policy import Policy, RunFacts
from coldstart_health.quarantine_record import GpuName, GpuRecord, Quarantine
from coldstart_health.verdict import Finding, Verdict

folder, number, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
finding = Finding("xid_79", Verdict.REBOOT, f"GPU-{number}", "nvml", "x" * 300)

def change(state):
    mine = [record for record in state.records if record.name.uuid == f"GPU-{number}"]
    others = [record for record in state.records if record not in mine]
    record = mine[0] if mine else GpuRecord(GpuName(f"GPU-{number}", uuid=f"GPU-{number}"))
    run = RunFacts(now(), now())
    return Quarantine((*others, found_bad(record, [finding], run, Policy(), was_reset=False)), state.sequence)

print("ready", flush=True)
sys.stdin.readline()
for _ in range(times):
    update_quarantine(folder, change, wait_seconds=120)
    append_audit(folder, [{"action": "entered", "writer": number}])
"""


def start_writer(folder: Path, number: int, times: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), str(number), str(times)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


def release(writer: subprocess.Popen[str]) -> None:
    assert writer.stdin is not None
    writer.stdin.write("go\n")
    writer.stdin.flush()


def test_no_write_of_many_processes_is_lost(tmp_path: Path) -> None:
    writers = [start_writer(tmp_path, number, 8) for number in range(10)]
    for writer in writers:
        release(writer)
    assert [writer.wait(120) for writer in writers] == [0] * 10
    for writer in writers:
        writer.communicate()
    state = load_quarantine(tmp_path)
    assert state.sequence == 80
    assert {record.name.uuid: record.causes[0].runs for record in state.records} == {
        f"GPU-{number}": 8 for number in range(10)
    }


def test_a_writer_killed_in_the_middle_leaves_a_whole_file_and_no_lock(tmp_path: Path) -> None:
    for round_ in range(6):
        writer = start_writer(tmp_path, round_, 100_000)
        release(writer)
        before = load_quarantine(tmp_path).sequence
        wait_until(lambda before=before: load_quarantine(tmp_path).sequence > before + 3, "the writer writes")  # type: ignore[misc]
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        assert all(record.verdict >= Verdict.REBOOT for record in load_quarantine(tmp_path).records)
    left = tmp_path / "health" / ".quarantine.json.killed.tmp"
    left.write_text("half")
    writer = start_writer(tmp_path, 0, 1)
    release(writer)
    writer.communicate()
    assert writer.returncode == 0
    assert not left.exists()
    assert len(load_quarantine(tmp_path).records) == 6
    lines = audit_path(tmp_path).read_text().splitlines()
    assert json.loads(lines[-1])["writer"] == "0"


def test_half_a_line_of_a_killed_writer_does_not_spoil_the_next(tmp_path: Path) -> None:
    append_audit(tmp_path, [{"action": "one"}])
    path = audit_path(tmp_path)
    path.write_text(path.read_text() + '{"action": "ha')
    append_audit(tmp_path, [{"action": "two"}])
    lines = path.read_text().splitlines()
    assert [json.loads(line)["action"] for line in (lines[0], lines[2])] == ["one", "two"]


def test_the_audit_log_is_bounded(tmp_path: Path) -> None:
    for _ in range(3):
        append_audit(tmp_path, [{"action": "x" * (SIZE_LIMIT_BYTES // 2 + 1)} for _ in range(2)])
    kept = sorted(path.name for path in (tmp_path / "health").iterdir())
    assert kept == ["audit.jsonl", "audit.jsonl.1"]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    return GpuHost(tmp_path, monkeypatch)


@pytest.fixture
def small_disk(host: GpuHost) -> Iterator[Path]:
    """The state folder on a file system of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = state_folder()
    folder.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0755", "none", folder], check=True, timeout=20
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True, timeout=60)


RESET, HOT = "1 remap_pending 1", "1 temperature 93"


def remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", folder], check=True, timeout=60)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(bytes(4096)) == 4096:
            pass


def test_a_read_only_state_folder_changes_no_verdict_and_is_said(host: GpuHost, small_disk: Path) -> None:
    host.quick(HOT)
    remount(small_disk, "ro")
    report = host.quick(RESET)
    assert report.overall is Verdict.RESET
    found = {finding.reason: finding for finding in report.findings}
    assert found["quarantine_not_recorded"].verdict is Verdict.DEGRADED
    assert "Read-only file system" in found["quarantine_not_recorded"].evidence
    assert "temperature_shutdown" in found["quarantined"].evidence
    assert host.quick().overall is Verdict.RESET, "the run folder keeps it"


def test_a_recovery_that_cannot_be_recorded_has_not_happened(host: GpuHost, small_disk: Path) -> None:
    host.quick(RESET)
    remount(small_disk, "ro")
    host.reboot()
    assert [host.quick().overall for _ in range(2)] == [Verdict.RESET] * 2
    remount(small_disk, "rw")
    assert host.quick().overall is Verdict.OK


def test_a_full_disk_loses_no_record_that_was_there(host: GpuHost, small_disk: Path) -> None:
    host.quick(RESET)
    before = quarantine_path(small_disk).read_bytes()
    fill(small_disk)
    report = host.quick(RESET, HOT)
    assert report.overall is Verdict.RESET
    assert "quarantine_not_recorded" in [finding.reason for finding in report.findings]
    assert quarantine_path(small_disk).read_bytes() == before
    assert not list((small_disk / "health").glob(".*.tmp"))


def test_a_healthy_host_with_a_read_only_state_folder_is_ok(host: GpuHost, small_disk: Path) -> None:
    remount(small_disk, "ro")
    assert host.quick().overall is Verdict.OK


def test_a_lock_that_somebody_holds_costs_a_bounded_wait_and_no_verdict(
    host: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "LOCK_WAIT_SECONDS", 0.1)
    with exclusive_lock(state_folder() / "health" / "quarantine.lock"):
        report = host.quick(RESET)
    assert report.overall is Verdict.RESET
    assert "locked by another process" in next(
        finding.evidence for finding in report.findings if finding.reason == "quarantine_not_recorded"
    )


@pytest.mark.parametrize(
    "edited",
    [
        {"verdict": "ok"},
        {"verdict": "degraded"},
        {"causes": []},
        {"verdict": "ok", "cause": {"verdict": "ok", "found": "ok"}},
        {"verdict": "degraded", "cause": {"verdict": "degraded", "found": "degraded"}},
        {"verdict": "drain", "cause": {"verdict": "drain"}},
    ],
)
def test_a_record_that_contradicts_itself_is_damage_to_quick_and_to_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: dict[str, Any]
) -> None:
    host = GpuHost(tmp_path, monkeypatch)
    host.quick("0 remap_failure 1")
    path = quarantine_path(state_folder())
    document = json.loads(path.read_bytes())
    (gpu,) = document["gpus"]
    gpu["causes"][0] |= edited.get("cause", {})
    gpu |= {key: value for key, value in edited.items() if key != "cause"}
    path.write_text(json.dumps(document))
    report = host.quick()
    assert report.overall is Verdict.UNKNOWN
    assert "quarantine_unreadable" in {finding.reason for finding in report.findings}
    with pytest.raises(QuarantineUnreadableError, match="damaged"):
        standing(configuration.load())
