"""What is to be captured: a container or a plain process tree, and what /proc says of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import DataError, NotFoundError, UsageError
from coldstart_cli.process import start_ticks
from coldstart_snapshot.containers.bundle import network_is_shared, read_bundle
from coldstart_snapshot.containers.roots import RootSource, detect_root
from coldstart_snapshot.containers.runc import Runc, running_container
from coldstart_snapshot.processes.mappings import deleted_mappings, mappings
from coldstart_snapshot.processes.ports import listening_ports
from coldstart_snapshot.processes.tree import (
    OpenFile,
    ProcessFacts,
    is_alive,
    is_kernel_thread,
    mount_ids,
    namespace,
    open_files,
    output_files,
    own_ancestors,
    process_name,
    process_tree,
)

_PIPE = "pipe:["


@dataclass(frozen=True)
class ContainerTarget:
    """A running container of runc."""

    pid: int
    ticks: int
    runc: Runc
    container_id: str
    bundle: Path
    root: RootSource

    @property
    def label(self) -> str:
        return f"container {self.container_id}"


@dataclass(frozen=True)
class ProcessTarget:
    """A running process that leads its own session."""

    pid: int
    ticks: int

    @property
    def label(self) -> str:
        return f"process {self.pid}"


Target = ContainerTarget | ProcessTarget


@dataclass(frozen=True)
class TargetFacts:
    """What a capture must know; `output_keys` name the files that a restore replaces by its own log."""

    tree: tuple[ProcessFacts, ...]
    network: str
    listen: tuple[str, ...]
    output_keys: tuple[str, ...]
    external_keys: tuple[str, ...]
    deleted_bytes: int
    largest_deleted_bytes: int

    @property
    def memory_bytes(self) -> int:
        return sum(member.memory_bytes for member in self.tree)


def require_one(container_id: str | None, pid: int | None) -> None:
    """Refuse a request that names both a container and a process, or none."""
    if (container_id is None) == (pid is None):
        raise UsageError("name either a container or a process", hint="--container ID, or --pid PID")


def find_target(
    config: Config,
    *,
    container_id: str | None,
    pid: int | None,
    runc_root: Path | None = None,
    root: RootSource | None = None,
) -> Target:
    """The process, or the container in coldstart's own or another state folder of runc."""
    if pid is not None:
        return process_target(pid)
    assert container_id is not None
    runc = Runc.find(config.text("programs.runc"), runc_root or config.run_folder / "runc")
    return container_target(runc, container_id, root)


def container_target(runc: Runc, container_id: str, root: RootSource | None = None) -> ContainerTarget:
    """The running container of that id; its root is detected unless given."""
    state = running_container(runc, container_id)
    _refuse_own_tree(state.pid, f"container {container_id}")
    return ContainerTarget(
        pid=state.pid,
        ticks=start_ticks(state.pid),
        runc=runc,
        container_id=container_id,
        bundle=state.bundle,
        root=root or detect_root(state.root),
    )


def process_target(pid: int) -> ProcessTarget:
    """The process, when it is one that can be looked at on its own."""
    process_tree(pid)
    if not is_alive(pid):
        raise NotFoundError(f"process has ended: {pid}")
    if is_kernel_thread(pid):
        raise DataError(
            f"process {pid} ({process_name(pid)}) is a kernel thread: there is nothing to capture",
            hint="name the server's process",
        )
    _refuse_own_tree(pid, f"process {pid}")
    if namespace(pid, "pid") != namespace(os.getpid(), "pid"):
        raise DataError(f"process {pid} runs inside a container", hint="capture it as one: `--container ID`")
    return ProcessTarget(pid, start_ticks(pid))


def target_facts(target: Target) -> TargetFacts:
    """Look at the tree; whether it can be captured is for the preflight to say."""
    tree = process_tree(target.pid)
    pids = [member.pid for member in tree]
    files = list(open_files(pids))
    if isinstance(target, ContainerTarget):
        outputs = output_files(pids, outside=mount_ids(target.pid))
        # runc itself hands the pipes of the first process over
        pipes: set[str] = set()
    else:
        outputs = output_files(pids)
        pipes = {file.path for file in files if file.path.startswith(_PIPE) and file.descriptor in {1, 2}}
        inside = _pipe_readers(files)
        pipes -= inside
    keys = tuple(sorted(file.key for file in outputs))
    if isinstance(target, ContainerTarget):
        # one that was started in a lent namespace can be restored in any
        shared = network_is_shared(read_bundle(target.bundle))
    else:
        shared = namespace(target.pid, "net") == namespace(os.getpid(), "net")
    deleted = {(file.path, file.inode): file.deleted_bytes for file in files if file.deleted_bytes}
    for area in deleted_mappings(mappings(pids)):
        if area.links == 0:
            deleted[f"{area.path} (deleted)", area.inode] = area.size_bytes
    return TargetFacts(
        tree=tree,
        network="host" if shared else "none",
        listen=listening_ports(pids),
        output_keys=(*keys, *sorted(pipes)),
        external_keys=keys,
        deleted_bytes=sum(deleted.values()),
        largest_deleted_bytes=max(deleted.values(), default=0),
    )


def is_same(target: Target) -> bool:
    """Whether the target's first process still is that process."""
    try:
        return is_alive(target.pid) and start_ticks(target.pid) == target.ticks
    except OSError:
        return False


def _refuse_own_tree(pid: int, label: str) -> None:
    """Refuse what we descend from: it would freeze us with it, and nobody would thaw it."""
    if pid in own_ancestors():
        raise DataError(
            f"{label} cannot be captured: coldstart itself is in that tree",
            hint="start the server with `setsid` from elsewhere",
        )


def _pipe_readers(files: list[OpenFile]) -> set[str]:
    """Pipes whose other end is in the tree too: criu restores those by itself."""
    ends: dict[str, set[int]] = {}
    for file in files:
        if file.path.startswith(_PIPE):
            ends.setdefault(file.path, set()).add(file.access_mode)
    return {path for path, modes in ends.items() if os.O_RDONLY in modes}
