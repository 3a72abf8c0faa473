"""coldstart health quick: verdict in seconds."""

from __future__ import annotations

from typing import Annotated

import typer

from coldstart_commands.health_answer import answer
from coldstart_commands.shell import Shell, coldstart_command


@coldstart_command("health.expect_gpus")
def command(
    shell: Shell,
    active: Annotated[
        bool, typer.Option("--active", help="Also run DCGM's software checks (`dcgmi diag -r 1`, a minute).")
    ] = False,
    active_timeout: Annotated[
        float, typer.Option("--active-timeout", metavar="SECONDS", min=1, help="Deadline of `--active`.")
    ] = 90,
) -> None:
    """Say in under five seconds whether this host and its GPUs may serve: driver, GPUs, pressure.

    Verdicts, the worst wins: ok, degraded (both exit 0), unknown, drain, reset, reboot, replace (all exit 3).
    """
    from coldstart_health.checks import quick_check

    report = quick_check(shell.config, active=active, active_deadline_seconds=active_timeout)
    answer(shell, report, "health.quick")
