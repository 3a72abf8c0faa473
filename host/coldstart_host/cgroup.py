"""Which cgroup hierarchy this host has, and whether we may make groups below our own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


class CgroupLayout(StrEnum):
    V2 = "v2"
    HYBRID = "hybrid"
    V1 = "v1"
    NONE = "none"


@dataclass(frozen=True)
class CgroupFacts:
    """`path` is our own group in the tree where processes are killed and counted; None without cgroups."""

    layout: CgroupLayout
    path: Path | None
    controllers: tuple[str, ...]
    delegated: bool


def read_cgroup_facts(mount: Path = _MOUNT, own: Path = _OWN) -> CgroupFacts:
    """Look at the mounts: a hybrid host has v1 controllers and a v2 tree without controllers beside them."""
    unified = mount / "unified"
    if (mount / "cgroup.controllers").exists():
        layout, root = CgroupLayout.V2, mount
    elif (unified / "cgroup.controllers").exists():
        layout, root = CgroupLayout.HYBRID, unified
    elif any(mount.glob("*/cgroup.procs")):
        layout, root = CgroupLayout.V1, mount
    else:
        return CgroupFacts(CgroupLayout.NONE, None, (), delegated=False)
    groups = _own_groups(own)
    if layout is CgroupLayout.V1:
        path = _below(mount / "pids", groups.get("pids", "/"))
    else:
        path = _below(root, groups.get("", "/"))
    controllers = _controllers(path) if layout is CgroupLayout.V2 else tuple(sorted(groups.keys() - {""}))
    return CgroupFacts(layout, path, controllers, delegated=_delegated(path))


def _below(root: Path, group: str) -> Path:
    """The folder of a group; in a cgroup namespace, or a bind mount of a subtree, that is the root itself."""
    path = root / group.lstrip("/")
    return path if path.is_dir() else root


def _own_groups(own: Path) -> dict[str, str]:
    """Controller -> group of this process; the v2 tree stands under the empty name."""
    groups: dict[str, str] = {}
    try:
        lines = own.read_text("utf-8", "replace").splitlines()
    except OSError:
        return groups
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller.removeprefix("name=")] = group
    return groups


def _controllers(path: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted((path / "cgroup.controllers").read_text("utf-8").split()))
    except OSError:
        return ()


def _delegated(path: Path) -> bool:
    """Whether we may create groups and move processes: the rule of cgroups(7), Delegation."""
    return os.access(path, os.W_OK) and os.access(path / "cgroup.procs", os.W_OK)
