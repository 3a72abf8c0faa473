"""coldstart snap explain: what a criu log means."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from coldstart_commands.shell import Shell, coldstart_command

LogArgument = Annotated[
    str,
    typer.Argument(
        metavar="LOG|NAME",
        help="A log or working folder of criu, `-` for standard input, or a snapshot whose last run failed.",
    ),
]


@coldstart_command()
def command(shell: Shell, log: LogArgument) -> None:
    """Say what a criu log means: a reason code, one sentence, what to do, and criu's own line.

    Logs of plain criu, runc, podman and docker are read too. Exit 3: there is no error in it.
    docs/snapshot-reasons.md has all codes.
    """
    from coldstart_cli.errors import NegativeAnswer
    from coldstart_snapshot.criu.explain import explain

    printer = shell.printer
    explained = explain(log, shell.config.run_folder, sys.stdin.buffer)
    found = explained.explanation
    source = str(explained.log) if explained.log else "standard input"
    if explained.log and explained.written and str(explained.log) != log:
        printer.note(f"{source}, written {explained.written:%Y-%m-%d %H:%M:%S} UTC")
    if found:
        printer.answer(f"{printer.style(found.code, 'bold')}: {found.message}")
        printer.answer(f"  {printer.style('remedy:', 'hint')} {found.hint}")
        printer.answer(f"  {printer.style('criu:', 'dim')}   {found.line}")
    document = {
        "found": found is not None,
        "code": found.code if found else None,
        "message": found.message if found else None,
        "remedy": found.hint if found else None,
        "line": found.line if found else None,
        "log": str(explained.log) if explained.log else None,
        "written": explained.written.isoformat(timespec="seconds").replace("+00:00", "Z")
        if explained.written
        else None,
    }
    printer.document("snap.explain", 1, document)
    if found is None:
        hint = f"its text names another log: {explained.mentioned}" if explained.mentioned else None
        raise NegativeAnswer(f"no error of criu in {source}", hint=hint)
