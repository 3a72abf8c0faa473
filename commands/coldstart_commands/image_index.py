"""coldstart image index: turn an image of any kind or a root folder into an image of a store."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:REF] or dir:PATH.",
        show_default=False,
    ),
]
NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the image in the store.", show_default=False)
]
PlatformOption = Annotated[
    str | None,
    typer.Option(
        "--platform",
        metavar="OS/ARCH[/VARIANT]",
        help="Which image of several; default: this host's platform.",
        show_default=False,
    ),
]


@coldstart_command("store", "lock_wait_seconds")
def command(
    shell: Shell,
    source: SourceArgument,
    name: NameOption,
    platform: PlatformOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Index an image or a root folder: metadata into an index, contents into packs of the store."""
    from coldstart_fs.build import index_image
    from coldstart_fs.names import digest_text
    from coldstart_fs.store import open_store

    printer = shell.printer
    report = index_image(
        source,
        store=open_store(shell.config.store, create=True),
        name=name,
        progress=printer.status,
        dry_run=dry_run,
        platform=platform,
        wait_seconds=shell.config.number("lock_wait_seconds"),
    )
    for note in report.notes:
        printer.warning(note)
    digest = digest_text(report.digest)
    rows = [
        ("image", f"{report.name}@{digest}"),
        ("entries", f"{report.entries}"),
        ("content", f"{_megabytes(report.content_bytes)} MB"),
        ("  new", f"{_megabytes(report.new_bytes)} MB"),
        ("  in the store", f"{_megabytes(report.reused_bytes)} MB"),
        ("  repeated", f"{_megabytes(report.repeated_bytes)} MB"),
        ("  zeros", f"{_megabytes(report.zero_bytes)} MB"),
        ("index", f"{_megabytes(report.index_bytes)} MB"),
        ("time", f"{report.seconds:.1f} s"),
    ]
    for label, value in rows:
        printer.answer(f"{label:<16}{value}")
    if dry_run:
        printer.note("dry run: nothing was written")
    printer.document("image.index", 1, asdict(report) | {"digest": digest, "notes": list(report.notes)})


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f}"
