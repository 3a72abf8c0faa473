"""Findings about the processes themselves: session, terminal, tracer, namespaces, filters, privileges."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from coldstart_snapshot.containers.target import ContainerTarget
from coldstart_snapshot.cpu.cpuid_cap import is_own_tracer
from coldstart_snapshot.preflight.finding import Finding, Peer, finding
from coldstart_snapshot.preflight.scene import Scene, Task
from coldstart_snapshot.processes.rights import is_unprivileged, unrestorable
from coldstart_snapshot.processes.tree import all_pids, is_alive, process_name, process_tree, session_of

_CAP_SYS_RESOURCE = 24
_FILTERED = 2
# criu 4.2 refuses them at the dump, but for net: that it dumps of a plain process, and does not restore
_NEVER_NESTED = ("pid", "pid_for_children", "user", "uts", "ipc", "time", "time_for_children", "net")
_NESTED_IN_CONTAINERS = ("mnt",)


def check(scene: Scene) -> Iterator[Finding]:
    yield from _left_out(scene)
    yield from _session(scene)
    for task in scene.tasks:
        yield from _state(task)
        yield from _namespaces(scene, task)
    yield from _filters(scene)
    yield from _privileges(scene)


def _left_out(scene: Scene) -> Iterator[Finding]:
    """Processes that were put into the container beside its first one: criu leaves them out."""
    target = scene.target
    if not isinstance(target, ContainerTarget):
        return
    found = [pid for pid in target.runc.pids(target.container_id) if pid not in scene.pids]
    # a child that was born since we looked is in the tree by now
    tree = {member.pid for member in process_tree(target.pid)} if found else set()
    for pid in found:
        if pid not in tree and is_alive(pid):
            what = f"not in the snapshot, since `exec` started it: process {pid} ({process_name(pid)})"
            yield finding("exec-process", what, pid=pid)


def _session(scene: Scene) -> Iterator[Finding]:
    root = scene.tree[0]
    if not scene.is_container and root.session != root.pid:
        what = f"process {root.pid} is not a session leader: {root.command}"
        yield finding("not-session-leader", what, pid=root.pid)
    elif not scene.is_container:
        yield from _beside_the_tree(scene)


def _beside_the_tree(scene: Scene) -> Iterator[Finding]:
    """Whoever is in the server's session and no descendant of it, such as a worker that was forked twice."""
    root = scene.tree[0]
    found = [pid for pid in all_pids() if pid not in scene.pids and session_of(pid) == root.pid]
    # a child that was born since we looked is in the tree by now
    tree = {member.pid for member in process_tree(root.pid)} if found else set()
    for pid in found:
        if pid not in tree and is_alive(pid):
            what = (
                f"of the server's session and not among its descendants: process {pid} ({process_name(pid)})"
            )
            yield finding("session-outside", what, pid=pid)


def _state(task: Task) -> Iterator[Finding]:
    if task.tracer and not is_own_tracer(task.tracer):
        what = f"{task.label} is traced by process {task.tracer} ({process_name(task.tracer)})"
        yield finding("traced", what, pid=task.pid, peer=Peer(task.tracer, process_name(task.tracer)))
    elif task.state == "T":
        what = f"{task.label} is stopped"
        yield finding("stopped", what, remedy=f"kill -CONT {task.pid}", pid=task.pid)
    elif task.state == "Z":
        yield finding("zombie", f"{task.label} has ended, and its parent did not take notice", pid=task.pid)


def _namespaces(scene: Scene, task: Task) -> Iterator[Finding]:
    mine = scene.tasks[0].namespaces
    forbidden = _NEVER_NESTED if scene.is_container else _NEVER_NESTED + _NESTED_IN_CONTAINERS
    kinds = [
        kind
        for kind in forbidden
        if kind in task.namespaces and kind in mine and task.namespaces[kind] != mine[kind]
    ]
    if kinds:
        names = ", ".join(dict.fromkeys(kind.removesuffix("_for_children") for kind in kinds))
        yield finding("nested-namespace", f"{task.label} has namespaces of its own: {names}", pid=task.pid)


def _filters(scene: Scene) -> Iterator[Finding]:
    # Linux: PTRACE_SECCOMP_GET_FILTER is refused to a caller that is filtered itself
    if _own_status("Seccomp") in {"", "0"}:
        return
    filtered = [task for task in scene.tasks if task.seccomp == _FILTERED]
    if filtered:
        what = f"{filtered[0].label} has system call filters, and coldstart itself runs under some"
        yield finding("seccomp", what, pid=filtered[0].pid)


def _privileges(scene: Scene) -> Iterator[Finding]:
    if is_unprivileged():
        for pid, error in unrestorable(task.pid for task in scene.tasks):
            yield finding("capability-missing", error.message, remedy=error.hint, pid=pid)
        return
    if int(_own_status("CapEff") or "0", 16) >> _CAP_SYS_RESOURCE & 1:
        return
    foreign = [task for task in scene.tasks if task.user != os.geteuid()]
    if foreign:
        what = (
            f"{foreign[0].label} runs as user {foreign[0].user}, and coldstart lacks"
            " the capability CAP_SYS_RESOURCE"
        )
        yield finding("capability-missing", what, pid=foreign[0].pid)


def _own_status(name: str) -> str:
    lines = Path("/proc/self/status").read_text("utf-8", "replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")
