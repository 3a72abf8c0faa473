"""A plain process tree comes back: restored, ready, answering as before; else started cold."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.config import Config
from coldstart_cli.dead_man import undone_when_killed
from coldstart_cli.errors import BusyError, ColdstartError, NotFoundError
from coldstart_cli.process import start_ticks
from coldstart_launch.answers import await_ready, replay_golden
from coldstart_launch.waterfall import Waterfall

if TYPE_CHECKING:
    from coldstart_snapshot.criu.budget import RestoreBudget
    from coldstart_snapshot.kept.manifest import Manifest
    from coldstart_snapshot.restoring.restore import RestorePlan


@dataclass(frozen=True)
class PlainReplica:
    """A ready process tree, and how it came up."""

    pid: int
    method: str
    log: Path
    budget: RestoreBudget | None = None


def bring_back(
    plan: RestorePlan,
    config: Config,
    warn: Callable[[str], None],
    waterfall: Waterfall,
    *,
    log: Path,
    fallback: bool,
) -> PlainReplica:
    """Restore and see that it serves; what does not is ended, and started cold where that is allowed."""
    from coldstart_snapshot.processes.tree import end_tree
    from coldstart_snapshot.restoring.restore import restore_process

    seconds = config.number("snapshot.restore_timeout_seconds")
    undo = (str(plan.images), str(plan.manifest.root_pid), str(start_ticks(os.getpid())), str(seconds))
    try:
        with undone_when_killed("coldstart_launch.plain_undo", *undo):
            with waterfall.stage("restore"):
                restored = restore_process(plan, config, log=log)
            try:
                _resume_engine(plan, restored.pid)
                ready_seconds = _see_ready(plan, restored.pid, log, waterfall)
                replay_golden(plan.manifest.golden, restored.pid, waterfall)
            except BaseException:
                # criu puts it into our cgroup, not into one of its own that could be ended whole
                end_tree(restored.pid, grace_seconds=1.0)
                raise
        budget = restored.budget.also("ready", ready_seconds)
        return PlainReplica(restored.pid, "restore", log, budget)
    except ColdstartError as error:
        if not fallback or plan.manifest.cold is None or _still_runs(plan.manifest):
            raise
        warn(f"cold start, because the restore failed: {error.message}")
    return _start_cold(plan, log, waterfall)


def _start_cold(plan: RestorePlan, log: Path, waterfall: Waterfall) -> PlainReplica:
    from coldstart_snapshot.kept.cold import start_cold
    from coldstart_snapshot.processes.tree import end_tree

    assert plan.manifest.cold is not None
    engine = plan.manifest.engine
    folder = engine.control_folder if engine is not None else None
    if folder is not None:
        from coldstart_snapshot.engines.sentinel import forget

        forget(Path("/"), Path(folder.lstrip("/")), ready=True)
    with waterfall.stage("start"):
        child = start_cold(plan.manifest.cold, log)
    try:
        if engine is not None and folder is not None:
            from coldstart_snapshot.engines.engine import Served
            from coldstart_snapshot.engines.sentinel import SentinelEngine

            worker = SentinelEngine(engine, Served(child.pid, plan.name))
            worker.wait_paused()
            worker.resume(restored=False)
        _see_ready(plan, child.pid, log, waterfall)
    except BaseException:
        end_tree(child.pid, grace_seconds=1.0)
        raise
    finally:
        child.poll()
        child.returncode = child.returncode or 0  # it outlives us: nobody here waits for it
    return PlainReplica(child.pid, "cold", log)


def _still_runs(manifest: Manifest) -> bool:
    """Whether the captured server itself, or another one in its place, is still there."""
    from coldstart_snapshot.processes.tree import is_alive, process_tree
    from coldstart_snapshot.restoring.restore import refuse_taken_ports

    try:
        refuse_taken_ports(manifest)
        pid = manifest.root_pid
        return is_alive(pid) and process_tree(pid)[0].command == manifest.command
    except BusyError:
        return True
    except NotFoundError:
        return False


def _resume_engine(plan: RestorePlan, pid: int) -> None:
    """What an engine laid down before the capture it takes up again."""
    if (engine := plan.manifest.engine) is not None:
        from coldstart_snapshot.engines.engine import Served, engine_of

        engine_of(engine, Served(pid, plan.name)).resume(restored=True)


def _see_ready(plan: RestorePlan, pid: int, log: Path, waterfall: Waterfall) -> float:
    ready = plan.manifest.ready
    url, seconds = (ready.url, ready.timeout_seconds) if ready is not None else (None, 1.0)
    return await_ready(url, seconds, pid, log, waterfall)
