"""coldstart image mount: serve an image lazily at a mount point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_cli.errors import UsageError
from coldstart_cli.notify import notify
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_fs.mounts.records import MountRecord

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
OwnServerOption = Annotated[
    bool,
    typer.Option(
        "--own-server", help="Share no server, and so no page cache, with other mounts of the image."
    ),
]
ReplaceOption = Annotated[
    bool,
    typer.Option(
        "--replace",
        help="Give a mount in use a new server, of this version; where nothing is mounted, mount.",
    ),
]

WorkloadOption = Annotated[
    str,
    typer.Option(
        "--workload", metavar="WORKLOAD", help="Which use of the image this is: its trace is kept apart."
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Replay this trace instead of what this host and the store know.",
        show_default=False,
    ),
]
NoTraceOption = Annotated[bool, typer.Option("--no-trace", help="Neither record a trace nor replay one.")]


@coldstart_command("store", "tiers", "cache_dir", "image.fetch", "image.trace_replay")
def command(
    shell: Shell,
    name: NameArgument,
    mountpoint: MountpointArgument,
    overlay: OverlayOption = None,
    detach: DetachOption = False,
    suid: SuidOption = False,
    dev: DevOption = False,
    own_server: OwnServerOption = False,
    replace: ReplaceOption = False,
    workload: WorkloadOption = "default",
    trace: TraceOption = None,
    no_trace: NoTraceOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Serve an image lazily at a mount point, read-only or with a writable overlay.

    Stays in the foreground until SIGTERM or Ctrl-C, then unmounts; tells a service manager when the
    mount answers. With --detach or --replace it returns once the mount answers. Mounts of one image share
    a server; where `image serve` runs, that process forks it.
    """
    if not (dry_run or replace):
        from coldstart_fs.mounts.prepared import prepare_keeper

        prepare_keeper(shell.config.run_folder)  # it imports what it needs while we do the same
    from coldstart_fs.mounts.mount import (
        MountRequest,
        check_request,
        mount_detached,
        replace_mount,
        serve,
    )
    from coldstart_fs.traces.options import TraceOptions

    config, printer = shell.config, shell.printer
    if trace is not None and no_trace:
        raise UsageError("options exclude each other: --trace and --no-trace")
    request = MountRequest.configured(
        config,
        name=name,
        mountpoint=mountpoint,
        store=config.store,
        overlay=overlay,
        suid=suid,
        dev=dev,
        alone=own_server,
        traces=TraceOptions.from_config(config, workload=workload, file=trace, traced=not no_trace),
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
        record = check_request(request, replacing=replace)
        printer.answer(f"would mount {_short(record)} at {record.mountpoint}")
        printer.document("image.mount", 1, describe(record))
    elif detach or replace:
        record = replace_mount(request) if replace else mount_detached(request)
        tell(record)
        printer.answer(f"{record.mountpoint}: {_short(record)}, served by pid {record.server_pid}")
    else:
        serve(request, on_ready=ready, on_end=lambda: notify("STOPPING=1"))


def _short(record: MountRecord) -> str:
    digest = record.image[:19]
    return digest if record.name.startswith(digest) else f"{record.name} ({digest})"


def describe(record: MountRecord) -> dict[str, Any]:
    """A mount as JSON values."""
    server = record.server()
    return {
        "mountpoint": str(record.mountpoint),
        "name": record.name,
        "image": record.image,
        "store": record.store,
        "tiers": list(record.tiers),
        "cache": str(record.cache),
        "fetch": record.fetch,
        "overlay": None if record.overlay is None else str(record.overlay),
        "server_pid": None if server is None else server.server.pid or None,
        "keeper_pid": None if server is None else server.keeper.pid or None,
        "shared": server is not None and server.shared,
        "restarts": 0 if server is None else server.restarts,
        "settings": {} if server is None else dict(server.settings),
        "fuse_flags": [] if server is None else server.fuse_flags,
    }


def losses(record: MountRecord) -> list[str]:
    """What the server or the kernel could not do as it should, with what that costs."""
    from coldstart_fs.mounts import tuning

    return [*record.notes, *tuning.losses(record.settings)]
