"""coldstart image trace record: run a program on a mount of its own, and keep what it read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coldstart_commands import image_traces
from coldstart_commands.image_traces import DEFAULT_WORKLOAD, WorkloadOption
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Image name, or NAME@blake3:DIGEST.", show_default=False),
]
CommandArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="COMMAND...",
        help="What to run, after `--`; `{}` stands for the mount point.",
        show_default=False,
    ),
]
WritableOption = Annotated[
    bool, typer.Option("--writable", help="Let it write: into an overlay that is thrown away.")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long it may take.")
]
_STDERR = 2


@coldstart_command("store", "cache_dir")
def command(
    shell: Shell,
    name: NameArgument,
    arguments: CommandArgument,
    workload: WorkloadOption = DEFAULT_WORKLOAD,
    writable: WritableOption = False,
    timeout: TimeoutOption = 600.0,
    dry_run: DryRunOption = False,
) -> None:
    """Mount an image in a scratch folder, run a program on it, and join what was read with the trace.

    Nothing is replayed, so the recording is complete. What the program prints goes to stderr; when it
    fails, the trace stays as it was.
    """
    from coldstart_fs.mounts.mount import MountRequest
    from coldstart_fs.mounts.record_run import record_run
    from coldstart_fs.traces.options import TraceOptions

    config, printer = shell.config, shell.printer
    options = TraceOptions.from_config(config, workload=workload)
    request = MountRequest(
        name=name,
        mountpoint=Path(),
        store=config.store,
        cache=config.cache_folder,
        run_folder=config.run_folder,
    )
    if dry_run:
        desk = image_traces.desk(shell)
        image = desk.image(name, desk.store())
        printer.answer(f"would run on {image.name}, workload {workload}: {' '.join(arguments)}")
        printer.document("image.trace.record", 1, {"name": image.name, "workload": workload})
        return
    trace = record_run(
        request, options, arguments, writable=writable, deadline_seconds=timeout, output=_STDERR
    )
    printer.answer(
        f"recorded {name}, workload {workload}: {image_traces.short(trace)}, "
        f"recordings: {image_traces.runs(trace)}"
    )
    printer.document("image.trace.record", 1, {"name": name} | image_traces.describe(trace))
