"""Is a target, whose capture may have gone wrong, still the server that it was?"""

from __future__ import annotations

from collections.abc import Callable

from coldstart_cli.errors import ColdstartError
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.containers.runc import running_container
from coldstart_snapshot.containers.target import ContainerTarget, Target, is_same


def prove_serving(
    target: Target, url: str | None, timeout_seconds: float, require_gpu: Callable[[], None] | None = None
) -> str:
    """Say in words how the server is; raises when it does not serve.

    A health check needs no GPU: `require_gpu` raises where GPU state does not run.
    """
    if not is_same(target):
        raise ColdstartError(f"{target.label} has ended", hint="start it again; see its log")
    if isinstance(target, ContainerTarget):
        running_container(target.runc, target.container_id)
    if require_gpu is not None:
        require_gpu()
    if url is None:
        return f"{target.label} runs"
    wait_ready(url, timeout_seconds, pid=target.pid)
    return f"{target.label} runs and answers"
