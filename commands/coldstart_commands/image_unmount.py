"""coldstart image unmount: end a mount and clean up after it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

MountpointArgument = Annotated[Path, typer.Argument(metavar="MOUNTPOINT", help="Where an image is mounted.")]
LazyOption = Annotated[
    bool, typer.Option("--lazy", help="Let go of a mount that is in use: its users see errors.")
]


@coldstart_command()
def command(
    shell: Shell, mountpoint: MountpointArgument, lazy: LazyOption = False, dry_run: DryRunOption = False
) -> None:
    """End a mount: overlay, FUSE and server; what was written to an overlay's upper folder stays.

    A mount that is still in use after two seconds is refused and goes on, unless `--lazy` is given. Cleans
    up after a server that died, too.
    """
    from coldstart_fs.mount import require_mount, unmount

    run_folder, printer = shell.config.run_folder, shell.printer
    in_use = False
    if dry_run:
        record = require_mount(mountpoint, run_folder)
        printer.answer(f"would unmount {record.name} at {record.mountpoint}")
    else:
        report = unmount(mountpoint, run_folder=run_folder, lazy=lazy)
        record, in_use = report.record, report.in_use
        if in_use:
            printer.warning(
                f"mount was still in use and was let go: {record.mountpoint}: its users see errors"
            )
        printer.note(f"unmounted: {record.mountpoint}")
    printer.document(
        "image.unmount",
        1,
        {"mountpoint": str(record.mountpoint), "image": record.image, "in_use": in_use},
    )
