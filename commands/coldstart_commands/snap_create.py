"""coldstart snap create: capture a ready server as a variant of a snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_snapshot.capture import SnapshotVariant

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the snapshot.")]
ContainerOption = Annotated[
    str | None, typer.Option("--container", metavar="ID", help="Capture this container of runc.")
]
RuncRootOption = Annotated[
    Path | None,
    typer.Option("--runc-root", metavar="DIR", help="runc's state folder, where it is not coldstart's own."),
]
PidOption = Annotated[
    int | None,
    typer.Option(
        "--pid", metavar="PID", help="Capture this process and its descendants; it leads a session."
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--ready-url", metavar="URL", help="Capture when this answers 200; a restore waits for it too."
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--ready-timeout", metavar="SECONDS", help="How long to wait for that.")
]
StopOption = Annotated[
    bool,
    typer.Option(
        "--stop/--leave-running", help="End the server once the snapshot is verified and published."
    ),
]


@coldstart_command("lock_wait_seconds")
def command(
    shell: Shell,
    name: NameArgument,
    container: ContainerOption = None,
    runc_root: RuncRootOption = None,
    pid: PidOption = None,
    ready_url: UrlOption = None,
    ready_timeout: TimeoutOption = 600.0,
    stop: StopOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Capture a ready server: memory, open files and, of a container, its writable layer.

    The server goes on serving, after a failure too. An earlier capture for the same kind of CPU is
    replaced when the new one is complete.
    """
    from coldstart_snapshot.capture import CaptureRequest, create_snapshot

    request = CaptureRequest(
        name=name,
        container_id=container,
        runc_root=runc_root,
        pid=pid,
        ready_url=ready_url,
        ready_timeout_seconds=ready_timeout,
        stop=stop,
        dry_run=dry_run,
    )
    captured = create_snapshot(request, shell.config, shell.printer.status)
    for note in captured.notes:
        shell.printer.note(note)
    manifest = captured.manifest
    if captured.published:
        verb = "replaced" if captured.replaced else "created"
        seconds = manifest.timings.get("frozen", manifest.timings.get("dump", 0.0))
        shell.printer.answer(f"{verb} {name}/{manifest.variant}: {manifest.size_bytes / 1e6:.1f} MB")
        shell.printer.note(f"the server stood still for {seconds:.2f} s")
    else:
        verb = "replace" if captured.replaced else "create"
        shell.printer.answer(f"would {verb} {name}/{manifest.variant}: {len(manifest.tree)} processes")
    shell.printer.document("snap.create", 1, _document(captured))


def _document(captured: SnapshotVariant) -> dict[str, Any]:
    manifest = captured.manifest
    return {
        "name": manifest.name,
        "variant": manifest.variant,
        "folder": str(captured.folder),
        "kind": manifest.kind,
        "published": captured.published,
        "replaced": captured.replaced,
        "stopped": captured.stopped,
        "size_bytes": manifest.size_bytes,
        "processes": len(manifest.tree),
        "gpu_processes": sum(member.gpu for member in manifest.tree),
        "timings": dict(manifest.timings),
        "notes": list(captured.notes),
    }
