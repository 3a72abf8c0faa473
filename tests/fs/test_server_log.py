"""A log that cannot fill a disk and does not drown its news in repetitions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coldstart_fs.mounts import server_log
from coldstart_fs.mounts.server_log import ServerLog, log_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_a_message_is_a_line_with_its_time(path: Path) -> None:
    descriptor = log_file(str(path))
    log = ServerLog(descriptor)
    log("one")
    log("zw\u00f6lf \udcff")
    log("a name\nof two lines \x1b[31m")
    os.close(descriptor)
    first, second, third = path.read_bytes().splitlines()
    assert first.endswith(b"Z one")
    assert second.endswith("Z zw\u00f6lf \\xff".encode())
    assert third.endswith(b"Z a name\\nof two lines \\x1b[31m")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_log_begins_anew_and_stays_bounded(path: Path) -> None:
    descriptor = log_file(str(path))
    log = ServerLog(descriptor, limit_bytes=2000)
    for number in range(500):
        log(f"message {number}")
        assert path.stat().st_size <= 2000 + 200
    os.close(descriptor)
    lines = path.read_text().splitlines()
    assert "begins anew" in lines[0]
    assert lines[-1].endswith("message 499")
    assert "\0" not in path.read_text()


def test_repetitions_are_counted(path: Path) -> None:
    descriptor = log_file(str(path))
    log = ServerLog(descriptor)
    for _ in range(100):
        log("the same")
    log("another")
    os.close(descriptor)
    texts = [line.split(" ", 1)[1] for line in path.read_text().splitlines()]
    assert texts == ["the same", "(last message repeated 99 times)", "another"]


def test_what_goes_on_is_said_again_after_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_log, "_SAME_TEXT_SECONDS", 0.0)
    descriptor = log_file(str(path))
    log = ServerLog(descriptor)
    log("the same")
    log("the same")
    os.close(descriptor)
    assert len(path.read_text().splitlines()) == 2


def test_a_log_that_cannot_be_written_stops_nobody() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    log = ServerLog(writing)
    log("nobody reads this")
    os.close(writing)
