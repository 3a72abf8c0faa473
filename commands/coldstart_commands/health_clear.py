"""coldstart health clear: take a GPU out of quarantine, on record."""

from __future__ import annotations

from typing import Annotated

import typer

from coldstart_cli.errors import UsageError
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

GpuArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[GPU]",
        help="UUID or its beginning, serial number, index or PCI address; `host` for the host.",
    ),
]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="What was done about the cause; goes into the log.")
]
AllOption = Annotated[
    bool,
    typer.Option("--all", help="Everything, also where the record is damaged: it is put aside first."),
]

BaselineOption = Annotated[
    bool,
    typer.Option("--baseline", help="Forget what is usual for the GPU instead: it starts anew."),
]


@coldstart_command()
def command(
    shell: Shell,
    reason: ReasonOption,
    gpu: GpuArgument = None,
    everything: AllOption = False,
    baseline: BaselineOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Take a GPU out of quarantine, with who did it, when and why in the audit log.

    A cause that is still there puts it back at the next check, where it goes on: repairs that did not help
    stay counted.
    """
    from coldstart_health.audit import this_person
    from coldstart_health.clearing import clear_all, clear_gpu, describe, forget_baseline
    from coldstart_health.quarantine_run import why

    if everything == (gpu is not None):
        raise UsageError("name one GPU, or give --all", hint="`coldstart health status` lists them")
    person = this_person()
    if baseline:
        if gpu is None:
            raise UsageError("options exclude each other: --baseline and --all")
        name = forget_baseline(shell.config, gpu, why=reason, by=person, dry_run=dry_run)
        shell.printer.answer(f"{'would forget' if dry_run else 'forgot'} what is usual for {describe(name)}")
        content = {"gpu": vars(name), "by": person.label, "reason": reason, "dry_run": dry_run}
        shell.printer.document("health.clear.baseline", 1, content)
        return
    if gpu is None:
        cleared = clear_all(shell.config, why=reason, by=person, dry_run=dry_run)
    else:
        cleared = clear_gpu(shell.config, gpu, why=reason, by=person, dry_run=dry_run)
    verb = "would clear" if dry_run else "cleared"
    for record in cleared.records:
        shell.printer.answer(f"{verb} {describe(record.name)}: {record.verdict.word} {why(record)}")
    if cleared.kept:
        shell.printer.answer(f"started anew; the record before is kept as {cleared.kept}")
    elif not cleared.records:
        shell.printer.answer("nothing is in quarantine" if not dry_run else "would start anew")
    document = {
        "cleared": [
            {**vars(record.name), "verdict": record.verdict.word, "causes": [c.reason for c in record.causes]}
            for record in cleared.records
        ],
        "kept": None if cleared.kept is None else str(cleared.kept),
        "by": person.label,
        "reason": reason,
        "dry_run": dry_run,
    }
    shell.printer.document("health.clear", 1, document)
