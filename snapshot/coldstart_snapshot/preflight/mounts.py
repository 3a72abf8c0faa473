"""Findings about mounts: file systems that criu can neither store nor find again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_snapshot.containers.bundle import read_bundle
from coldstart_snapshot.containers.roots import read_mounts
from coldstart_snapshot.containers.target import ContainerTarget
from coldstart_snapshot.preflight.finding import Finding, finding
from coldstart_snapshot.preflight.scene import Scene
from coldstart_snapshot.processes.tree import namespace


def check(scene: Scene) -> Iterator[Finding]:
    target = scene.target
    if isinstance(target, ContainerTarget):
        yield from _undeclared_fuse(target)
    elif namespace(target.pid, "mnt") != namespace(os.getpid(), "mnt"):
        what = f"process {target.pid} has a mount namespace of its own"
        yield finding("mount-namespace", what, pid=target.pid)


def _undeclared_fuse(target: ContainerTarget) -> Iterator[Finding]:
    """FUSE mounts that the container's configuration does not name: runc tells criu only of those."""
    declared = {"/"}
    try:
        mounts = read_bundle(target.bundle).get("mounts") or ()
    except ColdstartError:
        mounts = ()
    declared |= {os.path.normpath(str(mount.get("destination", "/"))) for mount in mounts}
    for entry in read_mounts(Path(f"/proc/{target.pid}/mountinfo")):
        is_fuse = entry.filesystem == "fuse" or entry.filesystem.startswith(("fuse.", "fuseblk"))
        if is_fuse and entry.point not in declared:
            what = f"a FUSE file system was mounted inside the container: {entry.point} ({entry.source})"
            yield finding("fuse-mount", what, path=entry.point)
