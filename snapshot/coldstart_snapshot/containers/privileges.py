"""What a container may do beyond the ones that coldstart starts: recorded at a capture, held to later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from coldstart_cli.errors import DataError
from coldstart_snapshot.containers.bundle import DEFAULT_CAPABILITIES, MASKED_PATHS, NAMESPACES, is_bound
from coldstart_snapshot.containers.cdi_edits import injected, without_devices
from coldstart_snapshot.processes.capabilities import read_capabilities
from coldstart_snapshot.processes.tree import process_tree

CDI_DEVICES = "devices of the host, as its CDI specifications say"
NO_SECCOMP = "every system call"
# file systems that show a container its own part of the kernel, or memory
_OWN_KINDS = frozenset({"proc", "tmpfs", "devpts", "mqueue", "sysfs", "cgroup", "cgroup2"})
_LETTING_ACTIONS = frozenset({"SCMP_ACT_ALLOW", "SCMP_ACT_LOG"})
_STATUS_SETS = frozenset({"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"})


def privileges_of(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """Everything in a bundle that goes beyond our own containers, one text each, sorted."""
    # what devices had added is exchanged at a restore: it comes from that host, not from the bundle
    if injected(configuration):
        return tuple(sorted({CDI_DEVICES, *_privileges(without_devices(configuration))}))
    return tuple(sorted(set(_privileges(configuration))))


def mount_text(source: str, destination: str, *, read_only: bool) -> str:
    """The privilege of seeing a part of the host."""
    return f"mount of {source} at {destination}{'' if read_only else ', writable'}"


def refuse_unrecorded(recorded: Iterable[str], configuration: Mapping[str, Any]) -> None:
    """A bundle that allows more than what was on record at the capture was altered."""
    if more := sorted(set(privileges_of(configuration)) - set(recorded)):
        raise DataError(
            f"bundle of the snapshot allows what the manifest does not: {'; '.join(more)}",
            hint="it was altered: remove the snapshot, and capture again",
        )


def refuse_more_capabilities(pid: int, configuration: Mapping[str, Any]) -> None:
    """Criu gives processes what its images say: no more than the bundle allows may come of it."""
    allowed = set(_bundle_capabilities(configuration))
    for member in process_tree(pid):
        if more := sorted(_held_capabilities(member.pid) - allowed):
            raise DataError(
                f"images of the snapshot give process {member.pid} more than its bundle: {', '.join(more)}",
                hint="they were altered: remove the snapshot, and capture again",
            )


def _privileges(configuration: Mapping[str, Any]) -> Iterator[str]:
    linux, process = configuration.get("linux") or {}, configuration.get("process") or {}
    for capability in _bundle_capabilities(configuration) - set(DEFAULT_CAPABILITIES):
        yield f"capability {capability}"
    if process.get("noNewPrivileges") is not True:
        yield "new privileges by setuid programs"
    for mount in configuration.get("mounts") or ():
        yield from _of_mount(mount)
    yield from _of_namespaces(linux.get("namespaces") or ())
    yield from _of_devices(linux)
    yield from _of_kernel(linux)


def _of_mount(mount: Mapping[str, Any]) -> Iterator[str]:
    options, kind = set(mount.get("options") or ()), mount.get("type")
    source, destination = str(mount.get("source", "")), str(mount.get("destination"))
    if is_bound(mount):
        yield mount_text(source, destination, read_only="ro" in options)
    elif kind not in _OWN_KINDS:
        yield f"mount of {kind} {source} at {destination}: {' '.join(sorted(options))}"
    elif kind == "sysfs" and "ro" not in options:
        yield "writable /sys"


def _of_namespaces(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    found = {str(entry.get("type")): entry.get("path") for entry in entries}
    for name in NAMESPACES:
        if name not in found:
            yield f"{name} namespace of the host"
    for name, path in found.items():
        if path:
            yield f"{name} namespace {path}"


def _of_devices(linux: Mapping[str, Any]) -> Iterator[str]:
    for device in linux.get("devices") or ():
        yield f"device {device.get('path')}"
    for rule in (linux.get("resources") or {}).get("devices") or ():
        if rule.get("allow"):
            numbers = f"{rule.get('major', '*')}:{rule.get('minor', '*')}"
            yield f"devices {rule.get('type', 'a')} {numbers} {rule.get('access', '')}".rstrip()


def _of_kernel(linux: Mapping[str, Any]) -> Iterator[str]:
    seccomp = linux.get("seccomp")
    if not seccomp or seccomp.get("defaultAction") in _LETTING_ACTIONS:
        yield NO_SECCOMP
    masked = set(linux.get("maskedPaths") or ())
    if missing := [path for path in MASKED_PATHS if path not in masked]:
        yield f"unmasked {' '.join(missing)}"
    for name in linux.get("sysctl") or {}:
        yield f"sysctl {name}"


def _bundle_capabilities(configuration: Mapping[str, Any]) -> set[str]:
    sets = (configuration.get("process") or {}).get("capabilities") or {}
    return {str(name) for names in sets.values() for name in names or ()}


def _held_capabilities(pid: int) -> frozenset[str]:
    try:
        return frozenset().union(*(read_capabilities(pid, name) for name in _STATUS_SETS))
    except OSError:
        return frozenset()  # it has ended


def device_nodes_allowed(recorded: Iterable[str]) -> bool:
    """Whether a container could make device nodes, so that its writable layer may hold some."""
    return "capability CAP_MKNOD" in set(recorded)
