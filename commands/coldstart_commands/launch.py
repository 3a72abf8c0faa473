"""coldstart launch: the whole chain for one replica."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import ColdstartError, ExitCode, NegativeAnswer, UsageError
from coldstart_cli.notify import notify
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_launch.chain import Running
    from coldstart_launch.outcome import Launched

SpecArgument = Annotated[Path, typer.Argument(metavar="SPEC", help="Replica specification, a TOML file.")]
DetachOption = Annotated[
    bool,
    typer.Option("--detach", help="Return once the replica is ready; a supervisor stays in the background."),
]
ColdOption = Annotated[bool, typer.Option("--cold", help="Start cold even where a snapshot fits.")]
NoFallbackOption = Annotated[
    bool,
    typer.Option("--no-fallback", help="Fail rather than start cold when the snapshot cannot be restored."),
]
SnapshotOption = Annotated[
    bool,
    typer.Option(
        "--snapshot-when-ready", help="After a cold start, capture the ready replica and go on serving."
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Take a snapshot from `snapshot.store` without a digest or a signature."),
]
StopOption = Annotated[bool, typer.Option("--stop", help="Take the replica of this specification down.")]


@coldstart_command("store", "cache_dir", "health.expect_gpus", "lock_wait_seconds")
def command(
    shell: Shell,
    spec: SpecArgument,
    detach: DetachOption = False,
    cold: ColdOption = False,
    no_fallback: NoFallbackOption = False,
    snapshot_when_ready: SnapshotOption = False,
    trust: TrustOption = False,
    stop: StopOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Bring one replica to ready: health, mount, restore or cold start.

    A snapshot that this host lacks is fetched from `snapshot.store` while the image is mounted.
    Stays in the foreground until the replica ends or SIGTERM takes it down in order. Prints the
    waterfall of stages when it is ready.
    """
    started = time.monotonic() - process_age_seconds()
    from coldstart_launch.chain import launched, rehearse
    from coldstart_launch.options import Conversation, LaunchOptions
    from coldstart_launch.roots import ImageRoot
    from coldstart_launch.spec import load_spec
    from coldstart_launch.supervise import stop_replica
    from coldstart_launch.waterfall import Waterfall

    replica_spec = load_spec(spec)
    if stop:
        stop_replica(replica_spec.name, shell.config)
        shell.printer.note(f"stopped: {replica_spec.name}")
        shell.printer.document("launch.stop", 1, {"name": replica_spec.name})
        return
    if cold and no_fallback:
        raise UsageError("options exclude each other: --cold and --no-fallback")
    options = LaunchOptions(
        cold=cold, fallback=not no_fallback, snapshot_when_ready=snapshot_when_ready, trust=trust
    )
    root = ImageRoot(replica_spec.image, shell.config.store, replica_spec.workload)
    if "@blake3:" not in replica_spec.image:
        shell.printer.warning(
            f"image is not pinned: {replica_spec.image}: whatever has that name is launched"
        )
    conversation = Conversation(shell.printer.status, shell.printer.warning)
    if dry_run:
        rehearsal = rehearse(replica_spec, root, options, shell.config, conversation)
        how = f"restore {rehearsal.variant}" if rehearsal.variant else "start cold"
        shell.printer.answer(f"would {how}: {rehearsal.name} from {rehearsal.image}")
        shell.printer.document("launch.rehearsal", 1, asdict(rehearsal))
        return
    with launched(
        replica_spec, root, options, shell.config, conversation, waterfall=Waterfall(started)
    ) as running:
        for warning in running.captured.warnings if running.captured is not None else ():
            shell.printer.warning(warning)
        keep(shell, running, detach=detach)


def keep(
    shell: Shell,
    running: Running,
    *,
    detach: bool,
    answer: Callable[[Shell, Running], None] | None = None,
) -> None:
    """Say how it came up, and stay until it ends, here or, detached, in a supervisor of its own."""
    from coldstart_launch.replica import last_words, note_end
    from coldstart_launch.supervise import move_to_background, replica_ends

    outcome = running.outcome
    answer = answer or _render_outcome
    if not detach:
        _try_to_render(shell, running, answer)
    elif not move_to_background(running.replica, running.replica.scratch / "supervisor.log"):
        # the supervisor holds the replica now: whatever happens here, nothing may be taken down
        os._exit(_try_to_render(shell, running, answer))
    notify("READY=1", f"MAINPID={os.getpid()}")
    try:
        ended = replica_ends(running)
    finally:
        notify("STOPPING=1")
    if not ended:
        error = ColdstartError(
            f"image server of replica {outcome.name} ended: its files cannot be read any more",
            hint="launch it again",
        )
        note_end(outcome.log, error.message)
        raise error
    raise ColdstartError(f"replica ended: {outcome.name}", hint=last_words(outcome.log))


def _render_outcome(shell: Shell, running: Running) -> None:
    render(shell, running.outcome)


def _try_to_render(shell: Shell, running: Running, answer: Callable[[Shell, Running], None]) -> ExitCode:
    """The replica is ready, whether somebody reads that or not."""
    try:
        answer(shell, running)
        sys.stdout.flush()
    except BrokenPipeError:
        return ExitCode.OK
    except NegativeAnswer as answered:
        shell.printer.error(answered)
        return answered.exit_code
    except (ColdstartError, OSError, ValueError) as error:
        shell.printer.warning(f"the answer could not be written: {error}")
        return ExitCode.IOERR
    return ExitCode.OK


def render(shell: Shell, outcome: Launched) -> None:
    """The waterfall, for people and as JSON."""
    from coldstart_launch.waterfall import draw

    how = f"restored from {outcome.variant}" if outcome.variant else "started cold"
    shell.printer.answer(
        f"{outcome.name}: ready after {outcome.total_seconds:.2f} s, {how}, pid {outcome.pid}"
    )
    for line in draw(outcome.stages):
        shell.printer.answer(f"  {line}")
    for published in outcome.published:
        shell.printer.answer(f"published: {published}")
    if outcome.budget is not None:
        for line in outcome.budget.lines():
            shell.printer.debug(line)
    if outcome.snapshot:
        shell.printer.answer(f"snapshot: {outcome.snapshot}")
    shell.printer.document("launch", 1, outcome.document())


def process_age_seconds() -> float:
    """How long this process has run: the interpreter's own start belongs to the waterfall."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(0.0, uptime - ticks / os.sysconf("SC_CLK_TCK"))
