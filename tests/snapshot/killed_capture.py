"""A capture that is cut short at a named step, as a program: `MODULE[/CLASS]:NAME:before|after HOW REQUEST`.

HOW is `command` or `guardian` (killed with it), or a signal by its name, which it may handle. Only where
it is cut short is made up; everything that it does until then is the real thing.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from coldstart_cli.config import load
from coldstart_cli.errors import Terminated
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.capturing.journal import read_records


def cut_short(how: str) -> None:
    if how == "guardian":
        for record in read_records(load().run_folder):
            os.kill(record.guardian_pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.Signals[how] if how.startswith("SIG") else signal.SIGKILL)


def arm(step: str, how: str) -> None:
    """Let this process be cut short before or after the named function, which may be a method."""
    path, name, when = step.split(":")
    module, _, kind = path.partition("/")
    owner: Any = importlib.import_module(f"coldstart_snapshot.{module}")
    if kind:
        owner = getattr(owner, kind)
    real: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(real)
    def fatal(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named) if when == "after" else None
        cut_short(how)
        # a signal that is held back comes later
        return result if when == "after" else real(*arguments, **named)

    setattr(owner, name, fatal)


def main() -> None:
    step, how, request = sys.argv[1:]
    if step != "never":
        arm(step, how)
    signal.signal(signal.SIGTERM, terminate)
    captured = create_snapshot(
        CaptureRequest(**json.loads(request)), load(), lambda text: print(text, file=sys.stderr)
    )
    print(*captured.notes, sep="\n", file=sys.stderr)


def terminate(*_: object) -> None:
    """What the command does with the signal."""
    raise Terminated


if __name__ == "__main__":
    main()
