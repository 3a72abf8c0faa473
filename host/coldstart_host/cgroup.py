"""Which cgroup hierarchy this host has, and whether we may make groups below our own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # v1 writes about 2^63 where there is no limit


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


@dataclass(frozen=True)
class CgroupLimits:
    """The tightest limits on our group and those around it; None where there is none."""

    memory_limit_bytes: int | None = None
    memory_used_bytes: int | None = None
    cpu_limit: float | None = None


def read_cgroup_limits(mount: Path = _MOUNT, own: Path = _OWN) -> CgroupLimits:
    """Limits of v2, or of v1's memory and cpu controllers; what the page cache can give back is not used."""
    groups = _own_groups(own)
    v2 = (mount / "cgroup.controllers").exists()
    memory_tree = _upward(mount if v2 else mount / "memory", groups.get("" if v2 else "memory", "/"))
    cpu_tree = _upward(mount if v2 else mount / "cpu", groups.get("" if v2 else "cpu", "/"))
    memory = [pair for folder in memory_tree if (pair := _memory_of(folder, v2=v2)) is not None]
    cpus = [cpus for folder in cpu_tree if (cpus := _cpus_of(folder, v2=v2)) is not None]
    tightest = min(memory, key=lambda pair: pair[0] - pair[1], default=None)
    limit, used = tightest or (None, None)
    return CgroupLimits(limit, used, min(cpus, default=None))


def _upward(root: Path, group: str) -> list[Path]:
    """The group's folder and those around it, up to the root of the tree."""
    folder = _below(root, group)
    return [folder, *(parent for parent in folder.parents if parent == root or root in parent.parents)]


def _memory_of(folder: Path, *, v2: bool) -> tuple[int, int] | None:
    names = ("memory.max", "memory.current") if v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, used = (_number(folder / name) for name in names)
    if limit is None or used is None or limit >= _NO_LIMIT:
        return None
    key = "inactive_file" if v2 else "total_inactive_file"
    return limit, max(used - _statistic(folder / "memory.stat", key), 0)


def _cpus_of(folder: Path, *, v2: bool) -> float | None:
    if v2:
        words = _text(folder / "cpu.max").split()
        quota, period = (int(word) if word.isdecimal() else None for word in [*words, "", ""][:2])
    else:
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _statistic(path: Path, key: str) -> int:
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdecimal():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""
