"""coldstart image trace push: publish a trace beside its image in the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_commands import image_traces
from coldstart_commands.image_traces import DEFAULT_WORKLOAD, WorkloadOption
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Image name, or NAME@blake3:DIGEST.", show_default=False),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="This trace; default: what mounts of this host recorded.",
        show_default=False,
    ),
]


@coldstart_command("store", "cache_dir", "lock_wait_seconds")
def command(
    shell: Shell,
    name: NameArgument,
    workload: WorkloadOption = DEFAULT_WORKLOAD,
    trace: TraceOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Publish a trace, joined with what the store has of the workload: mounts on other hosts replay it."""
    from coldstart_fs.format.names import digest_text
    from coldstart_fs.format.trace import load_trace
    from coldstart_fs.traces.names import check_workload
    from coldstart_fs.traces.published import publish_trace

    printer, desk = shell.printer, image_traces.desk(shell)
    check_workload(workload)
    store = desk.store()
    image = desk.image(name, store)
    if trace is None:
        try:
            found = desk.kept().load(image.digest, workload)
        except NotFoundError as error:
            hint = f"mount it with `--workload {workload}`, start what runs in it, and unmount it"
            text = f"nothing was recorded of image {image.name}, workload `{workload}`"
            raise NotFoundError(text, hint=hint) from error
    else:
        found = replace(load_trace(trace), workload=workload)
    if found.image != image.digest:
        raise DataError(
            f"trace is of another image: {digest_text(found.image)}, not of {image.name}",
            hint=f"coldstart image trace merge {trace} --image {name} -o FILE",
        )
    if not dry_run:
        wait_seconds = shell.config.number("lock_wait_seconds")
        found = publish_trace(store, found, wait_seconds=wait_seconds)
    verb = "would publish" if dry_run else "published"
    printer.answer(f"{verb} {image.name}, workload {workload}: {image_traces.short(found)}")
    printer.document("image.trace.push", 1, image_traces.describe(found) | {"store": store.url})
