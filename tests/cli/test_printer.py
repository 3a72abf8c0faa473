"""stdout is the answer, stderr the conversation: for people, for pipes, for the journal."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_cli.printer import ColorMode, Level, Printer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _printer(
    *,
    terminal: bool = False,
    level: Level = Level.NORMAL,
    color: ColorMode = ColorMode.AUTO,
    json_output: bool = False,
) -> tuple[Printer, io.StringIO, io.StringIO]:
    stdout, stderr = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    printer = Printer(level=level, color=color, json_output=json_output, stdout=stdout, stderr=stderr)
    return printer, stdout, stderr


def _say_everything(printer: Printer) -> None:
    printer.answer("the answer")
    printer.table(["name", "size"], [["a", "1"]])
    printer.note("a note")
    printer.debug("a detail")
    printer.warning("a warning")
    printer.error(DataError("an error", hint="a way out"))


def test_answers_and_conversation_do_not_mix() -> None:
    printer, stdout, stderr = _printer()
    _say_everything(printer)
    assert stdout.getvalue() == "the answer\nname  size\na     1\n"
    assert stderr.getvalue() == (
        "a note\ncoldstart: warning: a warning\ncoldstart: error: an error\nhint: a way out\n"
    )


def test_quiet_keeps_answer_warnings_and_errors() -> None:
    printer, stdout, stderr = _printer(level=Level.QUIET)
    _say_everything(printer)
    assert "the answer" in stdout.getvalue()
    assert "note" not in stderr.getvalue()
    assert "a warning" in stderr.getvalue()
    assert "an error" in stderr.getvalue()


def test_verbose_adds_details() -> None:
    printer, _, stderr = _printer(level=Level.VERBOSE)
    _say_everything(printer)
    assert "a detail" in stderr.getvalue()


def test_json_is_the_whole_answer_and_begins_with_schema_and_version() -> None:
    printer, stdout, _ = _printer(json_output=True)
    _say_everything(printer)
    printer.document("thing", 1, {"name": "b\udcffx\n", "size_bytes": 1 << 40})
    document = json.loads(stdout.getvalue())
    assert list(document) == ["schema", "version", "name", "size_bytes"]
    assert document["schema"] == "coldstart.thing"
    assert stdout.getvalue().isascii()


def test_a_document_is_silent_without_json() -> None:
    printer, stdout, _ = _printer()
    printer.document("thing", 1, {})
    assert stdout.getvalue() == ""


def test_json_has_no_numbers_that_json_does_not_know() -> None:
    printer, _, _ = _printer(json_output=True)
    with pytest.raises(ValueError, match="JSON compliant"):
        printer.document("thing", 1, {"ratio": float("nan")})


def test_columns_line_up_and_numbers_stand_right() -> None:
    printer, stdout, _ = _printer()
    printer.table(["name", "bytes"], [["long name", "7"], ["b", "12345678"]], right=[1])
    assert stdout.getvalue() == "name          bytes\nlong name         7\nb          12345678\n"


def test_rows_of_a_table_with_given_widths_are_printed_as_they_come() -> None:
    printer, stdout, _ = _printer()

    def rows() -> Iterator[list[str]]:
        yield ["a", "1"]
        assert stdout.getvalue() == "name        bytes\na               1\n"
        yield ["wider than said", "22"]

    printer.table(["name", "bytes"], rows(), right=[1], widths=[9, 6])
    assert stdout.getvalue().splitlines()[2] == "wider than said      22"


def test_an_empty_table_shows_its_headings() -> None:
    printer, stdout, _ = _printer()
    printer.table(["name", "bytes"], [])
    assert stdout.getvalue() == "name  bytes\n"


# --- colour ---


@pytest.mark.parametrize(
    ("terminal", "mode", "environment", "colored"),
    [
        (True, ColorMode.AUTO, {}, True),
        (False, ColorMode.AUTO, {}, False),
        (False, ColorMode.ALWAYS, {}, True),
        (True, ColorMode.NEVER, {}, False),
        (True, ColorMode.AUTO, {"NO_COLOR": "1"}, False),
        (True, ColorMode.AUTO, {"NO_COLOR": ""}, True),
        (True, ColorMode.AUTO, {"TERM": "dumb"}, False),
        (True, ColorMode.ALWAYS, {"NO_COLOR": "1"}, True),
    ],
)
def test_colour_follows_the_terminal_the_option_and_no_color(
    terminal: bool,
    mode: ColorMode,
    environment: dict[str, str],
    colored: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    printer, stdout, stderr = _printer(terminal=terminal, color=mode)
    printer.answer(printer.style("fine", "ok"))
    printer.warning("look")
    assert stdout.getvalue() == ("\x1b[32mfine\x1b[0m\n" if colored else "fine\n")
    assert ("\x1b[33m" in stderr.getvalue()) is colored


# --- names that hold anything ---


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain \u00e9\u4e2d", "plain \u00e9\u4e2d"),
        ("b\udcff", "b\\xff"),
        ("bell\x07", "bell\\x07"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("c1\x9b31m", "c1\\x9b31m"),
        ("cr\rover", "cr\\rover"),
        ("\ud800", "\\ud800"),
        ("rtl\u202e", "rtl\\u202e"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("two\nlines\tof", "two\\nlines\\tof"),
        ("line\u2028end", "line\\u2028end"),
    ],
)
def test_names_cannot_speak_to_the_terminal(name: str, shown: str) -> None:
    printer, stdout, stderr = _printer()
    printer.answer(name)
    printer.table(["name"], [[name]])
    printer.warning(name)
    printer.note(name)
    with printer.progress(name):
        printer.status(name)
    printer.error(DataError(name, hint=name))
    assert stdout.getvalue() == f"{shown}\nname\n{shown}\n"
    assert stderr.getvalue() == (
        f"coldstart: warning: {shown}\n{shown}\n{shown}\n{shown}\ncoldstart: error: {shown}\nhint: {shown}\n"
    )


def test_a_name_in_a_coloured_part_stays_a_name() -> None:
    printer, stdout, _ = _printer(terminal=True, color=ColorMode.ALWAYS)
    printer.answer(printer.style("\x1b[31ma\nb\x1b[0m", "ok"))
    assert stdout.getvalue() == "\x1b[32m\\x1b[31ma\\nb\\x1b[0m\x1b[0m\n"


def test_a_name_in_the_progress_of_a_terminal_is_no_markup() -> None:
    printer, _, stderr = _printer(terminal=True, color=ColorMode.NEVER)
    with printer.progress("reading [bold]\x07\n"):
        pass
    assert "reading [bold]\\x07\\n" in stderr.getvalue()


def test_a_line_break_in_a_name_does_not_break_a_table() -> None:
    printer, stdout, _ = _printer()
    printer.table(["name", "size"], [["a\nb\tc", "1"]])
    assert stdout.getvalue() == "name     size\na\\nb\\tc  1\n"


# --- the journal and the service manager ---


def test_the_journal_gets_priorities_and_no_colour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        printer = Printer(level=Level.VERBOSE, stderr=stream)
        _say_everything(Printer(level=Level.VERBOSE, stdout=io.StringIO(), stderr=stream))
        printer.note("two\nlines")
        stream.seek(0)
        said = stream.read().splitlines()
    assert said == [
        "<6>a note",
        "<7>a detail",
        "<4>coldstart: warning: a warning",
        "<3>coldstart: error: an error",
        "<5>hint: a way out",
        "<6>two\\nlines",
    ]


def test_a_file_beside_the_journal_gets_no_priorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a unit's `coldstart ... 2>file` inherits JOURNAL_STREAM all the same
    monkeypatch.setenv("JOURNAL_STREAM", "1:1")
    with (tmp_path / "log").open("w+") as stream:
        Printer(stderr=stream).note("plain")
        stream.seek(0)
        assert stream.read() == "plain\n"


def test_progress_is_a_status_for_the_service_manager_and_a_note_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        printer, stdout, stderr = _printer()
        with printer.progress("indexing"):
            printer.answer("done")
        assert channel.recv(4096) == b"STATUS=indexing"
    assert stdout.getvalue() == "done\n"
    assert stderr.getvalue() == "indexing\n"


def test_progress_on_a_terminal_leaves_the_answer_alone() -> None:
    printer, stdout, stderr = _printer(terminal=True, color=ColorMode.NEVER)
    with printer.progress("indexing"):
        printer.answer("done")
    assert stdout.getvalue() == "done\n"
    assert "indexing" in stderr.getvalue()
    assert "rich" in sys.modules
