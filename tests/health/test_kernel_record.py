"""A fatal XID counts until the reboot, whatever the ring buffer lost and whoever reads beside us."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from coldstart_cli.errors import UnavailableError
from coldstart_cli.files import exclusive_lock
from coldstart_health import kernel_record
from coldstart_health.kernel_checks import KernelLog
from coldstart_health.kernel_record import clear_kernel_events, record_path, take_kernel_log
from coldstart_health.verdict import Finding
from stand_ins.kernel_log import KernelLogFile

XID = "NVRM: Xid (PCI:0000:0{}:00): 79, GPU has fallen off the bus."


@pytest.fixture
def log(tmp_path: Path) -> KernelLogFile:
    return KernelLogFile(tmp_path / "log")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def take_all(state: Path, log: KernelLogFile) -> tuple[KernelLog, tuple[Finding, ...]]:
    return take_kernel_log(state, str(log.path), journalctl="/nonexistent", deadline_seconds=60)


def take(state: Path, log: KernelLogFile) -> KernelLog:
    taken, notes = take_all(state, log)
    assert notes == ()
    return taken


def counts(taken: KernelLog) -> dict[str | None, int]:
    return {event.address: event.count for event in taken.events}


def test_an_xid_stays_when_the_ring_buffer_lost_it(state: Path, log: KernelLogFile) -> None:
    log.say(XID.format(1))
    take(state, log)
    log.say("other", "other")
    log.overwrite(2)
    later = take(state, log)
    assert counts(later) == {"0000:01:00": 1}
    assert later.gap is None


def test_each_record_counts_once_however_often_it_is_read(state: Path, log: KernelLogFile) -> None:
    log.say(XID.format(1), XID.format(1))
    for _ in range(3):
        assert counts(take(state, log)) == {"0000:01:00": 2}
    log.say(XID.format(1))
    assert counts(take(state, log)) == {"0000:01:00": 3}


def test_a_reboot_begins_anew(state: Path, log: KernelLogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    log.say(XID.format(1))
    take(state, log)
    monkeypatch.setattr(kernel_record, "boot_id", lambda: "another boot")
    log.path.write_text("5,0,0,-;Linux version 6.12.0\n")
    assert take(state, log).events == ()


def test_a_gap_is_told_as_new_once_and_as_known_from_then_on(state: Path, log: KernelLogFile) -> None:
    take(state, log)
    log.say("one", "two", "three")
    log.overwrite(3)
    first, second = take(state, log), take(state, log)
    assert (first.gap, first.earlier_gap) == ("2 records", None)
    assert (second.gap, second.earlier_gap) == (None, "2 records")


def test_clearing_forgets_the_events_of_one_subject_for_good_and_no_others(
    state: Path, log: KernelLogFile
) -> None:
    switch = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30"
    log.say(XID.format(1), XID.format(2), "I/O error, dev sdb, sector 1", switch)
    take(state, log)
    assert clear_kernel_events(state, subject="GPU-1", pci_bus_id="0000:01:00.0") == 1
    assert counts(take(state, log)) == {"0000:02:00": 1, None: 1, "0000:05:00": 1}
    assert clear_kernel_events(state, subject="host", pci_bus_id=None) == 1
    assert clear_kernel_events(state, subject="fabric", pci_bus_id=None) == 1
    assert counts(take(state, log)) == {"0000:02:00": 1}
    log.say(XID.format(1))
    assert counts(take(state, log)) == {"0000:02:00": 1, "0000:01:00": 1}


def test_clearing_where_nothing_was_recorded_is_fine(state: Path) -> None:
    assert clear_kernel_events(state, subject="host", pci_bus_id=None) == 0


def test_a_look_without_writing_leaves_nothing(state: Path, log: KernelLogFile) -> None:
    log.say(XID.format(1))
    taken, notes = take_kernel_log(
        state, str(log.path), journalctl="/nonexistent", deadline_seconds=60, write=False
    )
    assert (counts(taken), notes) == ({"0000:01:00": 1}, ())
    assert not state.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"schema": "coldstart.health.kernel-log"}', b"\xff\xfe"]
)
def test_a_damaged_record_is_kept_aside_and_the_log_read_again(
    state: Path, log: KernelLogFile, content: bytes
) -> None:
    log.say(XID.format(1))
    take(state, log)
    record_path(state).write_bytes(content)
    taken = take(state, log)
    assert counts(taken) == {"0000:01:00": 1}
    assert Path(str(taken.record_damaged)).read_bytes() == content
    assert take(state, log).record_damaged is None


def test_a_record_of_a_newer_version_is_not_overwritten_unseen(state: Path, log: KernelLogFile) -> None:
    take(state, log)
    newer = json.dumps(json.loads(record_path(state).read_text()) | {"version": 2})
    record_path(state).write_text(newer)
    assert Path(str(take(state, log).record_damaged)).read_text() == newer


def test_a_folder_that_may_not_be_written_costs_the_record_and_no_event(
    tmp_path: Path, log: KernelLogFile
) -> None:
    log.say(XID.format(1))
    state = tmp_path / "state"
    state.write_text("a file where the folder should be")
    taken, notes = take_all(state, log)
    assert counts(taken) == {"0000:01:00": 1}
    assert [note.reason for note in notes] == ["kernel_log_not_recorded"]


def test_a_run_beside_another_reads_without_writing(
    state: Path, log: KernelLogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_record, "_LOCK_WAIT_SECONDS", 0.05)
    log.say(XID.format(1))
    take(state, log)
    before = record_path(state).read_bytes()
    log.say(XID.format(2))
    with exclusive_lock(record_path(state).with_name("kernel-log.lock")):
        taken, notes = take_all(state, log)
    assert counts(taken) == {"0000:01:00": 1, "0000:02:00": 1}
    assert [note.reason for note in notes] == ["kernel_log_not_recorded"]
    assert record_path(state).read_bytes() == before


def test_runs_at_the_same_time_lose_and_repeat_nothing(state: Path, log: KernelLogFile) -> None:
    log.say(*[XID.format(1)] * 50)
    threads = [threading.Thread(target=take_all, args=(state, log)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert counts(take(state, log)) == {"0000:01:00": 50}


def test_nothing_is_recorded_where_no_log_can_be_read(state: Path) -> None:
    with pytest.raises(UnavailableError):
        take_kernel_log(state, "/dev/null", journalctl="/nonexistent", deadline_seconds=60)
    assert not record_path(state).exists()


def test_a_flood_of_disks_does_not_push_out_the_gpus(state: Path, log: KernelLogFile) -> None:
    log.say(XID.format(1), *[f"I/O error, dev sd{number}, sector 1" for number in range(1000)])
    taken = take(state, log)
    assert "0000:01:00" in counts(taken)
    assert len(taken.events) <= 513
    assert os.path.getsize(record_path(state)) < 1 << 20
