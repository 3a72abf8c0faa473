"""Closed and full standard streams: a lost answer is a failure, a lost message is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from coldstart_cli.errors import ExitCode
from conftest import Coldstart

COMMANDS = ("snap list", "snap list --json", "--help", "--version", "image ls --help", "")
LOST = "coldstart: error: cannot write the answer: No space left on device\n"
CLOSED = "coldstart: error: cannot write the answer: Bad file descriptor\n"


def _shell(coldstart: Coldstart, script: str, **more: str) -> tuple[int, str, str]:
    done = subprocess.run(
        ["bash", "-c", script, "bash", coldstart.program],
        env=coldstart.environment | more,
        cwd=coldstart.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_that_cannot_be_written_is_a_failure(coldstart: Coldstart, command: str) -> None:
    assert _shell(coldstart, f'"$1" {command} >/dev/full') == (ExitCode.IOERR, "", LOST)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_to_a_closed_stream_is_a_failure(coldstart: Coldstart, command: str) -> None:
    assert _shell(coldstart, f'"$1" {command} >&-') == (ExitCode.IOERR, "", CLOSED)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&- 2>&-"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_message_that_cannot_be_written_changes_nothing(
    coldstart: Coldstart, command: str, redirection: str
) -> None:
    status, answer, _ = _shell(coldstart, f'"$1" {command}')
    assert status == 0
    assert _shell(coldstart, f'"$1" {command} {redirection}') == (0, answer, "")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_an_error_that_cannot_be_said_keeps_its_status_and_stays_off_stdout(
    coldstart: Coldstart, redirection: str
) -> None:
    assert _shell(coldstart, f'"$1" imgae {redirection}') == (ExitCode.USAGE, "", "")
    assert _shell(coldstart, f'"$1" doctor {redirection}', COLDSTART_STROE="x") == (ExitCode.CONFIG, "", "")


def test_a_verdict_that_nobody_got_is_a_failure(coldstart: Coldstart) -> None:
    missing = "/nonexistent/criu"
    status, _, said = _shell(coldstart, '"$1" doctor >/dev/full', COLDSTART_PROGRAMS_CRIU=missing)
    assert status == ExitCode.IOERR
    assert said.endswith(LOST)
    assert "Traceback" not in said
    status, _, said = _shell(coldstart, '"$1" doctor >&-', COLDSTART_PROGRAMS_CRIU=missing)
    assert status == ExitCode.IOERR
    assert said.endswith(CLOSED)
    assert "Traceback" not in said


def test_all_streams_may_be_closed_and_the_answer_is_missed(coldstart: Coldstart) -> None:
    assert _shell(coldstart, '"$1" snap list <&- >&- 2>&-') == (ExitCode.IOERR, "", "")


def test_no_file_gets_the_number_of_a_standard_stream() -> None:
    script = (
        "import os; from coldstart_cli.streams import open_standard_streams as o; o();"
        "assert os.open('/', os.O_RDONLY) > 2; os.write(2, b'x')"
    )
    done = subprocess.run(
        ["bash", "-c", '"$1" -c "$2" <&- >&- 2>&-', "bash", sys.executable, script],
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
