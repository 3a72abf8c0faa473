"""How busy the host is: CPU, memory, disks, and the kernel's own measure of stalls (PSI)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coldstart_host.cgroup import CgroupLimits, read_cgroup_limits
from coldstart_host.file_system import MountFacts, mount_of
from coldstart_host.processes import in_container

# psutil's first figure without an interval is a meaningless 0.0
CPU_SAMPLE_SECONDS = 0.2
# full: every task waited. 5 % of the last ten seconds without memory is a host that stands still
MEMORY_STALL_PERCENT = 5.0
IO_STALL_PERCENT = 20.0
_PSI = Path("/proc/pressure")


@dataclass(frozen=True)
class DiskUse:
    """One file system, named by the folder that was asked about; `problem` says why it cannot be read."""

    path: Path
    total_bytes: int = 0
    free_bytes: int = 0
    used_percent: float = 0.0
    inodes_percent: float = 0.0
    problem: str | None = None
    mount: MountFacts | None = None


@dataclass(frozen=True)
class HostPressure:
    """A short sample; the stalls are None on kernels without PSI (before 4.20, or switched off).

    `cgroup` holds the limits of the container that we are in.
    """

    cpu_percent: float
    cpu_count: int
    load_per_cpu: float
    memory_total_bytes: int
    memory_available_bytes: int
    disks: tuple[DiskUse, ...]
    memory_stall_percent: float | None
    io_stall_percent: float | None
    cgroup: CgroupLimits | None = None

    @property
    def memory_percent(self) -> float:
        """What programs cannot have, of the host or of our container, whichever is tighter."""
        host = 100.0 * (1 - self.memory_available_bytes / self.memory_total_bytes)
        own = self.cgroup
        if own is None or not own.memory_limit_bytes or own.memory_used_bytes is None:
            return host
        return max(host, 100.0 * own.memory_used_bytes / own.memory_limit_bytes)

    @property
    def percents(self) -> dict[str, float]:
        """Every figure that has a threshold, under the key that one sample shares with the next."""
        figures = {"memory": self.memory_percent}
        for disk in self.disks:
            if disk.problem is None:
                figures[f"disk {disk.path}"] = disk.used_percent
                figures[f"inodes {disk.path}"] = disk.inodes_percent
        return figures


def read_pressure(
    folders: Sequence[Path], *, sample_seconds: float = CPU_SAMPLE_SECONDS, psi: Path = _PSI
) -> HostPressure:
    """Sample CPU for `sample_seconds`; each file system behind `folders` is looked at once."""
    import psutil

    memory = psutil.virtual_memory()
    count = psutil.cpu_count() or 1
    return HostPressure(
        cpu_percent=psutil.cpu_percent(interval=sample_seconds),
        cpu_count=count,
        load_per_cpu=psutil.getloadavg()[0] / count,
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        disks=tuple(_disks(folders)),
        memory_stall_percent=_stall(psi / "memory"),
        io_stall_percent=_stall(psi / "io"),
        # outside a container the group is that of the shell or the unit, whose limit is not the replica's
        cgroup=read_cgroup_limits() if in_container() else None,
    )


def _disks(folders: Sequence[Path]) -> Iterable[DiskUse]:
    seen: set[int] = set()
    for folder in folders:
        try:
            existing = _nearest_existing(folder)
            device = existing.stat().st_dev
            if device not in seen:
                seen.add(device)
                yield _disk(existing)
        except OSError as error:
            yield DiskUse(folder, problem=error.strerror or "unreadable")


def _nearest_existing(folder: Path) -> Path:
    """A state folder that is not there yet will be made on the file system of its parent."""
    for candidate in (folder, *folder.absolute().parents):
        if candidate.exists():
            return candidate
    return Path("/")


def _disk(folder: Path) -> DiskUse:
    import psutil

    usage = psutil.disk_usage(str(folder))
    inodes = os.statvfs(folder)
    # btrfs and overlay on it report no inode count
    used = 100.0 * (1 - inodes.f_favail / inodes.f_files) if inodes.f_files else 0.0
    mount = mount_of(folder.resolve())
    return DiskUse(folder, usage.total, usage.free, usage.percent, used, mount=mount)


def _stall(path: Path) -> float | None:
    """`full avg10` of a PSI file, in percent."""
    try:
        match = re.search(r"^full .*?avg10=([\d.]+)", path.read_text("ascii"), re.MULTILINE)
    except OSError:  # also EOPNOTSUPP, where PSI is compiled in and switched off
        return None
    return float(match[1]) if match else None
