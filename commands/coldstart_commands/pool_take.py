"""coldstart pool take: free, healthy GPUs of this host for a holder."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_commands.shell import DryRunOption, Shell, coldstart_command
from coldstart_launch.host_pool import begin_refill, host_gpus, wants_refill

if TYPE_CHECKING:
    from coldstart_pool.live.record import Holding

HolderArgument = Annotated[
    str, typer.Argument(metavar="HOLDER", help="Who has the GPUs: a name of your own choice.")
]


@coldstart_command()
def command(
    shell: Shell,
    holder: HolderArgument,
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", min=1, help="How many.")] = 1,
    model: Annotated[
        str | None, typer.Option("--model", metavar="TEXT", help="Part of the GPU model's name.")
    ] = None,
    pid: Annotated[
        int, typer.Option("--pid", metavar="PID", min=0, help="Free again when this process ends.")
    ] = 0,
    no_refill: Annotated[bool, typer.Option("--no-refill", help="Order nothing for what is taken.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Take GPUs, all or none, and print their UUIDs as CUDA_VISIBLE_DEVICES wants them.

    Checks health first; a GPU that may not serve is not taken. With a refill file, machines are ordered
    in the background. What is taken is held until `pool release`, the end of --pid, or a reboot. Exit status
    3: there are not enough free GPUs; 75: HOLDER has some already; 66: no such process.
    """
    from coldstart_health.checks import quick_check
    from coldstart_pool.live.state import plan_take, take

    refill = not no_refill and wants_refill(shell.config)
    known = host_gpus(quick_check(shell.config, record=not dry_run))
    folder = shell.config.state_folder
    taken: tuple[Holding, ...] = ()
    try:
        if dry_run:
            taken = plan_take(folder, known, count=gpus, holder=holder, model=model, pid=pid)
        else:
            taken = take(folder, known, count=gpus, holder=holder, model=model, pid=pid, refill=refill)
    finally:  # a refusal has its document too
        shell.printer.document(
            "pool.take",
            1,
            {
                "holder": holder,
                "gpus": [asdict(holding) for holding in taken],
                "refill": refill and bool(taken),
            },
        )
    if refill and not dry_run:
        begin_refill(shell.config, shell.printer.warning)
    shell.printer.answer(",".join(holding.uuid for holding in taken))
