"""The standard streams of a command: open whatever the caller did, and honest when the answer is lost."""

from __future__ import annotations

import io
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from coldstart_cli.errors import ColdstartError, IoFailure

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDIN, _STDOUT, _STDERR = 0, 1, 2


class _Answer(io.FileIO):
    """Standard output: what cannot be written there is a failure of the command."""

    def write(self, content: ReadableBuffer, /) -> int:
        try:
            while (written := super().write(content)) is None:
                select.select([], [self], [])  # the caller made it non-blocking
        except BrokenPipeError:
            raise
        except OSError as error:
            raise IoFailure(f"cannot write the answer: {error.strerror}") from error
        return written


class _Conversation(io.FileIO):
    """Standard error: what cannot be written there is lost, and no command fails for it."""

    def write(self, content: ReadableBuffer, /) -> int:
        with suppress(OSError):
            if (written := super().write(content)) is not None:
                return written
        return memoryview(content).nbytes


def open_standard_streams() -> None:
    """Make sure of descriptors 0 to 2, so that no file of ours gets their numbers, and of `sys.std*`."""
    for number in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(number)
        except OSError:
            # the lowest free number is this one: those below it are open; a lost answer is still a failure
            access = os.O_RDWR if number == _STDERR else os.O_RDONLY
            os.set_inheritable(os.open(os.devnull, access), True)
    # CPython makes a stream None whose descriptor was closed
    if sys.stdin is None:
        sys.stdin = open(_STDIN, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = _text(sys.stdout, _Answer(_STDOUT, "w", closefd=False), "strict")
    sys.stderr = _text(sys.stderr, _Conversation(_STDERR, "w", closefd=False), "backslashreplace")


def drop_what_cannot_be_written() -> None:
    """Empty the answer's buffer, or the interpreter's end complains about it and changes the status."""
    try:
        sys.stdout.flush()
    except (OSError, ColdstartError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)
        sys.stdout.flush()


def _text(before: io.TextIOWrapper | object | None, raw: io.FileIO, errors: str) -> io.TextIOWrapper:
    """A text stream over `raw` with the encoding and buffering that the interpreter chose."""
    known = before if isinstance(before, io.TextIOWrapper) else None
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=known.encoding if known else "utf-8",
        errors=(known.errors if known else None) or errors,
        newline=None,
        line_buffering=known.line_buffering if known else True,
        write_through=known.write_through if known else False,
    )
