"""coldstart image copy: bring an image into another store."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_commands.image_texts import count, size
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_fs.stores.image_copy import Packs

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Image name, NAME@blake3:DIGEST or blake3:DIGEST.")
]
DestinationArgument = Annotated[
    str, typer.Argument(metavar="DESTINATION", help="Store to copy to: a folder or a URL, as for `--store`.")
]
NewNameOption = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the copy; default: the same.", show_default=False),
]


@coldstart_command("store", "lock_wait_seconds")
def command(
    shell: Shell,
    name: NameArgument,
    destination: DestinationArgument,
    new_name: NewNameOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Copy an image to another store, sending only what is missing there; the name is given last.

    Every pack is verified on the way. An interrupted copy, run again, goes on where it was.
    """
    from coldstart_fs.format.names import digest_text
    from coldstart_fs.indexing.progress import Progress
    from coldstart_fs.stores.image_copy import copy_image
    from coldstart_fs.stores.store_url import open_store
    from coldstart_fs.traces.published import copy_traces

    printer = shell.printer
    progress = Progress(f"opening {name}")
    wait_seconds = shell.config.number("lock_wait_seconds")
    traces = 0
    with printer.watching(progress.describe):
        origin = open_store(shell.config.store, tell=printer.warning)
        target = open_store(destination, create=True, tell=printer.warning)
        report = copy_image(
            name,
            origin,
            target,
            new_name=new_name,
            progress=progress,
            dry_run=dry_run,
            wait_seconds=wait_seconds,
        )
        if not dry_run:
            traces = copy_traces(origin, target, report.digest, printer.warning, wait_seconds=wait_seconds)
    digest = digest_text(report.digest)
    for label, value in (
        ("image", f"{report.name}@{digest}"),
        ("from", report.source),
        ("to", report.destination),
        ("to send" if dry_run else "sent", _packs(report.sent)),
        ("there before", _packs(report.held)),
        ("not needed", _packs(report.not_needed)),
        *([("traces", str(traces))] if traces else []),
        ("time", f"{report.seconds:.1f} s"),
    ):
        printer.answer(f"{label:<16}{value}")
    if dry_run:
        printer.note("dry run: nothing was written")
    printer.document("image.copy", 1, asdict(report) | {"digest": digest, "traces": traces})


def _packs(packs: Packs) -> str:
    return f"{size(packs.size_bytes)} in {count(packs.count, 'pack')}"
