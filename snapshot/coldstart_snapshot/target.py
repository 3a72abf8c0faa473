"""What is to be captured: a container or a plain process tree, and what /proc says of it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import ColdstartError, DataError, NotFoundError
from coldstart_cli.process import start_ticks
from coldstart_snapshot.ports import listening_ports
from coldstart_snapshot.processes import (
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
from coldstart_snapshot.ready import wait_ready
from coldstart_snapshot.roots import RootSource, detect_root
from coldstart_snapshot.runc import Runc, running_container
from coldstart_snapshot.unix_peers import refuse_outside_peers

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
    notes: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        return sum(member.memory_bytes for member in self.tree)


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
    """The process, when criu can capture it on its own."""
    root = process_tree(pid)[0]
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
    if root.session != pid:
        raise DataError(
            f"process {pid} is not a session leader: {root.command}", hint="start the server with `setsid`"
        )
    return ProcessTarget(pid, start_ticks(pid))


def target_facts(target: Target) -> TargetFacts:
    """Look at the tree; what can never be captured is refused here, before anything is touched."""
    tree = process_tree(target.pid)
    pids = [member.pid for member in tree]
    files = list(open_files(pids))
    refuse_outside_peers(target.pid, files)
    notes: tuple[str, ...] = ()
    if isinstance(target, ContainerTarget):
        notes = _strangers(target, pids)
        outputs = output_files(pids, outside=mount_ids(target.pid))
        _refuse_outside_files(target, files, {file.key for file in outputs})
        # runc itself hands the pipes of the first process over
        pipes: set[str] = set()
    else:
        outputs = output_files(pids)
        pipes = {file.path for file in files if file.path.startswith(_PIPE) and file.descriptor in {1, 2}}
        inside = _pipe_readers(files)
        pipes -= inside
    keys = tuple(sorted(file.key for file in outputs))
    shared = namespace(target.pid, "net") == namespace(os.getpid(), "net")
    deleted = {(file.mount_id, file.inode): file.deleted_bytes for file in files if file.deleted_bytes}
    return TargetFacts(
        tree=tree,
        network="host" if shared else "none",
        listen=listening_ports(pids),
        output_keys=(*keys, *sorted(pipes)),
        external_keys=keys,
        deleted_bytes=sum(deleted.values()),
        largest_deleted_bytes=max(deleted.values(), default=0),
        notes=notes,
    )


def is_same(target: Target) -> bool:
    """Whether the target's first process still is that process."""
    try:
        return is_alive(target.pid) and start_ticks(target.pid) == target.ticks
    except OSError:
        return False


def prove_serving(target: Target, url: str | None, timeout_seconds: float) -> str:
    """Say in words how the server is; raises when it does not serve."""
    if not is_same(target):
        raise ColdstartError(f"{target.label} has ended", hint="start it again; see its log")
    if isinstance(target, ContainerTarget):
        running_container(target.runc, target.container_id)
    if url is None:
        return f"{target.label} runs"
    wait_ready(url, timeout_seconds, pid=target.pid)
    return f"{target.label} runs and answers"


def _refuse_own_tree(pid: int, label: str) -> None:
    """Refuse what we descend from: it would freeze us with it, and nobody would thaw it."""
    if pid in own_ancestors():
        raise DataError(
            f"{label} cannot be captured: coldstart itself is in that tree",
            hint="start the server with `setsid` from elsewhere",
        )


def _strangers(target: ContainerTarget, pids: list[int]) -> tuple[str, ...]:
    """Processes that were put into the container beside its first one: criu leaves them out."""
    found = [pid for pid in target.runc.pids(target.container_id) if pid not in pids and is_alive(pid)]
    return tuple(
        f"not in the snapshot, since `exec` started it: process {pid} ({process_name(pid)})" for pid in found
    )


def _pipe_readers(files: list[OpenFile]) -> set[str]:
    """Pipes whose other end is in the tree too: criu restores those by itself."""
    ends: dict[str, set[int]] = {}
    for file in files:
        if file.path.startswith(_PIPE):
            ends.setdefault(file.path, set()).add(_access_mode(file))
    return {path for path, modes in ends.items() if os.O_RDONLY in modes}


def _access_mode(file: OpenFile) -> int:
    try:
        text = Path(f"/proc/{file.pid}/fdinfo/{file.descriptor}").read_text()
    except OSError:
        return os.O_WRONLY
    flags = next((line.split()[1] for line in text.splitlines() if line.startswith("flags:")), "1")
    return int(flags, 8) & os.O_ACCMODE


def _refuse_outside_files(target: ContainerTarget, files: list[OpenFile], outputs: set[str]) -> None:
    inside, ours = mount_ids(target.pid), mount_ids(os.getpid())
    for file in files:
        plain = stat.S_ISREG(file.mode) or stat.S_ISDIR(file.mode)
        if plain and file.mount_id not in inside and file.mount_id in ours and file.key not in outputs:
            raise DataError(
                f"descriptor {file.descriptor} of process {file.pid} is open on a file outside the container:"
                f" {file.path}",
                hint="start the container without inherited descriptors",
            )
