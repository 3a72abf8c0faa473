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

    Cleans up after a server that died, too.
    """
    from coldstart_fs.mount import require_mount, unmount

    record = require_mount(mountpoint, shell.config.run_folder)
    if dry_run:
        shell.printer.answer(f"would unmount {record.name} at {record.mountpoint}")
    else:
        unmount(mountpoint, run_folder=shell.config.run_folder)
        shell.printer.note(f"unmounted: {record.mountpoint}")
    shell.printer.document("image.unmount", 1, {"mountpoint": str(record.mountpoint), "image": record.image})
