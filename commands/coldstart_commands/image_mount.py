"""coldstart image mount: serve an image lazily at a mount point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_cli.errors import ColdstartError
from coldstart_cli.notify import notify
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_fs.records import MountRecord

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Image name, or NAME@blake3:DIGEST.")]
MountpointArgument = Annotated[Path, typer.Argument(metavar="MOUNTPOINT", help="An empty folder.")]
OverlayOption = Annotated[
    Path | None,
    typer.Option(
        "--overlay", metavar="DIR", help="Make the mount writable: what is written goes to DIR/upper."
    ),
]
DetachOption = Annotated[bool, typer.Option("--detach", help="Return once the mount answers.")]
SuidOption = Annotated[
    bool, typer.Option("--suid", help="Let set-user-ID programs and file capabilities work.")
]
DevOption = Annotated[bool, typer.Option("--dev", help="Let the image's device nodes work.")]


@coldstart_command("store", "cache_dir")
def command(
    shell: Shell,
    name: NameArgument,
    mountpoint: MountpointArgument,
    overlay: OverlayOption = None,
    detach: DetachOption = False,
    suid: SuidOption = False,
    dev: DevOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Serve an image lazily at a mount point, read-only or with a writable overlay.

    Stays in the foreground until SIGTERM or Ctrl-C, then unmounts; tells a service manager when the
    mount answers.
    """
    from coldstart_fs.mount import MountRequest, check_request, mount_detached, unmount, wait_for_server

    config = shell.config
    request = MountRequest(
        name=name,
        mountpoint=mountpoint,
        store=config.store,
        cache=config.cache_folder,
        run_folder=config.run_folder,
        overlay=overlay.absolute() if overlay is not None else None,
        suid=suid,
        dev=dev,
    )
    if dry_run:
        record = check_request(request)
        shell.printer.answer(f"would mount {record.name} ({record.image[:19]}) at {record.mountpoint}")
        shell.printer.document("image.mount", 1, describe(record))
        return
    record = mount_detached(request)
    for loss in losses(record):
        shell.printer.warning(loss)
    shell.printer.document("image.mount", 1, describe(record))
    if detach:
        shell.printer.answer(
            f"{record.mountpoint}: {record.name} ({record.image[:19]}), served by pid {record.server_pid}"
        )
        return
    try:
        shell.printer.note(f"{record.name} ({record.image[:19]}) is mounted at {record.mountpoint}")
        notify("READY=1", f"STATUS=serving {record.name} at {record.mountpoint}", f"MAINPID={os.getpid()}")
        wait_for_server(record)
    finally:
        notify("STOPPING=1")
        unmount(record.mountpoint, run_folder=config.run_folder)
    raise ColdstartError(
        f"image server ended: {record.mountpoint}", hint="`image mount` again; readers saw errors"
    )


def describe(record: MountRecord) -> dict[str, Any]:
    """A mount as JSON values."""
    return {
        "mountpoint": str(record.mountpoint),
        "name": record.name,
        "image": record.image,
        "store": record.store,
        "cache": str(record.cache),
        "overlay": None if record.overlay is None else str(record.overlay),
        "server_pid": record.server_pid or None,
        "settings": dict(record.settings),
    }


def losses(record: MountRecord) -> list[str]:
    """What the kernel did not let us set, with what that costs."""
    from coldstart_fs.tuning import wanted_settings

    return [
        f"{name} is {kept if kept is not None else 'not readable'} instead of {wanted}: streams read slower"
        for name, wanted in wanted_settings().items()
        if (kept := record.settings.get(name)) != wanted
    ]
