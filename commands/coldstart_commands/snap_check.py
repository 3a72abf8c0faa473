"""coldstart snap check: can this server be captured, and if not, everything that forbids it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_snapshot.preflight.finding import Finding

ContainerOption = Annotated[
    str | None, typer.Option("--container", metavar="ID", help="Look at this container of runc.")
]
RuncRootOption = Annotated[
    Path | None,
    typer.Option("--runc-root", metavar="DIR", help="runc's state folder, where it is not coldstart's own."),
]
PidOption = Annotated[
    int | None, typer.Option("--pid", metavar="PID", help="Look at this process and its descendants.")
]


@coldstart_command()
def command(
    shell: Shell,
    container: ContainerOption = None,
    runc_root: RuncRootOption = None,
    pid: PidOption = None,
) -> None:
    """Look at a running server and say everything that keeps it from being captured, each with its remedy.

    Nothing is changed, and the server does not stand still; one that a killed capture left frozen is
    thawed. Exit 0: `snap create` may go ahead, notes or not. Exit 3: it cannot be captured as it is.
    docs/snapshot-reasons.md has all codes.
    """
    from coldstart_cli.errors import NegativeAnswer
    from coldstart_snapshot.capturing.checking import check_server
    from coldstart_snapshot.preflight.check import blockers

    checked = check_server(
        shell.config, container_id=container, pid=pid, runc_root=runc_root, say=shell.printer.status
    )
    forbidding = blockers(checked.findings)
    _show(shell, checked.label, checked.findings)
    document = {
        "capturable": not forbidding,
        "target": checked.label,
        "processes": checked.processes,
        "needed_bytes": checked.needed_bytes,
        "findings": [finding.to_dict() for finding in checked.findings],
    }
    shell.printer.document("snap.check", 1, document)
    if forbidding:
        count = "1 reason" if len(forbidding) == 1 else f"{len(forbidding)} reasons"
        raise NegativeAnswer(f"{checked.label} cannot be captured, for {count}")


def _show(shell: Shell, label: str, findings: Sequence[Finding]) -> None:
    printer = shell.printer
    for finding in findings:
        style = "error" if finding.severity == "blocker" else "warning"
        word = printer.style(f"{finding.severity:<7}", style)
        printer.answer(f"{word}  {printer.style(finding.code, 'bold')}: {finding.what}")
        printer.answer(f"         {printer.style('remedy:', 'hint')} {finding.remedy}")
    if not any(finding.severity == "blocker" for finding in findings):
        printer.answer(f"{label} can be captured")
