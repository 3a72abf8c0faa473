"""How far slow work is: one line on a terminal, some lines in a log, STATUS= for a service manager."""

from __future__ import annotations

import socket
import time
from io import StringIO
from pathlib import Path

import pytest

from coldstart_cli.printer import Level, Printer
from conftest import wait_until


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldstart_cli.watch.TERMINAL_SECONDS", 0.01)
    monkeypatch.setattr("coldstart_cli.watch._STATUS_SECONDS", 0.01)
    monkeypatch.setattr("coldstart_cli.printer.LOG_SECONDS", 0.01)
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_has_one_line_that_is_gone_in_the_end() -> None:
    stderr = Terminal()
    steps = ["first"]
    printer = Printer(stdout=StringIO(), stderr=stderr)
    with printer.watching(lambda: steps[-1]):
        wait_until(lambda: "first" in stderr.getvalue(), "the first line")
        steps.append("second")
        wait_until(lambda: "second" in stderr.getvalue(), "the line brought up to date")
    assert stderr.getvalue().startswith("\rfirst\x1b[K\r")
    assert stderr.getvalue().endswith("second\x1b[K\r\x1b[K")
    assert "\n" not in stderr.getvalue()


def test_a_long_line_is_cut_so_that_it_does_not_wrap() -> None:
    stderr = Terminal()
    with Printer(stderr=stderr).watching(lambda: "x" * 500):
        wait_until(lambda: "x" in stderr.getvalue(), "the line")
    assert max(map(len, stderr.getvalue().replace("\x1b[K", "").split("\r"))) == 79


def test_names_cannot_speak_to_the_terminal() -> None:
    stderr = Terminal()
    with Printer(stderr=stderr).watching(lambda: "reading a\x1b]0;title\x07\nb"):
        wait_until(lambda: "reading" in stderr.getvalue(), "the line")
    assert "\x1b]" not in stderr.getvalue()
    assert r"reading a\x1b]0;title\x07\nb" in stderr.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_elsewhere_it_is_a_line_now_and_then(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal() if terminal else StringIO()
    monkeypatch.setenv("TERM", "dumb")
    steps = ["opening"]
    with Printer(stderr=stderr).watching(lambda: steps[-1]):
        assert stderr.getvalue() == "opening\n"
        steps.append("half")
        wait_until(lambda: "half\n" in stderr.getvalue(), "a line of the log")
    assert set(stderr.getvalue().splitlines()) == {"opening", "half"}


def test_short_work_is_one_line_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldstart_cli.printer.LOG_SECONDS", 3600)
    stderr = StringIO()
    started = time.monotonic()
    with Printer(stderr=stderr).watching(lambda: "opening"):
        pass
    assert stderr.getvalue() == "opening\n"
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("stream", [Terminal, StringIO])
def test_a_quiet_command_shows_nothing_but_tells_the_service_manager(
    stream: type[StringIO], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = stream()
    steps = ["opening"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with Printer(stderr=stderr, level=Level.QUIET).watching(lambda: steps[-1]):
            assert channel.recv(4096) == b"STATUS=opening"
            steps.append("half")
            wait_until(lambda: channel.recv(4096) == b"STATUS=half", "a newer status")
    assert stderr.getvalue() == ""


def test_an_error_ends_the_line_first() -> None:
    stderr = Terminal()

    def work() -> None:
        with Printer(stderr=stderr).watching(lambda: "working"):
            wait_until(lambda: "working" in stderr.getvalue(), "the line")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert stderr.getvalue().endswith("\r\x1b[K")
