"""Findings about files: deleted ones, deleted names, files outside of the container, shared locks."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from coldstart_snapshot.containers.roots import tmpfs_mounts
from coldstart_snapshot.preflight.finding import Finding, Peer, finding
from coldstart_snapshot.preflight.scene import Scene
from coldstart_snapshot.processes.mappings import DeletedFile, deleted_mappings, is_memory
from coldstart_snapshot.processes.tree import OpenFile, mount_ids, output_files, process_name

_DELETED = " (deleted)"


def check(scene: Scene) -> Iterator[Finding]:
    yield from _outside(scene)
    yield from _deleted(scene)
    yield from _locks(scene)
    yield from _shared_memory(scene)


def _outside(scene: Scene) -> Iterator[Finding]:
    """Files of the host's mounts that a container has open, other than the log of its output."""
    if not scene.is_container:
        return
    inside, ours = mount_ids(scene.target.pid), mount_ids(os.getpid())
    outputs = {file.key for file in output_files(scene.pids, outside=inside)}
    for file in scene.files:
        plain = stat.S_ISREG(file.mode) or stat.S_ISDIR(file.mode)
        if plain and file.mount_id not in inside and file.mount_id in ours and file.key not in outputs:
            what = (
                f"descriptor {file.descriptor} of process {file.pid} is open on a file outside the container:"
                f" {file.path}"
            )
            yield finding("outside-file", what, pid=file.pid, descriptor=file.descriptor, path=file.path)


def _deleted(scene: Scene) -> Iterator[Finding]:
    kept = tmpfs_mounts(scene.target.pid) if scene.is_container else ()
    seen = set()
    for file in (*_deleted_open(scene.files), *deleted_mappings(scene.areas)):
        if (file.path, file.inode) in seen:
            continue
        seen.add((file.path, file.inode))
        details: dict[str, Any] = {"pid": file.pid, "path": file.path, "size_bytes": file.size_bytes}
        who = f"process {file.pid} ({process_name(file.pid)})"
        if file.links == 0:
            what = f"a deleted file is in use, {file.size_bytes} bytes: {file.path}: {who}"
            yield finding("deleted-file", what, **details)
        elif not any(file.path.startswith(f"{point}/") for point in kept):
            # criu links it for the dump and takes the link away again, so only what it stores is kept
            what = (
                "a file that was deleted under one of its names is still open, in"
                f" {os.path.dirname(file.path)}: {who}"
            )
            yield finding("deleted-link", what, **details)


def _deleted_open(files: Iterable[OpenFile]) -> Iterator[DeletedFile]:
    for file in files:
        if stat.S_ISREG(file.mode) and file.path.endswith(_DELETED) and not is_memory(file.path):
            size_bytes = file.deleted_bytes
            yield DeletedFile(file.pid, file.path.removesuffix(_DELETED), file.inode, size_bytes, file.links)


def _shared_memory(scene: Scene) -> Iterator[Finding]:
    """Files of the host's tmpfs that a plain process shares: memory to the server, a file to criu."""
    if scene.is_container:
        return
    devices = set()
    for point in tmpfs_mounts(scene.target.pid):
        with suppress(OSError):
            devices.add(os.stat(point).st_dev)
    seen = set()
    for area in scene.areas:
        if not area.shared or not area.path.startswith("/") or area.path.endswith(_DELETED):
            continue
        status = area.status() if area.path not in seen else None
        if status is not None and stat.S_ISREG(status.st_mode) and status.st_dev in devices:
            seen.add(area.path)
            what = f"shared memory in a file is not in the snapshot: {area.path}: process {area.pid}"
            details: dict[str, Any] = {"path": area.path, "size_bytes": status.st_size}
            yield finding("shared-memory-file", f"{what} ({process_name(area.pid)})", pid=area.pid, **details)


def _locks(scene: Scene) -> Iterator[Finding]:
    """Locks of the tree with a partner outside: the restored server would have to wait, or fail."""
    mine: dict[str, OpenFile] = {}
    partners: dict[str, int] = {}
    for file in scene.files:
        for line in file.info.splitlines():
            if line.startswith("lock:"):
                _, pid, key = _lock(line.removeprefix("lock:"))
                mine.setdefault(key, file)
                # a descriptor that was inherited keeps the lock of the process that opened it
                if pid not in scene.pids and os.path.exists(f"/proc/{pid}"):
                    partners.setdefault(key, pid)
    if not mine:
        return
    for line in _all_locks():
        _, pid, key = _lock(line)
        if key in mine and pid > 0 and pid not in scene.pids:
            partners.setdefault(key, pid)
    for key, pid in partners.items():
        file, name = mine[key], process_name(pid)
        what = (
            f"a file lock of process {file.pid} is shared with or waited for by process {pid} ({name}):"
            f" {file.path}"
        )
        yield finding(
            "file-lock",
            what,
            pid=file.pid,
            descriptor=file.descriptor,
            path=file.path,
            peer=Peer(pid, name),
        )


def _all_locks() -> list[str]:
    with suppress(OSError):
        return Path("/proc/locks").read_text("utf-8", "replace").splitlines()
    return []


def _lock(line: str) -> tuple[str, int, str]:
    """Kind, holder and file of a line of /proc/locks: `1: -> FLOCK ADVISORY WRITE 4711 fe:00:123 0 EOF`."""
    fields = [field for field in line.split()[1:] if field != "->"]
    return fields[0], int(fields[3]), fields[4]
