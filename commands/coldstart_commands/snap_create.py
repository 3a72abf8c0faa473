"""coldstart snap create: capture a ready server as a variant of a snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import UsageError
from coldstart_commands.engine_options import (
    EngineOption,
    EngineTimeoutOption,
    EngineUrlOption,
    WeightsOption,
    engine_settings,
)
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command
from coldstart_commands.snap_captured import create_from_spec, show_captured

if TYPE_CHECKING:
    from coldstart_snapshot.kept.restore_command import RestoreCommand

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
RestoreExecOption = Annotated[
    str | None,
    typer.Option(
        "--restore-exec",
        metavar="COMMAND",
        help="Run this inside the container after each restore, before it counts as ready: "
        "it is told COLDSTART_COPY_ID and COLDSTART_RANDOM_SEED.",
    ),
]
RestoreTimeoutOption = Annotated[
    float, typer.Option("--restore-timeout", metavar="SECONDS", help="How long that may take.")
]
GoldenOption = Annotated[
    Path | None,
    typer.Option(
        "--golden",
        metavar="FILE",
        help="Requests (TOML) whose answers are recorded now, and must come again after a restore.",
    ),
]
PreDumpOption = Annotated[
    bool | None,
    typer.Option(
        "--pre-dump/--no-pre-dump",
        help="Dump memory ahead, while the server runs; default: of large servers, where the kernel can.",
    ),
]
StopOption = Annotated[
    bool | None,
    typer.Option(
        "--stop/--leave-running",
        help="End the server once the snapshot is verified and published; default: only one of --spec.",
    ),
]
SpecOption = Annotated[
    Path | None,
    typer.Option(
        "--spec", metavar="SPEC", help="Start the replica of this specification cold, and capture it."
    ),
]
LevelOption = Annotated[
    str,
    typer.Option(
        "--cpu-level",
        metavar="LEVEL",
        help="Hold that start to x86-64-v2, x86-64-v3 or x86-64-v4, for hosts with no more; or native.",
    ),
]


@coldstart_command("store", "cache_dir", "health.expect_gpus", "lock_wait_seconds")
def command(
    shell: Shell,
    name: NameArgument,
    container: ContainerOption = None,
    runc_root: RuncRootOption = None,
    pid: PidOption = None,
    ready_url: UrlOption = None,
    ready_timeout: TimeoutOption = 600.0,
    restore_exec: RestoreExecOption = None,
    restore_timeout: RestoreTimeoutOption = 30.0,
    golden: GoldenOption = None,
    engine: EngineOption = None,
    engine_url: EngineUrlOption = None,
    weights: WeightsOption = None,
    engine_timeout: EngineTimeoutOption = None,
    pre_dump: PreDumpOption = None,
    stop: StopOption = None,
    spec: SpecOption = None,
    cpu_level: LevelOption = "native",
    dry_run: DryRunOption = False,
) -> None:
    """Capture a ready server: memory, open files and, of a container, its writable layer.

    The server goes on serving, after a failure too. An earlier capture for the same kind of CPU is
    replaced when the new one is complete.
    """
    from coldstart_snapshot.answers.golden_file import load_golden
    from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot

    if spec is not None:
        if container is not None or pid is not None or ready_url is not None or runc_root is not None:
            raise UsageError(
                "--spec starts a server of its own: leave out --container, --pid, --ready-url and --runc-root"
            )
        if golden is not None:
            raise UsageError("golden requests of a specification stand in it: --golden", hint="`[[golden]]`")
        if any(option is not None for option in (engine, engine_url, weights, engine_timeout)):
            raise UsageError("the engine of a specification stands in it: --engine", hint="`[engine]`")
        create_from_spec(shell, name, spec, cpu_level, leave_running=stop is False, dry_run=dry_run)
        return
    if cpu_level != "native":
        raise UsageError(
            f"a running server cannot be held to {cpu_level} any more", hint="start it by `--spec SPEC`"
        )
    request = CaptureRequest(
        name=name,
        container_id=container,
        runc_root=runc_root,
        pid=pid,
        ready_url=ready_url,
        ready_timeout_seconds=ready_timeout,
        golden=load_golden(golden, ready_url) if golden is not None else (),
        pre_dump=pre_dump,
        stop=bool(stop),
        restore_command=_restore_command(restore_exec, restore_timeout),
        engine=engine_settings(engine, engine_url, weights, engine_timeout, ready_url=ready_url),
        dry_run=dry_run,
    )
    captured = create_snapshot(request, shell.config, shell.printer.status)
    show_captured(shell, captured)


def _restore_command(text: str | None, timeout_seconds: float) -> RestoreCommand | None:
    import math
    import shlex

    from coldstart_snapshot.kept.restore_command import RestoreCommand

    if text is None:
        return None
    try:
        arguments = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"restore command cannot be read: {text}: {error}") from error
    if not arguments:
        raise UsageError("restore command is empty: --restore-exec")
    if not math.isfinite(timeout_seconds) or timeout_seconds <= 0:
        raise UsageError(f"restore timeout is not a positive number of seconds: {timeout_seconds:g}")
    return RestoreCommand(arguments, timeout_seconds)
