"""coldstart image mount: serve an image lazily at a mount point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    from coldstart_fs.mount import MountRequest, check_request, mount_detached, serve

    config, printer = shell.config, shell.printer
    request = MountRequest(
        name=name,
        mountpoint=mountpoint,
        store=config.store,
        cache=config.cache_folder,
        run_folder=config.run_folder,
        overlay=overlay,
        suid=suid,
        dev=dev,
    )

    def tell(record: MountRecord) -> None:
        for loss in losses(record):
            printer.warning(loss)
        printer.document("image.mount", 1, describe(record))

    def ready(record: MountRecord) -> None:
        tell(record)
        printer.note(f"{_short(record)} is mounted at {record.mountpoint}")
        notify("READY=1", f"STATUS=serving {record.name} at {record.mountpoint}", f"MAINPID={os.getpid()}")

    if dry_run:
        record = check_request(request)
        printer.answer(f"would mount {_short(record)} at {record.mountpoint}")
        printer.document("image.mount", 1, describe(record))
    elif detach:
        record = mount_detached(request)
        tell(record)
        printer.answer(f"{record.mountpoint}: {_short(record)}, served by pid {record.server_pid}")
    else:
        serve(request, on_ready=ready, on_end=lambda: notify("STOPPING=1"))


def _short(record: MountRecord) -> str:
    digest = record.image[:19]
    return digest if record.name.startswith(digest) else f"{record.name} ({digest})"


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
    """What the server or the kernel could not do as it should, with what that costs."""
    from coldstart_fs.tuning import wanted_settings

    return [
        *record.notes,
        *(
            f"{name} is {kept if kept is not None else 'not readable'} instead of {wanted}: "
            "streams read slower"
            for name, wanted in wanted_settings().items()
            if (kept := record.settings.get(name)) != wanted
        ),
    ]
