"""coldstart image unmount: end a mount and clean up after it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coldstart_cli.errors import UsageError
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

MountpointArgument = Annotated[
    Path | None, typer.Argument(metavar="[MOUNTPOINT]", help="Where an image is mounted.")
]
StaleOption = Annotated[
    bool, typer.Option("--stale", help="End every mount whose server died, and no other.")
]
LazyOption = Annotated[
    bool, typer.Option("--lazy", help="Let go of a mount that is in use: its users see errors.")
]


@coldstart_command()
def command(
    shell: Shell,
    mountpoint: MountpointArgument = None,
    stale: StaleOption = False,
    lazy: LazyOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """End a mount: overlay, FUSE and server; what was written to an overlay's upper folder stays.

    A mount that is still in use after two seconds is refused and goes on, unless `--lazy` is given. Cleans
    up after a server that died, too.
    """
    from coldstart_fs.mount import require_mount, unmount

    if stale:
        _end_stale(shell, mountpoint, dry_run=dry_run)
        return
    if mountpoint is None:
        raise UsageError("nothing to unmount is named", hint="name a mount point, or `--stale`")
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


def _end_stale(shell: Shell, mountpoint: Path | None, *, dry_run: bool) -> None:
    from coldstart_fs.mount import stale_mounts, sweep_stale

    if mountpoint is not None:
        raise UsageError("options exclude each other: a mount point and --stale")
    run_folder = shell.config.run_folder
    ended = stale_mounts(run_folder) if dry_run else sweep_stale(run_folder)
    for path in ended:
        shell.printer.answer(f"{'would unmount' if dry_run else 'unmounted'}: {path}")
    if not ended:
        shell.printer.note("every mount has its server")
    shell.printer.document("image.unmount", 1, {"stale": [str(path) for path in ended]})
