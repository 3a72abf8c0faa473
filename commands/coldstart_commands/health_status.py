"""coldstart health status: what is in quarantine, why, and what would release it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coldstart_cli.errors import NegativeAnswer
from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_health.last_run import LastRun
    from coldstart_health.quarantine_record import GpuRecord
    from coldstart_health.standing import Standing


@coldstart_command()
def command(shell: Shell) -> None:
    """Say what is in quarantine, since when and why, what would release it, and how the last checks ended.

    Reads what is on record and asks no driver. `health quick` looks anew.
    """
    from coldstart_health.quarantine_run import next_step, why
    from coldstart_health.standing import standing

    printer = shell.printer
    now = standing(shell.config)
    for warning in now.warnings:
        printer.warning(warning)
    for record in now.records:
        word = printer.style(record.verdict.word.ljust(8), "error" if record.blocks else "warning")
        printer.answer(f"{word}  {_names(record)}")
        printer.answer(f"{' ' * 10}- {why(record)}")
        printer.answer(f"{' ' * 10}- next: {next_step(record, now.policy)}")
        if record.repairs:
            tried = ", ".join(_repairs(record))
            printer.answer(f"{' ' * 10}- tried so far: {tried}")
    if not now.records:
        printer.answer("nothing is in quarantine")
    for run in now.runs:
        printer.answer(f"last {run.kind} check: {_run(now, run)}")
    printer.document("health.status", 1, now.document())
    if blocking := now.blocking:
        more = f" (and {len(blocking) - 1} more)" if len(blocking) > 1 else ""
        record = max(blocking, key=lambda record: record.verdict)
        raise NegativeAnswer(
            f"in quarantine: {record.name.subject}: {record.verdict.word}{more}",
            hint=next_step(record, now.policy),
        )


def _names(record: GpuRecord) -> str:
    from coldstart_health.clearing import describe

    here = "" if record.present else "  (not on this host)"
    model = f"  {record.name.model}" if record.name.model else ""
    return f"{describe(record.name)}{model}{here}"


def _repairs(record: GpuRecord) -> list[str]:
    return [
        f"{repair.kind} {repair.at.utc[:10]} {'helped' if repair.helped else 'did not help'}"
        for repair in record.repairs[-4:]
    ]


def _run(now: Standing, run: LastRun) -> str:
    boot = "" if now.this_boot(run) else ", in an earlier boot"
    return f"{run.at.utc}{boot}: {run.summary}"
