"""Errors on their way from one process to another, so that the exit code stays the same."""

from __future__ import annotations

from typing import Any

from coldstart_cli.errors import ColdstartError, ExitCode


def as_message(error: ColdstartError) -> dict[str, Any]:
    """An error as JSON values; `as_error` undoes it."""
    return {"error": error.message, "hint": error.hint, "exit_code": int(error.exit_code)}


def as_error(message: dict[str, Any]) -> ColdstartError:
    """The same kind of error that the other process met."""
    for kind in ColdstartError.__subclasses__():
        if kind.exit_code == ExitCode(message["exit_code"]) and kind.__module__ == ColdstartError.__module__:
            return kind(message["error"], hint=message["hint"])
    return ColdstartError(message["error"], hint=message["hint"])
