"""One place decides what goes where: stdout is the answer, stderr the conversation."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from typing import Any, TextIO

from coldstart_cli.errors import ColdstartError
from coldstart_cli.notify import notify
from coldstart_cli.plain import plain
from coldstart_cli.watch import LOG_SECONDS, line_kept, repeating, status_kept


class Level(IntEnum):
    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


class ColorMode(StrEnum):
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


_STYLES = {"error": "31", "warning": "33", "ok": "32", "hint": "36", "bold": "1", "dim": "2"}
# syslog priorities that journald reads from the start of a line
_JOURNAL_PRIORITY = {"error": "<3>", "warning": "<4>", "note": "<6>", "debug": "<7>", "hint": "<5>"}


# a name may hold any escape sequence, but not a number that this process drew
_SECRET = os.urandom(16).hex()
_STYLED = re.compile(rf"(\x1b<{_SECRET}:[0-9]+>)")


class Printer:
    """Renders answers and messages. Components never see it: only commands do."""

    def __init__(
        self,
        *,
        level: Level = Level.NORMAL,
        color: ColorMode = ColorMode.AUTO,
        json_output: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.level = level
        self.json_output = json_output
        self._color = color
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self._journal = _is_journal(self._stderr)

    # --- the answer, on stdout ---

    def answer(self, text: str = "") -> None:
        """A line of the answer; nothing under `--json`, where the document is the answer."""
        if not self.json_output:
            # at once: a command that stays may be read through a pipe
            print(_printable(text), file=self._stdout, flush=True)

    def document(self, schema: str, version: int, content: Mapping[str, Any]) -> None:
        """The answer as one JSON document, `schema` and `version` first; nothing without `--json`."""
        if self.json_output:
            document = {"schema": f"coldstart.{schema}", "version": version, **content}
            json.dump(document, self._stdout, indent=2, allow_nan=False)
            self._stdout.write("\n")
            self._stdout.flush()

    def table(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Sequence[int] = (),
        widths: Sequence[int] | None = None,
    ) -> None:
        """Aligned columns, whole values even when piped; `right` names right-aligned columns.

        With `widths`, the least width of each column, rows are printed as they come.
        """
        if self.json_output:
            return
        cells: Iterable[list[str]] = ([plain(cell) for cell in row] for row in rows)
        if widths is None:
            cells = list(cells)
            widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
        for number, row in enumerate(itertools.chain([headings], cells)):
            line = "  ".join(
                cell.rjust(width) if column in right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            print(self._paint(line, "bold", self._stdout) if number == 0 else line, file=self._stdout)

    def can_show(self, text: str) -> bool:
        """Whether stdout's encoding has these characters: a plain locale has no block elements."""
        try:
            text.encode(getattr(self._stdout, "encoding", None) or "utf-8")
        except UnicodeEncodeError:
            return False
        return True

    # --- the conversation, on stderr ---

    def note(self, text: str) -> None:
        if self.level >= Level.NORMAL:
            self._say("note", text)

    def debug(self, text: str) -> None:
        if self.level >= Level.VERBOSE:
            self._say("debug", text)

    def warning(self, text: str) -> None:
        self._say("warning", text, "coldstart: warning:")

    def error(self, error: ColdstartError) -> None:
        self._say("error", error.message, "coldstart: error:")
        if error.hint:
            self._say("hint", error.hint, "hint:")

    def status(self, text: str) -> None:
        """What is being done now: a note for people, STATUS= for a service manager."""
        notify(f"STATUS={text}")
        self.note(text)

    @contextmanager
    def progress(self, text: str) -> Iterator[None]:
        """Show life on a terminal while slow work goes on; a plain note elsewhere."""
        if self.level < Level.NORMAL or not self._stderr.isatty() or self._journal:
            self.status(text)
            yield
            return
        # rich costs 40 ms to import: only a terminal pays for it
        from rich.console import Console
        from rich.status import Status
        from rich.text import Text

        notify(f"STATUS={text}")
        with Status(Text(plain(text)), console=Console(file=self._stderr), refresh_per_second=8):
            yield

    @contextmanager
    def watching(self, describe: Callable[[], str]) -> Iterator[None]:
        """Show how far slow work is: one line on a terminal, a note now and then elsewhere, and STATUS=."""

        def say() -> str:
            return plain(describe())

        with status_kept(say):
            if self.level < Level.NORMAL:
                yield
            elif self._stderr.isatty() and not self._journal and os.environ.get("TERM") != "dumb":
                with line_kept(self._stderr, say):
                    yield
            else:
                self.note(say())
                with repeating(LOG_SECONDS, lambda: self.note(say())):
                    yield

    def style(self, text: str, style: str) -> str:
        """Colour a part of a line for `answer`, when stdout takes colour."""
        return f"{_mark(_STYLES[style])}{text}{_mark('0')}" if self._colored(self._stdout) else text

    def _say(self, kind: str, text: str, label: str = "") -> None:
        prefix = _JOURNAL_PRIORITY[kind] if self._journal else ""
        start = f"{self._paint(label, kind, self._stderr)} " if label else ""
        print(f"{prefix}{start}{plain(text)}", file=self._stderr, flush=True)

    def _paint(self, text: str, style: str, stream: TextIO) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._colored(stream) else text

    def _colored(self, stream: TextIO) -> bool:
        if self._color is not ColorMode.AUTO:
            return self._color is ColorMode.ALWAYS
        unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return stream.isatty() and not unwanted


def _is_journal(stream: TextIO) -> bool:
    """Whether a stream is the one that JOURNAL_STREAM names: redirected ones inherit the variable too."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # a stream without a descriptor, under some test runners
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _mark(number: str) -> str:
    return f"\x1b<{_SECRET}:{number}>"


def _printable(text: str) -> str:
    """A line of the answer, in which nothing but `style` has a voice."""
    pieces = _STYLED.split(text)
    return "".join(
        f"\x1b[{piece[:-1].rpartition(':')[2]}m" if number % 2 else plain(piece)
        for number, piece in enumerate(pieces)
    )
