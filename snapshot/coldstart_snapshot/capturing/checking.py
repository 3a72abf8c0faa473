"""`snap check`: what a capture of a live server would find, after what a killed one left was undone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_snapshot.capturing.recovery import settle_server
from coldstart_snapshot.containers.target import find_target, require_one
from coldstart_snapshot.criu.program import find_criu
from coldstart_snapshot.cuda.capturing import prepare_capture
from coldstart_snapshot.preflight.check import Checked, check_target
from coldstart_snapshot.processes.rights import require_rights
from coldstart_snapshot.processes.tree import process_tree


def check_server(
    config: Config,
    *,
    container_id: str | None,
    pid: int | None,
    runc_root: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Checked:
    """What a capture of this server would find; only what a killed capture did to it is undone."""
    require_one(container_id, pid)
    require_rights("looking into other processes", container=container_id is not None)
    criu = find_criu(config.text("programs.criu"))
    settle_server(config, say, container_id=container_id, pid=pid)
    target = find_target(config, container_id=container_id, pid=pid, runc_root=runc_root)
    gpu = prepare_capture(process_tree(target.pid), config)
    with closing(gpu.client) if gpu is not None else nullcontext():
        return check_target(target, criu, config.state_folder, gpu)
