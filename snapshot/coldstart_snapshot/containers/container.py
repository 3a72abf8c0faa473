"""Containers of ours: started from a specification, found again, ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, CannotCreateError
from coldstart_cli.files import make_directory, mounts_below, remove_tree
from coldstart_cli.process import find_program, run
from coldstart_cli.regular import open_own
from coldstart_snapshot.containers.runc import Runc, check_container_id
from coldstart_snapshot.processes.rights import require_root
from coldstart_snapshot.processes.tree import all_pids

if TYPE_CHECKING:
    from coldstart_snapshot.containers.cdi import Devices
    from coldstart_snapshot.containers.new_bundle import ContainerSpec
    from coldstart_snapshot.criu.budget import RestoreBudget

_CALL_SECONDS = 20.0
_ENGINE_SECONDS = 30.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class RunningContainer:
    """A container whose first process runs; `warnings` say what the host could not give it.

    A restored one has a `budget`.
    """

    id: str
    pid: int
    runc_root: Path
    bundle: Path
    warnings: tuple[str, ...] = ()
    budget: RestoreBudget | None = None


def run_container(
    spec: ContainerSpec,
    config: Config,
    *,
    runc_root: Path | None = None,
    before_start: Callable[[int], None] | None = None,
) -> RunningContainer:
    """Start a container detached; one that cannot start leaves nothing behind."""
    from coldstart_snapshot.containers.new_bundle import write_bundle

    require_root("running containers")
    runc = Runc.find(config.text("programs.runc"), runc_root or config.run_folder / "runc")
    refuse_taken_id(runc, spec.id)
    bundle = make_directory(bundle_folder(runc.state_root, spec.id), mode=0o700)
    try:
        devices = host_devices(config) if spec.devices else None
        warnings = write_bundle(bundle, spec, devices)
        with open_log(spec.log) as output:
            pid = runc.start(spec.id, bundle, output=output, before_start=before_start)
    except BaseException:
        kill_and_delete(spec.id, runc_root=runc.state_root, runc=runc.program)
        raise
    return RunningContainer(spec.id, pid, runc.state_root, bundle, warnings)


def host_devices(config: Config) -> Devices:
    """What the CDI specifications in the configured folders name."""
    from coldstart_snapshot.containers.cdi import Devices

    return Devices(tuple(Path(folder) for folder in config.texts("cdi_folders")))


def kill_and_delete(container_id: str, *, runc_root: Path, runc: str | None = None) -> None:
    """End a container with everything in it and remove its bundle; an absent one is fine.

    A runc or criu that still works on it, because the command that had started them was killed, is
    waited for: ended halfway it would leave processes that belong to no container.
    """
    check_container_id(container_id)
    bundle = bundle_folder(runc_root, container_id)
    _wait_for_engines(bundle)
    Runc.find(runc, runc_root).kill_and_delete(container_id)
    for point in mounts_below(bundle):  # criu's view of the cgroups
        run([find_program("umount"), "--lazy", point], deadline_seconds=_CALL_SECONDS)
    remove_tree(bundle)


def _wait_for_engines(bundle: Path) -> None:
    """Until no runc or criu is in the bundle, where both stand while they work on a container."""
    deadline = time.monotonic() + _ENGINE_SECONDS
    while left := standing_in(bundle):
        if time.monotonic() > deadline:
            numbers = " ".join(map(str, left))
            raise BusyError(
                f"runc or criu still works on the container: {bundle.name}: process {numbers}",
                hint=f"wait for it, or kill -9 {numbers}",
            )
        time.sleep(_POLL_SECONDS)


def standing_in(folder: Path) -> list[int]:
    """Processes, but for us, whose working directory that folder is."""
    wanted = os.path.realpath(folder)
    found = []
    for pid in all_pids():
        with suppress(OSError):
            if pid != os.getpid() and os.readlink(f"/proc/{pid}/cwd") == wanted:
                found.append(pid)
    return found


def bundle_folder(runc_root: Path, container_id: str) -> Path:
    """Where we keep the bundle of a container: beside runc's own state, gone after a reboot."""
    return runc_root.parent / f"{runc_root.name}-bundles" / container_id


def refuse_taken_id(runc: Runc, container_id: str) -> None:
    """An id is free or the caller is told how to free it."""
    if (state := runc.state(container_id)) is not None:
        raise BusyError(
            f"container id is in use: {container_id} is {state.status}",
            hint=f"{runc.program} --root {runc.state_root} delete --force {container_id}",
        )


@contextmanager
def open_log(path: Path) -> Iterator[int]:
    """The log that a container appends its output to, created for root's eyes only."""
    make_directory(path.parent)
    try:
        descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        raise CannotCreateError(f"cannot open log: {path}: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)
