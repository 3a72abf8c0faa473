"""What runs in the container: the image's runtime configuration with the specification's overrides on top."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldstart_cli.config import Config
from coldstart_cli.errors import DataError
from coldstart_fs.looking.configuration import parse_configuration
from coldstart_launch.spec import ReplicaSpec

if TYPE_CHECKING:
    from coldstart_snapshot.containers.new_bundle import ContainerSpec
    from coldstart_snapshot.restoring.restore import RestorePlan

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSWD_LIMIT_BYTES = 1 << 20
_LARGEST_ID = 2**32 - 2


@dataclass(frozen=True)
class Runtime:
    """The process to start: arguments, environment as a mapping, folder, numeric owner and groups."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    working_directory: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def merge_runtime(spec: ReplicaSpec, image: Mapping[str, Any], root: Path) -> Runtime:
    """Merge as container engines do: a `command` of ours replaces entrypoint and command of the image."""
    given = parse_configuration(image, spec.image)
    arguments = spec.command or (*given.entrypoint, *given.command)
    if not arguments:
        raise DataError(
            f"nothing to run: image {spec.image} has no entrypoint and no command",
            hint="add `command = [...]` to the specification",
        )
    environment = {"PATH": _DEFAULT_PATH, **given.variables, **spec.environment}
    user = spec.user or given.user or "0:0"
    uid, gid = numeric_user(user, root)
    return Runtime(
        arguments=tuple(arguments),
        environment=environment,
        # some builders write it without the leading slash, and runc refuses it then
        working_directory=os.path.join("/", spec.working_directory or given.working_directory or ""),
        uid=uid,
        gid=gid,
        groups=spec.groups if spec.groups is not None else supplementary_groups(user, root),
    )


def require_devices(spec: ReplicaSpec, config: Config) -> None:
    """Refuse devices that no CDI specification of this host names."""
    if spec.devices:
        from coldstart_snapshot.containers.container import host_devices

        host_devices(config).edits(spec.devices)


def container_spec(spec: ReplicaSpec, image: Mapping[str, Any], *, root: Path, log: Path) -> ContainerSpec:
    """The container that starts this replica cold on a mounted root."""
    from coldstart_snapshot.containers.new_bundle import ContainerSpec, Mount

    runtime = merge_runtime(spec, image, root)
    return ContainerSpec(
        id=spec.name,
        root=root,
        arguments=runtime.arguments,
        environment=runtime.environment,
        log=log,
        working_directory=runtime.working_directory,
        uid=runtime.uid,
        gid=runtime.gid,
        groups=runtime.groups,
        # a network that is lent looks like the host's from inside
        network="none" if spec.network == "none" else "host",
        devices=spec.devices,
        mounts=tuple(Mount(mount.source, mount.destination, mount.read_only) for mount in spec.mounts),
    )


def snapshot_difference(plan: RestorePlan, spec: ReplicaSpec, identity: str | None) -> str | None:
    """In what a snapshot is not of this replica: a name alone must not bring back another server."""
    from coldstart_snapshot.answers.golden import same_questions
    from coldstart_snapshot.containers.bundle import network_is_shared, read_bundle
    from coldstart_snapshot.cpu.caps import capped_environment
    from coldstart_snapshot.processes.secrets_found import redact_arguments

    recorded_root = plan.manifest.root
    recorded_image = recorded_root.image if recorded_root is not None else None
    if recorded_image != identity:
        return f"it is of image {recorded_image}, not {identity}"
    bundle = read_bundle(plan.folder / "bundle")
    process = bundle.get("process", {})
    if spec.command and tuple(process.get("args", ())) != spec.command:
        return f"it runs {' '.join(redact_arguments(process.get('args', ())))}"
    if spec.working_directory and process.get("cwd") != spec.working_directory:
        return f"it runs in {process.get('cwd')}"
    if difference := _user_difference(spec, process.get("user", {})):
        return difference
    recorded = dict(entry.split("=", 1) for entry in process.get("env", ()) if "=" in entry)
    caps = plan.manifest.caps
    wanted = capped_environment(caps.level, spec.environment) if caps is not None else spec.environment
    for name in spec.environment:
        if recorded.get(name) != wanted[name]:
            return f"its environment has another {name}"
    if network_is_shared(bundle) != (spec.network != "none"):
        return "it uses another network"
    if spec.golden and not same_questions(plan.manifest.golden, spec.golden):
        return "it has no recorded answers to these golden requests"
    return _privilege_difference(spec, bundle)


def _privilege_difference(spec: ReplicaSpec, bundle: Mapping[str, Any]) -> str | None:
    """In what a snapshot may do more, or sees other folders, than a cold start of this replica would."""
    from coldstart_snapshot.containers.bundle import DEFAULT_CAPABILITIES
    from coldstart_snapshot.containers.privileges import CDI_DEVICES, NO_SECCOMP, mount_text, privileges_of
    from coldstart_snapshot.containers.seccomp import default_profile

    mounts = {
        mount_text(str(mount.source.resolve()), mount.destination, read_only=mount.read_only)
        for mount in spec.mounts
    }
    recorded = set(privileges_of(bundle))
    allowed = {*mounts, CDI_DEVICES} if spec.devices or spec.gpus else mounts
    if default_profile(DEFAULT_CAPABILITIES) is None:
        allowed = {*allowed, NO_SECCOMP}
    if more := sorted(recorded - allowed):
        return f"it has what the specification does not give: {'; '.join(more)}"
    if missing := sorted(mounts - recorded):
        return f"it lacks what the specification gives: {'; '.join(missing)}"
    return None


def _user_difference(spec: ReplicaSpec, recorded: Mapping[str, Any]) -> str | None:
    """Whether another user is asked for, by number: names are known only inside of the image."""
    numbers = (spec.user or "").split(":")
    recorded_numbers = [str(recorded.get("uid")), str(recorded.get("gid"))]
    if all(number.isdecimal() for number in numbers) and numbers != recorded_numbers[: len(numbers)]:
        return f"it runs as {':'.join(recorded_numbers)}"
    return None


def numeric_user(user: str, root: Path) -> tuple[int, int]:
    """`user[:group]`, names looked up in the image's own passwd and group files, as container engines do."""
    uid, gid = _look_up(user, root)
    if max(uid, gid) > _LARGEST_ID:
        raise DataError(f"user number is too large: {user}", hint=f"at most {_LARGEST_ID}")
    return uid, gid


def supplementary_groups(user: str, root: Path) -> tuple[int, ...]:
    """The groups that list the user in the image, as engines have it; none where a group was given."""
    name, colon, _ = user.partition(":")
    if colon:
        return ()
    if name.isdecimal():
        entry = _find(root, "passwd", lambda fields: fields[2] == name)
        name = entry[0] if entry else ""
    found = {
        int(fields[2])
        for fields in _records(root, "group")
        if name and name in fields[3].split(",") and fields[2].isdecimal()
    }
    return tuple(sorted(gid for gid in found if gid <= _LARGEST_ID))


def _look_up(user: str, root: Path) -> tuple[int, int]:
    name, _, group = user.partition(":")
    primary_gid = 0
    if name.isdecimal():
        uid = int(name)
        entry = _find(root, "passwd", lambda fields: fields[2] == name)
        primary_gid = int(entry[3]) if entry and entry[3].isdecimal() else 0
    else:
        entry = _find(root, "passwd", lambda fields: fields[0] == name)
        if entry is None or not (entry[2].isdecimal() and entry[3].isdecimal()):
            raise DataError(
                f"user is not in the image's /etc/passwd: {name}", hint='write the number: `user = "UID:GID"`'
            )
        uid, primary_gid = int(entry[2]), int(entry[3])
    if not group:
        return uid, primary_gid
    if group.isdecimal():
        return uid, int(group)
    found = _find(root, "group", lambda fields: fields[0] == group)
    if found is None or not found[2].isdecimal():
        raise DataError(
            f"group is not in the image's /etc/group: {group}", hint='write the number: `user = "UID:GID"`'
        )
    return uid, int(found[2])


def _find(root: Path, database: str, matches: Any) -> list[str] | None:
    return next((fields for fields in _records(root, database) if matches(fields)), None)


def _records(root: Path, database: str) -> Iterator[list[str]]:
    for line in _read_beneath(root, database).split("\n"):
        fields = line.split(":")
        if len(fields) >= 4:
            yield fields


def _read_beneath(root: Path, database: str) -> str:
    # the image decides what /etc holds: no link of it may lead out of its root
    try:
        folder = os.open(root / "etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        descriptor = os.open(
            database, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except OSError:
        return ""
    finally:
        os.close(folder)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(_PASSWD_LIMIT_BYTES).decode("utf-8", "replace")
