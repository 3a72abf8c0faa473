"""Findings about watched files: inotify keeps no names, and overlayfs gives no handles to find them by."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from coldstart_snapshot.containers.roots import read_mounts
from coldstart_snapshot.preflight.finding import Finding, finding
from coldstart_snapshot.processes.tree import OpenFile, process_name

_WATCH = re.compile(r"^inotify wd:\S+ ino:([0-9a-f]+) sdev:([0-9a-f]+) ", re.MULTILINE)
_MINOR_BITS = 20
# where criu 4.2 looks for what has no handle (criu/irmap.c)
_SEARCHED = (
    "etc", "var/spool", "var/log", "usr/share/dbus-1/services", "usr/share/dbus-1/system-services",
    "var/lib/polkit-1/localauthority", "usr/share/polkit-1/actions", "lib/udev",
)  # fmt: skip
_SEARCH_LIMIT = 50_000


def check_watches(file: OpenFile) -> Iterator[Finding]:
    """Watches on an overlay that criu would not find again."""
    overlays = frozenset(
        entry.device
        for entry in read_mounts(Path(f"/proc/{file.pid}/mountinfo"))
        if entry.filesystem == "overlay"
    )
    watched = {
        int(inode, 16) for inode, device in _WATCH.findall(file.info) if _numbers(int(device, 16)) in overlays
    }
    lost = len(watched - _found(file.pid)) if watched else 0
    if lost:
        things = "a file or folder" if lost == 1 else f"{lost} files or folders"
        where = f"descriptor {file.descriptor} of process {file.pid} ({process_name(file.pid)})"
        what = f"watching {things} of an overlay: {where}"
        yield finding("file-watch", what, pid=file.pid, descriptor=file.descriptor, path=file.path)


def _numbers(device: int) -> tuple[int, int]:
    return device >> _MINOR_BITS, device & ((1 << _MINOR_BITS) - 1)


def _found(pid: int) -> set[int]:
    """The inodes that criu comes across in the root of a process."""
    root = f"/proc/{pid}/root"
    found: set[int] = set()
    waiting = [os.path.join(root, name) for name in _SEARCHED]
    try:
        found.add(os.stat(f"{root}/").st_ino)
        found |= {os.lstat(path).st_ino for path in waiting if os.path.lexists(path)}
    except OSError:
        return found
    while waiting and len(found) < _SEARCH_LIMIT:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    found.add(entry.stat(follow_symlinks=False).st_ino)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue
    return found
