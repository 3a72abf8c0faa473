"""Findings about the host: criu and its kernel, room for the snapshot, what is loaded into every program."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from coldstart_cli.errors import UnavailableError
from coldstart_snapshot.containers.roots import read_mounts
from coldstart_snapshot.criu.program import check_host
from coldstart_snapshot.preflight.finding import Finding, finding
from coldstart_snapshot.preflight.scene import Scene
from coldstart_snapshot.processes.mappings import deleted_mappings

_PRELOAD = Path("/etc/ld.so.preload")
_ROOM_FACTOR = 1.05


def check(scene: Scene) -> Iterator[Finding]:
    yield from _criu(scene)
    yield from _room(scene)
    yield from _preload()


def _criu(scene: Scene) -> Iterator[Finding]:
    try:
        check_host(scene.criu)
    except UnavailableError as error:
        yield finding("criu-unfit", error.message, remedy=error.hint)


def _room(scene: Scene) -> Iterator[Finding]:
    needed = needed_bytes(scene)
    folder = scene.state_folder
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        what = f"not enough space for the snapshot: {needed} bytes needed, {free} free in {folder}"
        yield finding("disk-space", what, path=str(folder), size_bytes=needed)
    elif _file_system(folder) in {"tmpfs", "ramfs"}:
        available = psutil.virtual_memory().available
        if available < needed:
            what = f"{folder} is in memory: {needed} bytes needed, {available} free"
            yield finding("memory", what, path=str(folder), size_bytes=needed)


def needed_bytes(scene: Scene) -> int:
    """What a snapshot takes at most: the memory of the tree, and the deleted files that are in use."""
    memory = sum(member.memory_bytes for member in scene.tree) + scene.gpu_bytes
    deleted = {file.inode: file.deleted_bytes for file in scene.files}
    deleted |= {file.inode: file.size_bytes for file in deleted_mappings(scene.areas) if not file.links}
    return int((memory + sum(deleted.values())) * _ROOM_FACTOR)


def _file_system(folder: Path) -> str:
    """The type of the file system that a folder is on: the deepest mount point above it."""
    path = f"{os.path.realpath(folder)}/"
    best, found = "", "?"
    for entry in read_mounts(Path("/proc/self/mountinfo")):
        point = f"{entry.point.rstrip('/')}/"
        if path.startswith(point) and len(point) >= len(best):
            best, found = point, entry.filesystem
    return found


def _preload() -> Iterator[Finding]:
    with suppress(OSError):
        libraries = _PRELOAD.read_text("utf-8", "replace").split()
        if libraries:
            what = f"loaded into criu too: {', '.join(libraries)}"
            yield finding("preload", what, path=str(_PRELOAD))
