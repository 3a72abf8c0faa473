"""coldstart image unmount: end a mount and clean up after it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coldstart_cli.errors import UsageError
from coldstart_commands import image_traces
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
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="End a mount that hangs, within seconds: what waits in it fails, its server is killed.",
    ),
]


@coldstart_command()
def command(
    shell: Shell,
    mountpoint: MountpointArgument = None,
    stale: StaleOption = False,
    lazy: LazyOption = False,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """End a mount: overlay, FUSE and server; what was written to an overlay's upper folder stays.

    A mount that is still in use after two seconds, by a container or a bind mount elsewhere too, is refused
    and goes on, unless `--lazy` or `--force` is given; one that something else covers always is. A server
    that other mounts use goes on for them. Cleans up after a server that died, too.
    """
    from coldstart_fs.mounts.mount import require_mount, unmount
    from coldstart_fs.mounts.server_records import read_counters

    if stale:
        _end_stale(shell, mountpoint, dry_run=dry_run)
        return
    if mountpoint is None:
        raise UsageError("nothing to unmount is named", hint="name a mount point, or `--stale`")
    run_folder, printer = shell.config.run_folder, shell.printer
    in_use = False
    record = require_mount(mountpoint, run_folder)
    counters = read_counters(record.server_folder)  # they end with the server
    if dry_run:
        printer.answer(f"would unmount {record.name} at {record.mountpoint}")
    else:
        report = unmount(mountpoint, run_folder=run_folder, lazy=lazy, force=force)
        record, in_use = report.record, report.in_use
        if in_use:
            outcome = "its users go on reading" if report.served_on else "its users see errors"
            printer.warning(f"mount was still in use and was let go: {record.mountpoint}: {outcome}")
        printer.note(f"unmounted: {record.mountpoint}")
        if (line := image_traces.replay_line(counters)) is not None:
            printer.note(line)
    printer.document(
        "image.unmount",
        1,
        {
            "mountpoint": str(record.mountpoint),
            "image": record.image,
            "in_use": in_use,
            "trace": counters.get("trace"),
        },
    )


def _end_stale(shell: Shell, mountpoint: Path | None, *, dry_run: bool) -> None:
    from coldstart_fs.mounts.mount import stale_mounts, sweep_stale

    if mountpoint is not None:
        raise UsageError("options exclude each other: a mount point and --stale")
    run_folder = shell.config.run_folder
    ended = stale_mounts(run_folder) if dry_run else sweep_stale(run_folder)
    for path in ended:
        shell.printer.answer(f"{'would unmount' if dry_run else 'unmounted'}: {path}")
    if not ended:
        shell.printer.note("every mount has its server")
    shell.printer.document("image.unmount", 1, {"stale": [str(path) for path in ended]})
