"""One look at a live tree and what surrounds it; every check reads from it, and nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coldstart_snapshot.containers.target import ContainerTarget, Target
from coldstart_snapshot.criu.program import Criu
from coldstart_snapshot.processes.mappings import Mapping, mappings
from coldstart_snapshot.processes.tree import (
    OpenFile,
    ProcessFacts,
    all_pids,
    open_files,
    process_name,
    process_tree,
)

_NAMESPACES = ("pid", "pid_for_children", "user", "uts", "ipc", "time", "time_for_children", "mnt", "net")


@dataclass(frozen=True)
class Task:
    """A member of the tree as the kernel sees it; `terminal` is its controlling terminal, 0 for none."""

    pid: int
    state: str
    terminal: int
    tracer: int
    seccomp: int
    user: int
    namespaces: dict[str, str]

    @property
    def label(self) -> str:
        return f"process {self.pid} ({process_name(self.pid)})"


@dataclass(frozen=True)
class Scene:
    """The tree and the host it is on; `gpu` are the processes whose GPU state will be suspended."""

    target: Target
    criu: Criu
    state_folder: Path
    gpu: frozenset[int]
    tree: tuple[ProcessFacts, ...]
    tasks: tuple[Task, ...]
    files: tuple[OpenFile, ...]
    areas: tuple[Mapping, ...]
    gpu_bytes: int = 0  # what they bring into host memory

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(member.pid for member in self.tree)

    @property
    def is_container(self) -> bool:
        return isinstance(self.target, ContainerTarget)

    @cached_property
    def outside(self) -> dict[str, int]:
        """Sockets and pipes that other processes of this host hold, by what their descriptors lead to."""
        others = set(all_pids()) - self.pids - {os.getpid()}
        return _holders([*sorted(others), os.getpid()])


def look(target: Target, criu: Criu, state_folder: Path, gpu: Iterable[int], gpu_bytes: int = 0) -> Scene:
    """Read everything that the checks need, once."""
    tree = process_tree(target.pid)
    pids = [member.pid for member in tree]
    return Scene(
        target=target,
        criu=criu,
        state_folder=state_folder,
        gpu=frozenset(gpu),
        tree=tree,
        tasks=tuple(task for pid in pids if (task := _task(pid))),
        files=tuple(open_files(pids)),
        areas=tuple(mappings(pids)),
        gpu_bytes=gpu_bytes,
    )


def _task(pid: int) -> Task | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None  # it ended while we looked
    status = dict(line.partition(":")[::2] for line in lines)
    namespaces = {}
    for kind in _NAMESPACES:
        with suppress(OSError):
            namespaces[kind] = os.readlink(f"/proc/{pid}/ns/{kind}")
    return Task(
        pid=pid,
        state=fields[0],
        terminal=int(fields[4]),
        tracer=int(status.get("TracerPid", "0")),
        seccomp=int(status.get("Seccomp", "0")),
        user=int(status.get("Uid", "0").split()[0]),
        namespaces=namespaces,
    )


def _holders(pids: Iterable[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for pid in pids:
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    link = os.readlink(f"/proc/{pid}/fd/{number}")
                    if link.startswith(("socket:[", "pipe:[")):
                        found.setdefault(link, pid)
    return found
