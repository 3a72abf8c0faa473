"""Workers that are told by files, started cold: paused until they were captured, or are told to go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from coldstart_launch.replica import last_words
from coldstart_launch.spec import ReplicaSpec
from coldstart_launch.waterfall import Waterfall

if TYPE_CHECKING:
    from coldstart_snapshot.containers.container import RunningContainer
    from coldstart_snapshot.containers.new_bundle import ContainerSpec


def is_told(spec: ReplicaSpec) -> bool:
    """Whether the replica listens only when it was told to go on."""
    return spec.engine is not None and spec.engine.kind == "sentinel"


def forget_earlier_worker(spec: ReplicaSpec, wanted: ContainerSpec) -> None:
    """Before the start: what another one left in a control folder of the host says nothing of this one."""
    if spec.engine is not None and spec.engine.kind == "sentinel":
        from coldstart_snapshot.engines.sentinel import control_folder_of, forget_in_mounts

        folder = spec.engine.control_folder or control_folder_of(wanted.environment)
        forget_in_mounts([(m.destination, str(m.source)) for m in wanted.mounts], folder, ready=True)


def go_on(
    spec: ReplicaSpec,
    container: RunningContainer,
    wanted: ContainerSpec,
    waterfall: Waterfall,
    capture: Callable[[], str | None] | None,
) -> str | None:
    """Wait until the worker is paused, capture it where that is wanted, and see that it was told to go on.

    Returns what `capture` does: None where there is no snapshot.
    """
    from coldstart_snapshot.engines.engine import EngineError, Served
    from coldstart_snapshot.engines.sentinel import SentinelEngine

    assert spec.engine is not None
    # it initialises first, which is what a replica gets its time to be ready for
    seconds = max(spec.engine.timeout_seconds, spec.ready.timeout_seconds)
    settings = replace(spec.engine, timeout_seconds=seconds)
    worker = SentinelEngine(settings, Served(container.pid, spec.snapshot), wanted.environment)
    try:
        with waterfall.stage("paused"):
            worker.wait_paused()
        snapshot = capture() if capture is not None else None
        if snapshot is None:
            with waterfall.stage("wake"):
                worker.resume(restored=False)
    except EngineError as error:
        error.hint = f"{last_words(wanted.log)} (whole log: {wanted.log})"
        raise
    return snapshot
