"""Exit codes and the one family of expected errors. Anything else that escapes is a bug."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Every status that `coldstart` ends with; systemd knows the names of 64-78."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    VERDICT = 3
    DATAERR = 65
    NOINPUT = 66
    UNAVAILABLE = 69
    SOFTWARE = 70
    CANTCREAT = 73
    IOERR = 74
    TEMPFAIL = 75
    NOPERM = 77
    CONFIG = 78
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_CODE_MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done; for a verdict command: healthy, feasible, identical",
    ExitCode.FAILURE: "failed while doing it, and no code says more",
    ExitCode.USAGE: "bad arguments",
    ExitCode.VERDICT: "the command worked and the answer is no: sick GPU, shortage, host with gaps",
    ExitCode.DATAERR: "damaged or unusable input: index, chunk, snapshot, CSV",
    ExitCode.NOINPUT: "a named image, snapshot, file or mount point does not exist",
    ExitCode.UNAVAILABLE: "a program, driver or kernel feature is not there",
    ExitCode.SOFTWARE: "a bug in coldstart; the traceback is shown",
    ExitCode.CANTCREAT: "an output cannot be created",
    ExitCode.IOERR: "reading or writing failed",
    ExitCode.TEMPFAIL: "busy, locked, timed out or out of reach: try again",
    ExitCode.NOPERM: "needs privileges",
    ExitCode.CONFIG: "the configuration is wrong",
    ExitCode.INTERRUPTED: "interrupted (SIGINT), after cleaning up",
    ExitCode.TERMINATED: "terminated (SIGTERM), after cleaning up",
}


class ColdstartError(Exception):
    """An expected failure: `message` names the object, `hint` is one command or edit."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILURE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def add(self, text: str) -> None:
        """Say more about a failure on its way up: the kind of the error stays."""
        self.message = f"{self.message}; {text}"

    def __str__(self) -> str:
        return self.message


class UsageError(ColdstartError):
    exit_code = ExitCode.USAGE


class NegativeAnswer(ColdstartError):  # noqa: N818 - an answer, not a failure
    """The command did its work and the answer is no."""

    exit_code = ExitCode.VERDICT


class AnswerStatus(Exception):  # noqa: N818 - an answer, not a failure
    """The answer is printed, or cannot be, and the protocol it follows has exit statuses of its own."""

    def __init__(self, status: int, *, answered: bool = True) -> None:
        super().__init__(status)
        self.status = status
        self.answered = answered


class DataError(ColdstartError):
    exit_code = ExitCode.DATAERR


class NotFoundError(ColdstartError):
    exit_code = ExitCode.NOINPUT


class UnavailableError(ColdstartError):
    exit_code = ExitCode.UNAVAILABLE


class CannotCreateError(ColdstartError):
    exit_code = ExitCode.CANTCREAT


class IoFailure(ColdstartError):  # noqa: N818 - EX_IOERR's name
    exit_code = ExitCode.IOERR


class UnreachableError(IoFailure):
    """A server does not answer, or not now: another try may do."""

    exit_code = ExitCode.TEMPFAIL


class BusyError(ColdstartError):
    exit_code = ExitCode.TEMPFAIL


class PermissionNeededError(ColdstartError):
    exit_code = ExitCode.NOPERM

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        if hint is not None and os.geteuid() == 0:  # root may be refused too: NFS, an immutable folder
            hint = None if hint == "run as root" else hint.removeprefix("run as root, or ")
        super().__init__(message, hint=hint)


class ConfigError(ColdstartError):
    exit_code = ExitCode.CONFIG


class Terminated(BaseException):
    """SIGTERM, raised in the main thread so that context managers unwind."""


def near_matches_hint(
    name: str, candidates: Iterable[str], *, otherwise: str | None = None, prefix: str = ""
) -> str | None:
    """'did you mean ...' from the closest candidates after a common `prefix`, else `otherwise`."""
    matches = difflib.get_close_matches(name, sorted(set(candidates)), n=3, cutoff=0.6)
    if not matches:
        return otherwise
    return "did you mean " + " or ".join(f"`{prefix}{match}`" for match in matches) + "?"
