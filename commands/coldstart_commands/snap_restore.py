"""coldstart snap restore: bring a captured server back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import ColdstartError, UsageError
from coldstart_cli.notify import notify
from coldstart_commands.launch import DetachOption, NoFallbackOption, keep, process_age_seconds
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command
from coldstart_commands.snap_fetching import FromOption, TrustOption, arrived, bare_name, planned_restore

if TYPE_CHECKING:
    from coldstart_launch.publish import Publication
    from coldstart_snapshot.distribution.receive import Incoming
    from coldstart_snapshot.restoring.restore import RestorePlan

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Snapshot name; with @blake3:DIGEST, no other is restored.")
]
VariantOption = Annotated[
    str | None, typer.Option("--variant", metavar="VARIANT", help="Restore this variant, if it fits.")
]
IdOption = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="Container id and replica name; default: the snapshot's name."),
]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="NETWORK",
        help="`host`, `own` (loopback alone), or the path of a network namespace; default: as captured, "
        "`own` with --publish.",
    ),
]
PublishOption = Annotated[
    list[str] | None,
    typer.Option(
        "--publish",
        metavar="[ADDRESS:]HOST:CONTAINER",
        help="Let a port of this host lead to one of the copy; HOST 0 is any free one. May be repeated.",
    ),
]
LazyOption = Annotated[
    bool,
    typer.Option(
        "--lazy",
        help="Let the server run before its memory is there and bring that on demand, by userfaultfd: ready "
        "sooner, slower until all is there.",
    ),
]
StageOnlyOption = Annotated[
    bool,
    typer.Option(
        "--stage-only",
        help="Start nothing: make the fitting variant hot, in the page cache or as a copy that the next "
        "restore uses.",
    ),
]
StageToOption = Annotated[
    Path | None,
    typer.Option("--stage-to", metavar="DIR", help="Stage by a copy in this folder, of a tmpfs."),
]
GpuOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="UUID|INDEX",
        help="Put GPU state on this GPU; once for each GPU that the snapshot uses.",
    ),
]
StopOption = Annotated[bool, typer.Option("--stop", help="Take the restored container down.")]


@coldstart_command("store", "cache_dir", "snapshot.verify", "health.expect_gpus", "lock_wait_seconds")
def command(
    shell: Shell,
    name: NameArgument,
    variant: VariantOption = None,
    container_id: IdOption = None,
    detach: DetachOption = False,
    no_fallback: NoFallbackOption = False,
    network: NetworkOption = None,
    publish: PublishOption = None,
    lazy: LazyOption = False,
    stage_only: StageOnlyOption = False,
    stage_to: StageToOption = None,
    gpu: GpuOption = None,
    origin: FromOption = None,
    trust: TrustOption = False,
    stop: StopOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Restore the variant that fits this host, on a fresh root, and wait until it is ready.

    Sizes and digests are verified and the CPU is compared before anything starts. A server that cannot
    be restored, or answers the golden requests otherwise than at its capture, is ended and started cold
    from what the snapshot recorded, unless --no-fallback is given.
    A snapshot that this host lacks is fetched from --from or `snapshot.store`, while its root is mounted.
    With --id and --publish one snapshot becomes several replicas side by side.

    --lazy answers sooner: until its memory is there, a server waits for each page that it touches, and the
    first pass over all of it takes two to three times as long as a whole restore. It is refused where the
    kernel cannot, and for GPU state.

    On a host that joins the pool --stage-only makes the snapshot hot before it is needed.
    """
    started = time.monotonic() - process_age_seconds()
    if container_id is not None:
        from coldstart_launch.names import check_replica_name

        check_replica_name(container_id, "--id")
    if stop:
        from coldstart_launch.supervise import stop_replica
        from coldstart_snapshot.kept.manifest import check_name

        replica = container_id or check_name(bare_name(name))
        stop_replica(replica, shell.config)
        shell.printer.note(f"stopped: {replica}")
        shell.printer.document("snap.restore.stop", 1, {"name": replica})
        return
    if stage_to is not None and not stage_only:
        raise UsageError("a folder to stage to, and no staging: --stage-to", hint="add --stage-only")
    if stage_only:
        _stage(shell, name, variant, stage_to, dry_run)
        return
    publications = _publications(publish or ())
    planned = time.monotonic()
    with planned_restore(
        shell, name, variant, origin, gpus=tuple(gpu or ()), trust=trust, dry_run=dry_run
    ) as (planned_variant, incoming):
        plan = planned_variant
        verification = (planned, time.monotonic())
        if lazy:
            from coldstart_snapshot.restoring.lazy import require_lazy

            require_lazy(plan.criu, plan.manifest)
            plan = replace(plan, lazy=True)
        lent = (network, publications)
        _restore(
            shell, plan, incoming, container_id, started, verification, lent, detach, no_fallback, dry_run
        )


def _publications(texts: Sequence[str]) -> tuple[Publication, ...]:
    if not texts:
        return ()
    from coldstart_launch.publish import parse_publication

    return tuple(map(parse_publication, texts))


def _restore(
    shell: Shell,
    plan: RestorePlan,
    incoming: Incoming | None,
    container_id: str | None,
    started: float,
    verification: tuple[float, float],
    lent: tuple[str | None, tuple[Publication, ...]],
    detach: bool,
    no_fallback: bool,
    dry_run: bool,
) -> None:
    network, publications = lent
    name = plan.name
    for warning in plan.warnings:
        shell.printer.warning(warning)
    shell.printer.status(f"variant {plan.variant}: {plan.reason}")
    if dry_run:
        shell.printer.answer(f"would restore {name} from {plan.variant}: {plan.reason}")
        shell.printer.document(
            "snap.restore.rehearsal", 1, {"name": name, "variant": plan.variant, "reason": plan.reason}
        )
    elif plan.manifest.is_container:
        _restore_container(
            shell, plan, incoming, container_id or name, started, verification, lent, detach, no_fallback
        )
    elif container_id is not None:
        raise UsageError("a plain process has no container id: --id", hint="leave it out")
    elif network is not None or publications:
        raise UsageError(
            "a plain process keeps its network and its process numbers: --network, --publish",
            hint="capture the server in a container to have copies of it",
        )
    else:
        _restore_process(shell, arrived(shell, plan, incoming), started, verification, detach, no_fallback)


def _stage(shell: Shell, name: str, variant: str | None, folder: Path | None, dry_run: bool) -> None:
    from coldstart_snapshot.restoring.stage import configured_destination, stage_snapshot

    staged = stage_snapshot(
        name,
        shell.config,
        variant=variant,
        destination=configured_destination(folder, shell.config),
        dry_run=dry_run,
        say=shell.printer.status,
    )
    for warning in staged.warnings:
        shell.printer.warning(warning)
    where = "the page cache" if staged.place == "page cache" else str(staged.folder)
    verb = "would stage" if dry_run else "staged"
    shell.printer.answer(
        f"{verb} {name}/{staged.variant} in {where}: {staged.size_bytes / 1e6:.1f} MB, "
        f"{staged.moved_bytes / 1e6:.1f} MB of them were not there, {staged.seconds:.2f} s"
    )
    shell.printer.document("snap.restore.stage", 1, staged.document() | {"dry_run": dry_run})


def _restore_container(
    shell: Shell,
    plan: RestorePlan,
    incoming: Incoming | None,
    replica_name: str,
    started: float,
    verification: tuple[float, float],
    lent: tuple[str | None, tuple[Publication, ...]],
    detach: bool,
    no_fallback: bool,
) -> None:
    from coldstart_launch.chain import launched
    from coldstart_launch.options import Conversation, LaunchOptions
    from coldstart_launch.recorded import recorded_replica, with_network
    from coldstart_launch.waterfall import Waterfall
    from coldstart_snapshot.kept.inventory import StoredVariant

    recorded = plan.manifest.root
    configured = shell.config.value("store").value
    store = str(configured) if configured else (recorded.store if recorded else None) or shell.config.store
    spec, root = recorded_replica(StoredVariant(plan.folder, plan.manifest), replica_name, store)
    spec = with_network(spec, *lent)
    waterfall = Waterfall(started)
    waterfall.add("verify" if incoming is None else "fetch layer", *verification)
    options = LaunchOptions(fallback=not no_fallback)
    conversation = Conversation(shell.printer.status, shell.printer.warning)
    with launched(
        spec, root, options, shell.config, conversation, waterfall=waterfall, plan=plan, incoming=incoming
    ) as running:
        keep(shell, running, detach=detach)


def _restore_process(
    shell: Shell,
    plan: RestorePlan,
    started: float,
    verification: tuple[float, float],
    detach: bool,
    no_fallback: bool,
) -> None:
    from coldstart_launch.plain import bring_back
    from coldstart_launch.supervise import wait_for_end
    from coldstart_launch.waterfall import Waterfall, draw
    from coldstart_snapshot.processes.tree import end_tree

    log = shell.config.state_folder / "logs" / f"{plan.name}.log"
    waterfall = Waterfall(started)
    waterfall.add("verify", *verification)
    replica = bring_back(
        plan, shell.config, shell.printer.warning, waterfall, log=log, fallback=not no_fallback
    )
    ended = False
    try:
        total_seconds = time.monotonic() - started
        restored = replica.method == "restore"
        how = f"restored from {plan.variant}" if restored else "started cold"
        shell.printer.answer(f"{plan.name}: ready after {total_seconds:.2f} s, {how}, pid {replica.pid}")
        for line in draw(waterfall.stages):
            shell.printer.answer(f"  {line}")
        for line in replica.budget.lines() if replica.budget is not None else ():
            shell.printer.debug(line)
        shell.printer.document(
            "snap.restore",
            1,
            {
                "name": plan.name,
                "method": replica.method,
                "variant": plan.variant if restored else None,
                "pid": replica.pid,
                "log": str(log),
                "total_seconds": round(total_seconds, 4),
                "stages": [stage.document() for stage in waterfall.stages],
                "budget": replica.budget.document() if replica.budget is not None else None,
            },
        )
        if detach:
            ended = True  # nobody of ours looks after it any more
            return
        notify("READY=1")
        wait_for_end(replica.pid)
        ended = True
        raise ColdstartError(f"restored process ended: {plan.name}", hint=f"its output is in {log}")
    finally:
        if not ended:
            end_tree(replica.pid)
