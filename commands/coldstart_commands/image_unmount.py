"""coldstart image unmount: end a mount and clean up after it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

MountpointArgument = Annotated[Path, typer.Argument(metavar="MOUNTPOINT", help="Where an image is mounted.")]


@coldstart_command()
def command(shell: Shell, mountpoint: MountpointArgument, dry_run: DryRunOption = False) -> None:
    """End a mount: overlay, FUSE and server; what was written to an overlay's upper folder stays.

    A mount that is still in use after two seconds is detached, and a warning says so. Cleans up after a
    server that died, too.
    """
    from coldstart_fs.mount import require_mount, unmount

    run_folder, printer = shell.config.run_folder, shell.printer
    in_use = False
    if dry_run:
        record = require_mount(mountpoint, run_folder)
        printer.answer(f"would unmount {record.name} at {record.mountpoint}")
    else:
        report = unmount(mountpoint, run_folder=run_folder)
        record, in_use = report.record, report.in_use
        if in_use:
            printer.warning(
                f"mount was still in use and is detached: {record.mountpoint}: its users see errors"
            )
        printer.note(f"unmounted: {record.mountpoint}")
    printer.document(
        "image.unmount",
        1,
        {"mountpoint": str(record.mountpoint), "image": record.image, "in_use": in_use},
    )
