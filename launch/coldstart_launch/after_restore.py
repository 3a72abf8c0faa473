"""What happens in a restored container between criu's last word and ready: reseed, wake the engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.config import Config
from coldstart_launch.spec import ReplicaSpec
from coldstart_launch.waterfall import Waterfall

if TYPE_CHECKING:
    from coldstart_snapshot.containers.container import RunningContainer
    from coldstart_snapshot.restoring.restore import RestorePlan


def load_what_follows() -> None:
    """Import what a restored server is asked and reported with; best while criu works, and we wait."""
    # the verdict takes longest, in another thread: its imports first, with the interpreter to themselves
    import coldstart_health.checks  # noqa: F401
    import coldstart_launch.outcome  # noqa: F401
    import coldstart_snapshot.answers.golden
    import coldstart_snapshot.criu.budget  # noqa: F401
    from coldstart_snapshot.answers.ready import load_client

    load_client()


def settle_copy(
    spec: ReplicaSpec, plan: RestorePlan, container: RunningContainer, config: Config, waterfall: Waterfall
) -> None:
    """Make the copy differ from the others, then let its engine serve; raises what keeps it from that."""
    program = config.text("programs.runc")
    if spec.restore_command is not None:
        from coldstart_snapshot.restoring.copies import run_restore_command

        with waterfall.stage("reseed"):
            run_restore_command(spec.restore_command, container, program)
    if plan.manifest.engine is not None:
        from coldstart_snapshot.engines.engine import Served, engine_of

        served = Served(
            container.pid,
            plan.name,
            container_id=container.id,
            runc_root=container.runc_root,
            runc=program,
            network=_network(container.pid),
        )
        with waterfall.stage("wake"):
            engine_of(plan.manifest.engine, served).resume(restored=True)


def _network(pid: int) -> Path | None:
    from coldstart_snapshot.containers.network import foreign_network

    return foreign_network(pid)
