"""coldstart health deep: DCGM's long diagnosis."""

from __future__ import annotations

from typing import Annotated

import typer

from coldstart_commands.health_answer import answer
from coldstart_commands.shell import Shell, coldstart_command


@coldstart_command("health.expect_gpus", "lock_wait_seconds")
def command(
    shell: Shell,
    level: Annotated[
        int,
        typer.Option("--level", metavar="1-4", min=1, max=4, help="How thorough `dcgmi diag -r` shall be."),
    ] = 3,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", min=1, help="Deadline; default 90 s, 15 min, 1 h, 4 h by level."
        ),
    ] = None,
) -> None:
    """Run DCGM's diagnosis on every GPU of an idle host and translate it into verdicts.

    Refuses while a GPU is in use or split by MIG. Verdicts and exit codes are those of `health quick`.
    """
    from coldstart_health.deep import deep_check

    with shell.printer.progress(f"running dcgmi diag -r {level}"):
        report = deep_check(shell.config, level=level, deadline_seconds=timeout)
    answer(shell, report, "health.deep")
