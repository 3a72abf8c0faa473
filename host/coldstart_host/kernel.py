"""The running kernel: release, and whether what coldstart needs of it is there."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

# Linux 6.13 moved the vDSO, which older criu do not find; 6.16 refuses SO_PASSCRED on TCP sockets, which
# criu 4.1 sets on every one it dumps
_CRIU_NEEDED = (((6, 16), (4, 2)), ((6, 13), (4, 1)))
_CRIU_OLDEST = (3, 16)
_PROC = Path("/proc")
_FUSE_DEVICE = Path("/dev/fuse")


@dataclass(frozen=True)
class KernelFacts:
    """`fuse_problem` says why /dev/fuse cannot be used; it is None where it can."""

    release: str
    version: str
    filesystems: tuple[str, ...]
    fuse_problem: str | None

    @property
    def number(self) -> tuple[int, int]:
        return release_number(self.release)

    @property
    def overlay(self) -> bool:
        return "overlay" in self.filesystems


def read_kernel_facts(proc: Path = _PROC, fuse_device: Path = _FUSE_DEVICE) -> KernelFacts:
    system = os.uname()
    return KernelFacts(
        release=system.release,
        version=system.version,
        filesystems=_filesystems(proc / "filesystems"),
        fuse_problem=_fuse_problem(fuse_device),
    )


def release_number(release: str) -> tuple[int, int]:
    """`6.18.3-cloud-amd64` as (6, 18); (0, 0) for what does not begin with two numbers."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def criu_needed(kernel: tuple[int, int]) -> tuple[int, int]:
    """The oldest criu that can dump and restore on this kernel."""
    return next((criu for release, criu in _CRIU_NEEDED if kernel >= release), _CRIU_OLDEST)


def _filesystems(path: Path) -> tuple[str, ...]:
    """The file systems the kernel can mount now; a module that is not loaded is not among them."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return ()
    return tuple(sorted(line.split()[-1] for line in lines if line.strip()))


def _fuse_problem(device: Path) -> str | None:
    # opening is the only proof: in a container the node may exist and the device cgroup forbid it
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in {errno.ENODEV, errno.ENXIO}:
            return f"{device}: the fuse module is not loaded"
        return f"{device}: {error.strerror}"
    return None


def boot_id(proc: Path = _PROC) -> str:
    """Names this boot: no clock is involved, and no two boots share it."""
    return (proc / "sys/kernel/random/boot_id").read_bytes().decode("ascii").strip()
