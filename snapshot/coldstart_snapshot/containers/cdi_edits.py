"""Devices in a runc bundle: CDI edits applied, remembered there, and exchanged for those of another host."""

from __future__ import annotations

import copy
import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from coldstart_cli.errors import DataError, IoFailure, NotFoundError

if TYPE_CHECKING:
    from coldstart_snapshot.containers.cdi import Devices, Edits

# of the bundle: which devices it was given, and what that added, so that it can be taken out again
_ANNOTATION = "coldstart.cdi"
_DEFAULT_ACCESS = "rwm"
_NODE_MODE = 0o666


@dataclass(frozen=True)
class Node:
    """One device node of a container."""

    path: str
    kind: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int

    def document(self) -> dict[str, Any]:
        """As it stands below `linux.devices` of the OCI runtime specification."""
        return {
            "path": self.path,
            "type": self.kind,
            "major": self.major,
            "minor": self.minor,
            "fileMode": self.mode,
            "uid": self.uid,
            "gid": self.gid,
        }


def inject(configuration: Mapping[str, Any], names: Sequence[str], devices: Devices) -> dict[str, Any]:
    """The bundle with these devices; a node that does not exist on this host is refused by name."""
    made = copy.deepcopy(dict(configuration))
    edits = devices.edits(names)
    nodes = [_node(entry, made) for entry in edits.nodes]
    rules = [_rule(node, entry) for node, entry in zip(nodes, edits.nodes, strict=True) if node.kind in "bcu"]
    mounts = [_mount(entry) for entry in edits.mounts]
    _add(made, edits, nodes, rules, mounts)
    made.setdefault("annotations", {})[_ANNOTATION] = json.dumps(
        {
            "devices": list(names),
            "nodes": [node.document() for node in nodes],
            "rules": rules,
            "mounts": [mount["destination"] for mount in mounts],
            "environment": list(edits.environment),
            "groups": list(edits.groups),
        }
    )
    return made


def injected(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """The devices that a bundle was given."""
    return tuple(_record(configuration).get("devices", ()))


def without_devices(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A bundle less what its devices had added; hooks stay, since a captured bundle has none of use."""
    made = copy.deepcopy(dict(configuration))
    record = _record(made)
    if not record:
        return made
    taken_out = set(record.get("mounts", ()))
    paths = {node["path"] for node in record.get("nodes", ())}
    made["mounts"] = [mount for mount in made.get("mounts", ()) if mount["destination"] not in taken_out]
    linux = made.setdefault("linux", {})
    linux["devices"] = [node for node in linux.get("devices", ()) if node["path"] not in paths]
    resources = linux.setdefault("resources", {})
    resources["devices"] = _less(resources.get("devices", ()), record.get("rules", ()))
    process = made.setdefault("process", {})
    process["env"] = _less(process.get("env", ()), record.get("environment", ()))
    user = process.setdefault("user", {})
    user["additionalGids"] = _less(user.get("additionalGids", ()), record.get("groups", ()))
    del made["annotations"][_ANNOTATION]
    return made


def exchange(configuration: Mapping[str, Any], names: Sequence[str], devices: Devices) -> dict[str, Any]:
    """A captured bundle with the devices of this host in place of those that it had.

    What is mounted must be mounted at the same places: a driver of another version is refused here.
    """
    before = set(_record(configuration).get("mounts", ()))
    made = inject(without_devices(configuration), names, devices)
    made.pop("hooks", None)  # what they did to the root is in the captured layer
    now = set(_record(made)["mounts"])
    for places, problem in (
        (before - now, "this host's devices do not bring what the snapshot had mounted"),
        (now - before, "this host's devices bring what the snapshot does not know"),
    ):
        if places:
            raise DataError(
                f"{problem}: {min(places)}",
                hint="restore where the driver has the same version, or capture again here",
            )
    return made


def _less(entries: Iterable[Any], taken_out: Iterable[Any]) -> list[Any]:
    left = list(entries)
    for entry in taken_out:
        with suppress(ValueError):
            left.remove(entry)
    return left


def make_nodes(pid: int, configuration: Mapping[str, Any]) -> int:
    """Make the device nodes of a bundle in the /dev of a restored container; returns how many were new.

    criu brings /dev back as it was captured: nodes of other GPUs, or with the numbers of another boot.
    """
    count = 0
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for entry in _record(configuration).get("nodes", ()):
            count += _make_node(root, entry)
    finally:
        os.close(root)
    return count


def _make_node(root: int, entry: Mapping[str, Any]) -> int:
    path = PurePosixPath(entry["path"])
    kind = stat.S_IFBLK if entry["type"] == "b" else stat.S_IFIFO if entry["type"] == "p" else stat.S_IFCHR
    number = os.makedev(entry["major"], entry["minor"])
    try:
        folder = _open_folder(root, path.parent.parts[1:])
        try:
            with suppress(FileNotFoundError):
                there = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
                if stat.S_IFMT(there.st_mode) == kind and there.st_rdev == number:
                    return 0
                os.unlink(path.name, dir_fd=folder)
            os.mknod(path.name, kind | entry["fileMode"], number, dir_fd=folder)
            # the mask of this process must not narrow it
            os.chmod(path.name, entry["fileMode"], dir_fd=folder)
            os.chown(path.name, entry["uid"], entry["gid"], dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(folder)
    except OSError as error:
        raise IoFailure(f"cannot make device in the container: {path}: {error.strerror}") from error
    return 1


def _open_folder(root: int, parts: Iterable[str]) -> int:
    """Step by step beneath the container's root: its processes may have made links there."""
    current = os.dup(root)
    for part in parts:
        flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                inner = os.open(part, flags, dir_fd=current)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=current)
                inner = os.open(part, flags, dir_fd=current)
        finally:
            os.close(current)
        current = inner
    return current


def _record(configuration: Mapping[str, Any]) -> dict[str, Any]:
    text = configuration.get("annotations", {}).get(_ANNOTATION)
    if text is None:
        return {}
    try:
        record = json.loads(text)
    except ValueError as error:
        raise DataError(f"bundle's devices cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise DataError("bundle's devices cannot be read: not a table")
    return record


def _node(entry: Mapping[str, Any], configuration: Mapping[str, Any]) -> Node:
    """What the specification leaves out is that of the host's own node."""
    host = Path(entry.get("hostPath") or entry["path"])
    kind, major, minor = entry.get("type", ""), entry.get("major"), entry.get("minor")
    mode = entry.get("fileMode")
    if not kind or (kind != "p" and (major is None or minor is None)):
        try:
            status = host.stat()
        except OSError as error:
            raise NotFoundError(
                f"device does not exist on this host: {host}: {error.strerror}",
                hint="load its driver, or write the specification anew",
            ) from error
        if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
            raise DataError(f"not a device: {host}")
        kind = "b" if stat.S_ISBLK(status.st_mode) else "c"
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        mode = stat.S_IMODE(status.st_mode) if mode is None else mode
    user = configuration.get("process", {}).get("user", {})
    return Node(
        path=entry["path"],
        kind=kind,
        major=major or 0,
        minor=minor or 0,
        mode=_NODE_MODE if mode is None else stat.S_IMODE(mode),
        uid=entry.get("uid", user.get("uid", 0)),
        gid=entry.get("gid", user.get("gid", 0)),
    )


def _rule(node: Node, entry: Mapping[str, Any]) -> dict[str, Any]:
    access = entry.get("permissions") or _DEFAULT_ACCESS
    kind = "c" if node.kind == "u" else node.kind
    rule = {"allow": True, "type": kind, "major": node.major, "minor": node.minor}
    return {**rule, "access": "" if access == "none" else access}


def _mount(entry: Mapping[str, Any]) -> dict[str, Any]:
    source = Path(entry["hostPath"])
    options = list(entry.get("options") or ["bind"])
    kind = entry.get("type") or ("bind" if {"bind", "rbind"} & set(options) else "none")
    if kind in {"bind", "none"} and not source.exists():
        raise NotFoundError(
            f"what a device needs does not exist on this host: {source}",
            hint="the driver has changed: write the CDI specification anew",
        )
    return {
        "destination": os.path.normpath(entry["containerPath"]),
        "type": kind,
        "source": str(source),
        "options": options,
    }


def _add(
    made: dict[str, Any],
    edits: Edits,
    nodes: Sequence[Node],
    rules: Sequence[Mapping[str, Any]],
    mounts: Sequence[Mapping[str, Any]],
) -> None:
    process, linux = made.setdefault("process", {}), made.setdefault("linux", {})
    names = {entry.partition("=")[0] for entry in edits.environment}
    kept = [entry for entry in process.get("env", ()) if entry.partition("=")[0] not in names]
    # the last of several wins, as when a shell exports them in turn
    process["env"] = [*kept, *{entry.partition("=")[0]: entry for entry in edits.environment}.values()]
    if edits.groups:
        user = process.setdefault("user", {})
        user["additionalGids"] = sorted({*user.get("additionalGids", ()), *edits.groups})
    paths = {node.path for node in nodes}
    others = [node for node in linux.get("devices", ()) if node["path"] not in paths]
    linux["devices"] = [*others, *{node.path: node.document() for node in nodes}.values()]
    resources = linux.setdefault("resources", {})
    resources["devices"] = [*resources.get("devices", ()), *rules]
    places = {mount["destination"] for mount in mounts}
    all_mounts = [mount for mount in made.get("mounts", ()) if mount["destination"] not in places] + list(
        {mount["destination"]: mount for mount in mounts}.values()
    )
    # parents before what lies in them; the order within one depth stays
    made["mounts"] = sorted(all_mounts, key=lambda mount: os.path.normpath(mount["destination"]).count("/"))
    for hook in edits.hooks:
        entry = {key: hook[key] for key in ("path", "args", "env", "timeout") if key in hook}
        made.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(entry)
