"""The runc bundle of a container that we start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coldstart_cli.errors import UsageError
from coldstart_snapshot.containers.bundle import (
    DEFAULT_CAPABILITIES,
    MASKED_PATHS,
    NAMESPACES,
    cgroup_of,
    hostname_of,
    save_bundle,
)
from coldstart_snapshot.containers.cdi import Devices
from coldstart_snapshot.containers.cdi_edits import inject
from coldstart_snapshot.containers.seccomp import default_profile

_READ_ONLY_PATHS = (
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
)


@dataclass(frozen=True)
class Mount:
    """A host file or folder that the container sees."""

    source: Path
    destination: str
    read_only: bool = True


@dataclass(frozen=True)
class ContainerSpec:
    """One container: its root, its process, what it sees of the host, and where its output goes."""

    id: str
    root: Path
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    working_directory: str = "/"
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    network: Literal["host", "none"] = "host"
    mounts: tuple[Mount, ...] = ()
    read_only_root: bool = False
    devices: tuple[str, ...] = ()
    """By the names that CDI specifications on this host give them."""


def write_bundle(folder: Path, spec: ContainerSpec, devices: Devices | None = None) -> tuple[str, ...]:
    """Write the bundle of a new container; what the host could not give is returned as warnings."""
    warnings: list[str] = []
    seccomp = default_profile(DEFAULT_CAPABILITIES)
    if seccomp is None:
        warnings.append(
            "no seccomp profile on this host: the container may use every system call "
            "(apt-get install --no-install-recommends golang-github-containers-common)"
        )
    for mount in spec.mounts:
        if not mount.source.exists():
            raise UsageError(f"mount source does not exist: {mount.source}")
    configuration = _configuration(spec, seccomp)
    if spec.devices:
        configuration = inject(configuration, spec.devices, devices or Devices())
    save_bundle(folder, configuration)
    return tuple(warnings)


def _configuration(spec: ContainerSpec, seccomp: Mapping[str, Any] | None) -> dict[str, Any]:
    # another user than root starts without capabilities and cannot gain any: no_new_privileges
    granted = list(DEFAULT_CAPABILITIES) if spec.uid == 0 else []
    namespaces = [*NAMESPACES, *(["network"] if spec.network == "none" else [])]
    linux: dict[str, Any] = {
        "namespaces": [{"type": name} for name in namespaces],
        "cgroupsPath": cgroup_of(spec.id),
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        "maskedPaths": list(MASKED_PATHS),
        "readonlyPaths": list(_READ_ONLY_PATHS),
    }
    if seccomp is not None:
        linux["seccomp"] = seccomp
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": spec.uid, "gid": spec.gid, "additionalGids": list(spec.groups)},
            "args": list(spec.arguments),
            "env": [f"{name}={value}" for name, value in spec.environment.items()],
            "cwd": spec.working_directory,
            "capabilities": {
                "bounding": list(DEFAULT_CAPABILITIES),
                "effective": granted,
                "permitted": granted,
            },
            "noNewPrivileges": True,
        },
        "root": {"path": str(spec.root.resolve()), "readonly": spec.read_only_root},
        "hostname": hostname_of(spec.id),
        "mounts": [*_STANDARD_MOUNTS, *(_bind(mount) for mount in spec.mounts)],
        "linux": linux,
    }


def _bind(mount: Mount) -> dict[str, Any]:
    options = ["rbind", "rprivate", "nosuid", "nodev", "ro" if mount.read_only else "rw"]
    return {
        "destination": mount.destination,
        "type": "bind",
        "source": str(mount.source.resolve()),
        "options": options,
    }


def _mount(destination: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": list(options)}


_STANDARD_MOUNTS = (
    _mount("/proc", "proc", "nosuid", "noexec", "nodev"),
    _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
    _mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
    # no size: half of the memory; 64 MB, the usual default, is too little for inference servers
    _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777"),  # noqa: S108 - a mount point
    _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
    _mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
)
