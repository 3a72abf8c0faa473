"""coldstart health quick: verdict in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import UsageError
from coldstart_commands.health_answer import NagiosOption, Outputs, PrometheusOption, answer_with
from coldstart_commands.health_explain import answer_with_meaning
from coldstart_commands.health_replay import answer_with_replay
from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_health.verdict import HealthReport


@coldstart_command("health.expect_gpus")
def command(
    shell: Shell,
    active: Annotated[
        bool,
        typer.Option(
            "--active",
            help="Also put the GPUs to work: `dcgmi diag -r 1` (a minute), or a copy where there is no DCGM.",
        ),
    ] = False,
    active_timeout: Annotated[
        float, typer.Option("--active-timeout", metavar="SECONDS", min=1, help="Deadline of `--active`.")
    ] = 90,
    nagios: NagiosOption = False,
    prometheus: PrometheusOption = None,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain", metavar="CODE", help="Look at nothing; say what a reason code or an XID means."
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="DIR|FILE",
            help="Look at nothing here; judge what `health collect` recorded, or a saved dmesg.",
        ),
    ] = None,
) -> None:
    """Say in under five seconds whether this host and its GPUs may serve: driver, GPUs, fabric, pressure.

    Verdicts, the worst wins: ok, degraded (both exit 0), unknown, drain, reset, reboot, replace (all exit 3).
    """
    if explain is not None:
        answer_with_meaning(shell, explain)
        return
    if replay is not None:
        if active or nagios or prometheus:
            raise UsageError("--replay looks at no host: leave out --active, --nagios and --prometheus")
        answer_with_replay(shell, replay)
        return
    from coldstart_health.checks import quick_check

    def check() -> HealthReport:
        return quick_check(shell.config, active=active, active_deadline_seconds=active_timeout)

    answer_with(shell, Outputs("quick", nagios, prometheus), check)
