"""coldstart image trace merge: several traces as one, also for another build of the image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coldstart_cli.errors import UsageError
from coldstart_commands import image_traces
from coldstart_commands.image_traces import DEFAULT_WORKLOAD, WorkloadOption
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

TracesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE...",
        help="Files of traces, or names of images: their traces on this host and in the store.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the trace goes; compressed when the name ends in .gz.",
        show_default=False,
    ),
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="NAME",
        help="Make it a trace of this image: what the image has of the traces, by path.",
        show_default=False,
    ),
]


@coldstart_command("store", "cache_dir")
def command(
    shell: Shell,
    traces: TracesArgument,
    output: OutputOption,
    image: ImageOption = None,
    workload: WorkloadOption = DEFAULT_WORKLOAD,
    dry_run: DryRunOption = False,
) -> None:
    """Merge traces into a file: the union, with how many recordings saw each part.

    One trace is a merge too: that is how a trace of this host becomes a file for `image index --trace`.
    """
    from coldstart_cli.files import atomic_write
    from coldstart_cli.regular import require_output
    from coldstart_fs.format.names import digest_text
    from coldstart_fs.format.trace import encode_trace
    from coldstart_fs.stores.images import open_index
    from coldstart_fs.traces.fit import fit_trace
    from coldstart_fs.traces.merge import merge_traces

    printer, desk = shell.printer, image_traces.desk(shell)
    if len(set(traces)) < len(traces):
        raise UsageError("a trace is named twice: its recordings would count twice")
    found = [desk.find(given, workload).trace for given in traces]
    lost_bytes = 0
    if image is not None:
        store = desk.store()
        digest = desk.image(image, store).digest
        with open_index(store, digest, desk.cache) as index:
            fitted = [fit_trace(trace, index, digest) for trace in found]
        found = [trace for trace, _ in fitted]
        lost_bytes = sum(fit.size_bytes - fit.fitting_bytes for _, fit in fitted)
    merged = merge_traces(found)
    require_output(output)
    if not dry_run:
        atomic_write(output, encode_trace(merged, compressed=output.suffix == ".gz"))
    if lost_bytes:
        printer.warning(f"{lost_bytes:,} traced bytes are not in the image and were left out")
    said = f"{image_traces.short(merged)}, recordings: {image_traces.runs(merged)}"
    printer.answer(f"{'would write' if dry_run else 'wrote'} {output}: {said}")
    printer.document(
        "image.trace.merge",
        1,
        image_traces.describe(merged)
        | {"image": digest_text(merged.image), "output": str(output), "lost_bytes": lost_bytes},
    )
