"""runc bundles: read, and written for a container that is restored elsewhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldstart_cli.errors import DataError
from coldstart_cli.files import atomic_write
from coldstart_cli.process import find_program
from coldstart_snapshot.containers.cdi_edits import exchange, injected

if TYPE_CHECKING:
    from coldstart_snapshot.containers.cdi import Devices

CONFIG_NAME = "config.json"
# one parent for all of them, so that cgroup tools show what belongs to us
_CGROUP_PARENT = "/coldstart"
_LONGEST_HOSTNAME = 63
_HOOK_SECONDS = 10
# what docker and podman give by default, less the ones a server never needs (raw sockets, device nodes)
DEFAULT_CAPABILITIES = tuple(
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
MASKED_PATHS = (
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
NAMESPACES = ("pid", "mount", "ipc", "uts", "cgroup")


def write_restored_bundle(
    folder: Path,
    recorded: Mapping[str, Any],
    *,
    root: Path,
    container_id: str,
    devices: Devices | None = None,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the bundle of a captured container under another root and id."""
    configuration: dict[str, Any] = dict(recorded)
    if before := injected(configuration):
        from coldstart_snapshot.containers.cdi import Devices

        configuration = exchange(configuration, names or before, devices or Devices())
    elif names:
        raise DataError(
            f"the snapshot's container had no devices, it cannot be given any: {', '.join(names)}",
            hint="capture it again from a specification with `devices` or `gpus`",
        )
    configuration["root"] = {**configuration.get("root", {}), "path": str(root.resolve())}
    if has_hostname_of_its_id(recorded):
        configuration["hostname"] = hostname_of(container_id)
    configuration["linux"] = {**configuration.get("linux", {}), "cgroupsPath": cgroup_of(container_id)}
    # hooks name programs and folders of the engine that had started the container
    configuration.pop("hooks", None)
    if not network_is_shared(recorded):
        configuration["hooks"] = _loopback_hook()
    for mount in configuration.get("mounts", ()):
        if is_bound(mount) and not Path(mount["source"]).exists():
            raise DataError(
                f"folder that the snapshot was taken with does not exist: {mount['source']}",
                hint=f"bring it back: the container sees it at {mount['destination']}",
            )
    save_bundle(folder, configuration)
    return configuration


def _loopback_hook() -> dict[str, Any]:
    """Bring loopback up in the network that runc makes anew at a restore, before sockets are made in it.

    runc 1.1 and 1.2 do that at a start alone; a restore leaves the namespace empty.
    """
    steps = (
        r"""pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1)""",
        f'exec {shlex.quote(find_program("nsenter"))} --target "$pid" --net'
        f" {shlex.quote(find_program('ip'))} link set lo up",
    )
    script = " && ".join(steps)
    hook = {"path": "/bin/sh", "args": ["sh", "-c", script], "timeout": _HOOK_SECONDS}
    return {"createRuntime": [hook]}


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


def is_bound(mount: Mapping[str, Any]) -> bool:
    """Whether a mount shows a part of the host."""
    return mount.get("type") == "bind" or bool({"bind", "rbind"} & set(mount.get("options") or ()))


def has_hostname_of_its_id(configuration: Mapping[str, Any]) -> bool:
    """Whether the host name is the one that we give: the container's id."""
    cgroup = str(configuration.get("linux", {}).get("cgroupsPath", ""))
    parent, _, container_id = cgroup.rpartition("/")
    return parent == _CGROUP_PARENT and configuration.get("hostname") == hostname_of(container_id)


def hostname_of(container_id: str) -> str:
    return container_id[:_LONGEST_HOSTNAME]


def network_is_shared(configuration: Mapping[str, Any]) -> bool:
    """Whether the container uses the host's network."""
    return all(
        entry.get("type") != "network" for entry in configuration.get("linux", {}).get("namespaces", ())
    )


def save_bundle(folder: Path, configuration: dict[str, Any]) -> None:
    """Write a configuration, with the file of criu's options that it names."""
    options = folder / _CRIU_OPTIONS_NAME
    atomic_write(options, _CRIU_OPTIONS, mode=0o600)
    configuration["annotations"] = {**configuration.get("annotations", {}), "org.criu.config": str(options)}
    content = json.dumps(configuration, indent=1).encode("utf-8", "surrogateescape")
    atomic_write(folder / CONFIG_NAME, content, mode=0o600)


# criu reads what this annotation names after the options that runc gives it; without it /etc/criu/runc.conf,
# which would change our options unseen. runc has the cgroups in hand: what criu writes down of them would tie
# a snapshot to hosts with the same hierarchies, and version 1 to version 1
_CRIU_OPTIONS_NAME = "criu-options.conf"
_CRIU_OPTIONS = b"manage-cgroups=ignore\n"


def cgroup_of(container_id: str) -> str:
    return f"{_CGROUP_PARENT}/{container_id}"
