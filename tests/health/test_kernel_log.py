"""The kernel log as it is read: /dev/kmsg and the journal, numbers, gaps, floods, forgeries."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from coldstart_cli.errors import UnavailableError
from coldstart_health.kernel_log import read_kernel_log, read_kmsg
from coldstart_health.kernel_reading import Cursor, LogReading
from stand_ins.kernel_log import Journal, KernelLogFile

XID = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
NO_JOURNAL = "/nonexistent/journalctl"


@pytest.fixture
def log(tmp_path: Path) -> KernelLogFile:
    return KernelLogFile(tmp_path / "log")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def read(source: Path | str, after: Cursor | None = None, *, journal: Path | str = NO_JOURNAL) -> LogReading:
    return read_kernel_log(str(source), after, journalctl=str(journal), deadline_seconds=60)


def texts(reading: LogReading) -> list[str]:
    return [record.text for record in reading.records]


def test_records_of_interest_come_with_number_and_time_since_boot(log: KernelLogFile) -> None:
    log.say("usb 1-1: new device", XID)
    reading = read(log.path)
    (record,) = reading.records
    assert (record.sequence, record.usec, record.text) == (2, 2_000_000, XID)
    assert (reading.source, reading.cursor, reading.gap) == ("kmsg", Cursor(2, 2_000_000), None)


def test_only_records_after_the_cursor_come_again(log: KernelLogFile) -> None:
    log.say(XID)
    first = read(log.path)
    log.say(XID)
    again = read(log.path, first.cursor)
    assert [record.sequence for record in again.records] == [2], "the same text again is another event"
    assert read(log.path, again.cursor).records == ()


def test_a_program_cannot_forge_an_xid(log: KernelLogFile, journal: Journal) -> None:
    log.say(XID, facility=1)
    journal.say(XID, facility=1)
    assert read(log.path).records == ()
    assert read("journal", journal=journal.program).records == ()


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="needs to write to /dev/kmsg")
def test_the_running_kernel_marks_what_programs_write_to_its_log() -> None:
    forged = f"<0>NVRM: Xid (PCI:dead:01:00): 79, forged by pid {os.getpid()}"
    before = read_kmsg(Path("/dev/kmsg"), None, deadline_seconds=60)
    Path("/dev/kmsg").write_text(forged)
    after = read_kmsg(Path("/dev/kmsg"), before.cursor, deadline_seconds=60)
    if after.cursor == before.cursor:
        pytest.skip("this kernel takes nothing from programs: kernel.printk_devkmsg is off or ratelimit")
    assert not [text for text in texts(after) if "forged" in text]


def test_overwritten_records_are_counted(log: KernelLogFile) -> None:
    log.say("one", "two", "three")
    cursor = read(log.path).cursor
    log.say("four", "five", XID)
    assert read(log.path, cursor).gap is None
    log.overwrite(6)
    reading = read(log.path, cursor)
    assert reading.gap == "2 records"
    assert texts(reading) == [XID]


def test_a_first_look_says_that_the_beginning_of_the_boot_is_gone(log: KernelLogFile) -> None:
    log.say("one", XID)
    log.overwrite(1)
    assert read(log.path).gap == "1 records"


def test_the_journal_fills_what_the_device_has_lost(log: KernelLogFile, journal: Journal) -> None:
    journal.say("Linux version 6.12.0")
    journal.say("other")
    journal.say(XID)
    journal.say("last")
    log.say("other", XID, "last")
    log.overwrite(3)
    reading = read(log.path, journal=journal.program)
    assert texts(reading) == [XID]
    assert reading.gap is None
    assert reading.records[0].sequence < reading.first.sequence


def test_a_journal_that_does_not_reach_back_leaves_the_gap(log: KernelLogFile, journal: Journal) -> None:
    for text in ("Linux version 6.12.0", "other", XID, "last"):
        journal.say(text)
    journal.rotate(2)
    log.say("other", XID, "last")
    log.overwrite(3)
    reading = read(log.path, journal=journal.program)
    assert texts(reading) == [XID]
    assert reading.gap == "3 records"


def test_records_overwritten_during_the_reading_are_a_gap(log: KernelLogFile) -> None:
    log.say("one", "two", "three", XID)
    lines = iter([b"4,0,0,-;Linux\n", errno.EPIPE, b"4,4,4000000,-;" + XID.encode() + b"\n", errno.EAGAIN])

    def as_the_kernel(_: int, size: int) -> bytes:
        assert size >= 8192, "a smaller buffer gets EINVAL from the kernel"
        piece = next(lines)
        if isinstance(piece, int):
            raise OSError(piece, os.strerror(piece))
        return piece

    reading = read_kmsg(log.path, None, deadline_seconds=60, read=as_the_kernel)
    assert reading.gap == "3 records"
    assert texts(reading) == [XID]


def test_a_flood_of_100000_lines_is_read_to_its_end(log: KernelLogFile) -> None:
    with log.path.open("a") as stream:
        stream.writelines(f"6,{number},{number},-;noise {'x' * 90}\n" for number in range(1, 100_001))
        stream.write(f"4,100001,100001,-;{XID}\n")
    reading = read_kmsg(log.path, None, deadline_seconds=60)
    assert texts(reading) == [XID]
    assert not reading.cut


def test_a_deadline_cuts_the_reading_and_says_so(log: KernelLogFile) -> None:
    with log.path.open("a") as stream:
        stream.writelines(f"6,{number},{number},-;noise\n" for number in range(1, 2000))
    reading = read_kmsg(log.path, None, deadline_seconds=0)
    assert reading.cut
    assert 0 < reading.cursor.sequence < 1999, "the next run goes on where this one stopped"
    assert read_kmsg(log.path, reading.cursor, deadline_seconds=60).cursor.sequence == 1999


def test_bytes_that_are_no_text_and_half_a_line_do_no_harm(log: KernelLogFile) -> None:
    log.say("NVRM: \udcff\udcfe\x07 noise", XID)
    with log.path.open("ab") as stream:
        stream.write(
            b" SUBSYSTEM=pci\nrubbish\n4,x,1,-;NVRM:\n\xff\xfe;NVRM\n4,3,3000000,-;NVRM: Xid (PCI:0000"
        )
    reading = read(log.path)
    assert texts(reading)[-1] == XID
    assert reading.cursor.sequence == 2, "the half line is read when it is whole"


@pytest.mark.parametrize("place", ["/dev/null", "/nonexistent/kmsg", "/proc/1/attr"])
def test_a_container_without_kernel_log_is_denied_and_not_clean(place: str) -> None:
    with pytest.raises(UnavailableError, match="journalctl") as refused:
        read(place)
    assert place in refused.value.message
    assert "systemd-journal" in (refused.value.hint or "")


def test_the_journal_speaks_where_the_device_is_hidden(journal: Journal) -> None:
    journal.say("Linux version 6.12.0")
    journal.say(XID)
    reading = read("/nonexistent/kmsg", journal=journal.program)
    assert (reading.source, texts(reading), reading.gap) == ("journal", [XID], None)


def test_an_empty_journal_is_no_clean_one(journal: Journal) -> None:
    with pytest.raises(UnavailableError, match="no kernel message in the journal"):
        read("journal", journal=journal.program)


def test_the_journal_goes_on_after_its_cursor(journal: Journal) -> None:
    journal.say("Linux version 6.12.0")
    journal.say(XID)
    first = read("journal", journal=journal.program)
    assert read("journal", first.cursor, journal=journal.program).records == ()
    journal.say(XID)
    again = read("journal", first.cursor, journal=journal.program)
    assert texts(again) == [XID]
    assert again.records[0].sequence > first.records[0].sequence
    assert again.gap is None


def test_a_rotated_journal_is_a_gap(journal: Journal) -> None:
    for text in ("Linux version 6.12.0", "one"):
        journal.say(text)
    cursor = read("journal", journal=journal.program).cursor
    for text in ("two", XID):
        journal.say(text)
    journal.rotate(3)
    reading = read("journal", cursor, journal=journal.program)
    assert reading.gap == "records that the journal no longer has"
    assert texts(reading) == [XID]


def test_the_journal_may_hold_bytes_and_nothing(journal: Journal) -> None:
    journal.say("Linux version 6.12.0")
    journal.say([78, 86, 82, 77, 58, 255])
    journal.say(None)
    assert texts(read("journal", journal=journal.program)) == ["NVRM:\ufffd"]


def test_a_change_of_source_repeats_nothing(log: KernelLogFile, journal: Journal) -> None:
    journal.say("Linux version 6.12.0")
    journal.say(XID)
    log.say(XID)
    by_device = read(log.path)
    by_journal = read("journal", by_device.cursor, journal=journal.program)
    assert (by_journal.records, by_journal.gap) == ((), None)
    journal.say(XID)
    cursor = read("journal", by_device.cursor, journal=journal.program).cursor
    log.say(XID)
    back = read(log.path, cursor)
    assert (back.records, back.gap) == ((), None)


def test_a_journalctl_that_hangs_is_left_at_the_deadline(tmp_path: Path) -> None:
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\nsleep 600\n")
    program.chmod(0o755)
    with pytest.raises(UnavailableError, match=r"no end after 0\.2 s"):
        read_kernel_log("journal", None, journalctl=str(program), deadline_seconds=0.2)


def test_a_log_that_began_anew_is_read_whole_and_said(log: KernelLogFile) -> None:
    log.say(XID)
    reading = read(log.path, Cursor(500, 500_000_000))
    assert texts(reading) == [XID]
    assert reading.gap == "the log began anew within this boot"
