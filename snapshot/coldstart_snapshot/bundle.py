"""runc bundles: the configuration of a container that we start, and of one that we restore elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coldstart_cli.errors import DataError, UsageError
from coldstart_cli.files import atomic_write
from coldstart_snapshot.seccomp import default_profile

CONFIG_NAME = "config.json"
# one parent for all of them, so that cgroup tools show what belongs to us
_CGROUP_PARENT = "/coldstart"
# what docker and podman give by default, less the ones a server never needs (raw sockets, device nodes)
_CAPABILITIES = tuple(
    f"CAP_{name}"
    for name in [
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_MASKED_PATHS = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
)
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


def write_bundle(folder: Path, spec: ContainerSpec) -> tuple[str, ...]:
    """Write the bundle of a new container; what the host could not give is returned as warnings."""
    warnings: list[str] = []
    seccomp = default_profile(_CAPABILITIES)
    if seccomp is None:
        warnings.append(
            "no seccomp profile on this host: the container may use every system call "
            "(apt-get install --no-install-recommends golang-github-containers-common)"
        )
    for mount in spec.mounts:
        if not mount.source.exists():
            raise UsageError(f"mount source does not exist: {mount.source}")
    _write(folder, _configuration(spec, seccomp))
    return tuple(warnings)


def write_restored_bundle(
    folder: Path, recorded: Mapping[str, Any], *, root: Path, container_id: str
) -> None:
    """Write the bundle of a captured container under another root and id."""
    configuration: dict[str, Any] = dict(recorded)
    configuration["root"] = {**configuration.get("root", {}), "path": str(root.resolve())}
    configuration["annotations"] = {**configuration.get("annotations", {}), **_ANNOTATIONS}
    configuration["linux"] = {**configuration.get("linux", {}), "cgroupsPath": _cgroup(container_id)}
    # hooks name programs and folders of the engine that had started the container
    configuration.pop("hooks", None)
    for mount in configuration.get("mounts", ()):
        bound = mount.get("type") == "bind" or {"bind", "rbind"} & set(mount.get("options", ()))
        if bound and not Path(mount["source"]).exists():
            raise DataError(
                f"folder that the snapshot was taken with does not exist: {mount['source']}",
                hint=f"bring it back: the container sees it at {mount['destination']}",
            )
    _write(folder, configuration)


def read_bundle(folder: Path) -> dict[str, Any]:
    """A bundle's configuration."""
    path = folder / CONFIG_NAME
    try:
        configuration = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"bundle has no configuration: {path}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"bundle cannot be read: {path}: {error}") from error
    if not isinstance(configuration, dict):
        raise DataError(f"bundle cannot be read: {path}: it is not an object")
    return configuration


def network_is_shared(configuration: Mapping[str, Any]) -> bool:
    """Whether the container uses the host's network."""
    return all(
        entry.get("type") != "network" for entry in configuration.get("linux", {}).get("namespaces", ())
    )


def _write(folder: Path, configuration: Mapping[str, Any]) -> None:
    content = json.dumps(configuration, indent=1).encode("utf-8", "surrogateescape")
    atomic_write(folder / CONFIG_NAME, content, mode=0o600)


# an empty value keeps criu from reading /etc/criu/runc.conf, which would change our options unseen
_ANNOTATIONS = {"org.criu.config": ""}


def _cgroup(container_id: str) -> str:
    return f"{_CGROUP_PARENT}/{container_id}"


def _configuration(spec: ContainerSpec, seccomp: Mapping[str, Any] | None) -> dict[str, Any]:
    # another user than root starts without capabilities and cannot gain any: no_new_privileges
    granted = list(_CAPABILITIES) if spec.uid == 0 else []
    namespaces = ["pid", "mount", "ipc", "uts", "cgroup"] + (["network"] if spec.network == "none" else [])
    linux: dict[str, Any] = {
        "namespaces": [{"type": name} for name in namespaces],
        "cgroupsPath": _cgroup(spec.id),
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        "maskedPaths": list(_MASKED_PATHS),
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
                "bounding": list(_CAPABILITIES),
                "effective": granted,
                "permitted": granted,
            },
            "noNewPrivileges": True,
        },
        "root": {"path": str(spec.root.resolve()), "readonly": spec.read_only_root},
        "hostname": spec.id[:63],
        "mounts": [*_STANDARD_MOUNTS, *(_bind(mount) for mount in spec.mounts)],
        "linux": linux,
        "annotations": dict(_ANNOTATIONS),
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
