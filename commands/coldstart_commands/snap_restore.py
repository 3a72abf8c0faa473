"""coldstart snap restore: bring a captured server back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import ColdstartError, UsageError
from coldstart_cli.notify import notify
from coldstart_commands.launch import DetachOption, NoFallbackOption, keep, process_age_seconds
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_snapshot.restore import RestorePlan

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Snapshot name.")]
VariantOption = Annotated[
    str | None, typer.Option("--variant", metavar="VARIANT", help="Restore this variant, if it fits.")
]
IdOption = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="Container id and replica name; default: the snapshot's name."),
]
StopOption = Annotated[bool, typer.Option("--stop", help="Take the restored container down.")]


@coldstart_command("store", "cache_dir", "health.expect_gpus", "lock_wait_seconds")
def command(
    shell: Shell,
    name: NameArgument,
    variant: VariantOption = None,
    container_id: IdOption = None,
    detach: DetachOption = False,
    no_fallback: NoFallbackOption = False,
    stop: StopOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Restore the variant that fits this host, on a fresh root, and wait until it is ready.

    Sizes and digests are verified and the CPU is compared before anything starts. A container that
    cannot be restored is started cold from what the snapshot recorded, unless --no-fallback is given.
    """
    started = time.monotonic() - process_age_seconds()
    from coldstart_launch.supervise import stop_replica
    from coldstart_snapshot.restore import plan_restore

    if stop:
        stop_replica(container_id or name, shell.config)
        shell.printer.note(f"stopped: {container_id or name}")
        shell.printer.document("snap.restore.stop", 1, {"name": container_id or name})
        return
    planned = time.monotonic()
    plan = plan_restore(name, shell.config, variant=variant)
    verified = time.monotonic()
    for warning in plan.warnings:
        shell.printer.warning(warning)
    shell.printer.debug(f"variant {plan.variant}: {plan.reason}")
    if dry_run:
        shell.printer.answer(f"would restore {name} from {plan.variant}: {plan.reason}")
        shell.printer.document(
            "snap.restore.rehearsal", 1, {"name": name, "variant": plan.variant, "reason": plan.reason}
        )
    elif plan.manifest.is_container:
        _restore_container(
            shell, plan, container_id or name, started, (planned, verified), detach, no_fallback
        )
    elif container_id is not None:
        raise UsageError("a plain process has no container id: --id", hint="leave it out")
    else:
        _restore_process(shell, plan, started, detach)


def _restore_container(
    shell: Shell,
    plan: RestorePlan,
    replica_name: str,
    started: float,
    verification: tuple[float, float],
    detach: bool,
    no_fallback: bool,
) -> None:
    from coldstart_launch.chain import Conversation, LaunchOptions, launched
    from coldstart_launch.recorded import recorded_replica
    from coldstart_launch.waterfall import Waterfall
    from coldstart_snapshot.inventory import StoredVariant

    recorded = plan.manifest.root
    configured = shell.config.value("store").value
    store = str(configured) if configured else (recorded.store if recorded else None) or shell.config.store
    spec, root = recorded_replica(StoredVariant(plan.folder, plan.manifest), replica_name, store)
    waterfall = Waterfall(started)
    waterfall.add("verify", *verification)
    options = LaunchOptions(fallback=not no_fallback)
    conversation = Conversation(shell.printer.status, shell.printer.warning)
    with launched(spec, root, options, shell.config, conversation, waterfall=waterfall, plan=plan) as running:
        keep(shell, running, detach=detach)


def _restore_process(shell: Shell, plan: RestorePlan, started: float, detach: bool) -> None:
    from coldstart_launch.supervise import wait_for_end
    from coldstart_snapshot.processes import end_tree
    from coldstart_snapshot.ready import wait_ready
    from coldstart_snapshot.restore import restore_process

    log = shell.config.state_folder / "logs" / f"{plan.name}.log"
    restored = restore_process(plan, shell.config, log=log)
    ended = False
    try:
        if ready := plan.manifest.ready:
            wait_ready(ready.url, ready.timeout_seconds, pid=restored.pid)
        total_seconds = time.monotonic() - started
        how = f"restored from {plan.variant}, pid {restored.pid}"
        shell.printer.answer(f"{plan.name}: ready after {total_seconds:.2f} s, {how}")
        shell.printer.document(
            "snap.restore",
            1,
            {
                "name": plan.name,
                "method": "restore",
                "variant": plan.variant,
                "pid": restored.pid,
                "log": str(log),
                "total_seconds": round(total_seconds, 4),
            },
        )
        if detach:
            ended = True  # nobody of ours looks after it any more
            return
        notify("READY=1")
        wait_for_end(restored.pid)
        ended = True
        raise ColdstartError(f"restored process ended: {plan.name}", hint=f"its output is in {log}")
    finally:
        if not ended:
            end_tree(restored.pid)
