"""Who has a mount besides its mount point: containers, other mount namespaces, binds and overlays elsewhere.

The kernel calls a mount busy only when it is used itself: a container has a copy of its own, and the host's
can be unmounted under it. What merely came along when a namespace was copied counts only while a process
uses it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_fs.mounts.kernel_mounts import KernelMount, mount_table

_PROC = Path("/proc")
_LOWER = re.compile(r"(?:^|,)lowerdir\+?=((?:\\.|[^,\\])*)")


@dataclass(frozen=True)
class Holder:
    """A process that has a mount at `place`, as it sees it; pid 0: everybody on this host."""

    pid: int
    name: str
    place: str

    def __str__(self) -> str:
        if not self.pid:
            return f"it is mounted at {self.place}, too"
        return f"pid {self.pid} ({self.name}) has it at {self.place} in another mount namespace"


@dataclass(frozen=True)
class Sought:
    """Devices of mounts, the places where this host knows them, and where overlays may have them from."""

    devices: frozenset[int]
    places: frozenset[str]
    below: frozenset[str] = frozenset()

    def finds(self, mount: KernelMount) -> bool:
        if mount.device in self.devices:
            return True
        return mount.kind == "overlay" and any(
            lower == place or lower.startswith(place + "/")
            for lower in _lower_folders(mount.options)
            for place in self.below
        )


def find_holder(sought: Sought) -> Holder | None:
    """Somebody who has one of the mounts elsewhere, and would lose it with the one of this host."""
    own = mount_table()
    inherited = _Inherited(own, sought.places)
    for mount in own:
        if sought.finds(mount) and mount.point not in sought.places and not inherited.is_it(mount, own):
            return Holder(0, "", mount.point)
    seen: dict[tuple[str, str], frozenset[int] | Holder] = {}
    for pid, view in _strangers():
        if view not in seen:
            seen[view] = _copies(pid, sought, inherited)
        copies = seen[view]
        if isinstance(copies, Holder):
            return copies
        if copies and copies & _used_mounts(pid):
            return Holder(pid, _name(pid), "its old place")
    return None


class _Inherited:
    """Tells copies that a new namespace, or a bind of the whole host, brought along."""

    def __init__(self, own: list[KernelMount], places: Iterable[str]) -> None:
        self._below = {place: _device_of(os.path.dirname(place), own) for place in places}

    def is_it(self, mount: KernelMount, table: list[KernelMount]) -> bool:
        parent = next((other for other in table if other.number == mount.parent), None)
        return parent is not None and any(
            mount.point.endswith(place) and parent.device == device for place, device in self._below.items()
        )


def _copies(pid: int, sought: Sought, inherited: _Inherited) -> frozenset[int] | Holder:
    """The inherited copies that a process sees; the process itself when it has one that was made for it."""
    try:
        table = mount_table(_PROC / str(pid) / "mountinfo")
    except (OSError, ValueError):  # it has ended, or is not ours to look into
        return frozenset()
    found = [mount for mount in table if sought.finds(mount)]
    for mount in found:
        if not inherited.is_it(mount, table):
            return Holder(pid, _name(pid), mount.point)
    return frozenset(mount.number for mount in found)


def _strangers() -> Iterator[tuple[int, tuple[str, str]]]:
    """Processes in other mount namespaces, with namespace and root: what decides which mounts they see."""
    ours = os.readlink("/proc/self/ns/mnt")
    for name in os.listdir(_PROC):
        if name.isdecimal():
            with suppress(OSError):
                namespace = os.readlink(f"/proc/{name}/ns/mnt")
                if namespace != ours:
                    yield int(name), (namespace, os.readlink(f"/proc/{name}/root"))


def _used_mounts(pid: int) -> frozenset[int]:
    """Mounts that a process stands in or has files of; none of them is asked anything."""
    found: set[int] = set()
    for name in ("root", "cwd", "exe"):
        with suppress(OSError, ValueError):
            descriptor = os.open(f"/proc/{pid}/{name}", os.O_PATH | os.O_CLOEXEC)
            try:
                found.add(_mount_of(Path(f"/proc/self/fdinfo/{descriptor}")))
            finally:
                os.close(descriptor)
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fdinfo"):
            with suppress(OSError, ValueError):
                found.add(_mount_of(Path(f"/proc/{pid}/fdinfo/{name}")))
    return frozenset(found)


def _mount_of(fdinfo: Path) -> int:
    for line in fdinfo.read_text("ascii", "replace").splitlines():
        if line.startswith("mnt_id:"):
            return int(line.split()[1])
    raise ValueError(fdinfo)


def _device_of(path: str, table: list[KernelMount]) -> int | None:
    """The device that holds a path, from the mount table alone."""
    holding = [
        mount for mount in table if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
    ]
    return max(holding, key=lambda mount: len(mount.point)).device if holding else None


def _lower_folders(options: str) -> Iterator[str]:
    for value in _LOWER.findall(options):
        for folder in re.split(r"(?<!\\):", value):
            yield re.sub(r"\\(.)", r"\1", folder)


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "gone"
