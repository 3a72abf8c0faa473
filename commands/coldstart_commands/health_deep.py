"""coldstart health deep: DCGM's long diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_commands.health_answer import NagiosOption, Outputs, PrometheusOption, answer_with
from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_health.verdict import HealthReport


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
    nagios: NagiosOption = False,
    prometheus: PrometheusOption = None,
) -> None:
    """Run DCGM's diagnosis on every GPU of an idle host and translate it into verdicts.

    Refuses while a GPU is in use or split by MIG, and keeps the GPUs out of the pool while it runs. One run
    for each GPU model; what heat or power failed is run once more. Interrupted, it saves what finished.
    Verdicts and exit codes are those of `health quick`.
    """
    from coldstart_health.deep import deep_check

    def check() -> HealthReport:
        with shell.printer.progress(f"running dcgmi diag -r {level}"):
            return deep_check(shell.config, level=level, deadline_seconds=timeout, say=shell.printer.debug)

    answer_with(shell, Outputs("deep", nagios, prometheus), check)
