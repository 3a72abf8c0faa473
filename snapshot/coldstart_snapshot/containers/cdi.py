"""Container Device Interface: the devices that specifications on this host name, and their edits.

Specifications are JSON or YAML files in /etc/cdi and /var/run/cdi; see the CDI specification, version 1.1.0.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from coldstart_cli.errors import DataError, NotFoundError, near_matches_hint
from coldstart_cli.regular import read_regular

FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
GPU_KIND = "nvidia.com/gpu"
_SUFFIXES = frozenset({".json", ".yaml", ".yml"})
_LARGEST_BYTES = 4 << 20
_VERSIONS = frozenset({"0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"})
_T = TypeVar("_T")
_LARGEST_NUMBER = (1 << 32) - 1
# of device nodes; the kernel keeps 12 and 20 bits of a device's numbers, and the last id stands for none
_LARGEST = {
    "major": (1 << 12) - 1,
    "minor": (1 << 20) - 1,
    "fileMode": _LARGEST_NUMBER,
    "uid": _LARGEST_NUMBER - 1,
    "gid": _LARGEST_NUMBER - 1,
}
_LARGEST_TIMEOUT_SECONDS = 86_400
_KIND = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_HOOKS = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)
_NODE_TYPES = frozenset({"", "b", "c", "u", "p"})
# what this tool can apply; netDevices need a network namespace of their own, intelRdt a mounted resctrl
_EDITS = frozenset({"env", "deviceNodes", "mounts", "hooks", "additionalGids", "additionalGIDs"})


class _WrongTypeError(ValueError):
    """A value of another type than its key wants."""


@dataclass(frozen=True)
class Edits:
    """What one specification or device asks to be added to a container, as it stands in the file."""

    environment: tuple[str, ...] = ()
    nodes: tuple[Mapping[str, Any], ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()
    hooks: tuple[Mapping[str, Any], ...] = ()
    groups: tuple[int, ...] = ()

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            self.environment + other.environment,
            self.nodes + other.nodes,
            self.mounts + other.mounts,
            self.hooks + other.hooks,
            self.groups + other.groups,
        )


@dataclass(frozen=True)
class _Specification:
    path: Path
    kind: str
    edits: Edits
    devices: Mapping[str, Edits]


class Devices:
    """All devices of this host, by qualified name; the later folder's come before the earlier one's."""

    def __init__(self, folders: Sequence[Path] = FOLDERS) -> None:
        self._folders = folders
        self._found: dict[str, tuple[_Specification, Edits]] = {}
        self.problems: list[str] = []
        for folder in folders:
            self._read(folder)

    def _read(self, folder: Path) -> None:
        here: dict[str, tuple[_Specification, Edits]] = {}
        twice: dict[str, str] = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix not in _SUFFIXES:
                continue
            try:
                specification = _load(path)
            except DataError as error:
                # one vendor's bad file must not take another's devices away
                self.problems.append(error.message)
                continue
            for name, edits in specification.devices.items():
                qualified = f"{specification.kind}={name}"
                if qualified in here:
                    twice[qualified] = (
                        f"device is in two specifications: {qualified}: {here[qualified][0].path}, {path}"
                    )
                here[qualified] = (specification, edits)
        for name, problem in twice.items():
            del here[name]
            self._found.pop(name, None)
            self.problems.append(problem)
        self._found.update(here)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._found))

    def edits(self, names: Sequence[str]) -> Edits:
        """The edits of these devices, and once those of each specification that names one of them."""
        total, seen = Edits(), set()
        for name in names:
            if name not in self._found:
                raise NotFoundError(f"no such device: {name}", hint=self._hint(name))
            specification, edits = self._found[name]
            total += edits
            if specification.path not in seen:
                seen.add(specification.path)
                total += specification.edits
        return total

    def of_gpu(self, uuid: str, index: int | None) -> str | None:
        """The device that is this GPU, named by UUID or by number; None where no specification has it."""
        for name in (uuid, *(() if index is None else (str(index),))):
            if (qualified := f"{GPU_KIND}={name}") in self._found:
                return qualified
        return None

    def _hint(self, name: str) -> str | None:
        for problem in self.problems:
            if name in problem:
                return problem
        if not self._found:
            where = " or ".join(map(str, self._folders))
            return self.problems[0] if self.problems else f"no CDI specification is in {where}: {GENERATE}"
        return near_matches_hint(name, self.names, otherwise=f"there are {', '.join(self.names[:8])}")


GENERATE = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


def check_device_name(name: str) -> str:
    """`VENDOR/CLASS=NAME`, or a refusal that says so."""
    kind, separator, device = name.partition("=")
    if not separator or not _KIND.fullmatch(kind) or not _DEVICE.fullmatch(device):
        raise DataError(f"device is not VENDOR/CLASS=NAME: {name!r}", hint=f"for example `{GPU_KIND}=0`")
    return name


def _load(path: Path) -> _Specification:
    document = _parse(path)
    try:
        return _specification(path, document)
    except (KeyError, ValueError) as error:
        detail = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"CDI specification cannot be used: {path}: {detail}") from error


def _parse(path: Path) -> Mapping[str, Any]:
    try:
        content = read_regular(path, _LARGEST_BYTES)
    except OSError as error:
        raise DataError(f"CDI specification cannot be read: {path}: {error.strerror}") from error
    try:
        if path.suffix == ".json":
            document = json.loads(content)
        else:
            import yaml

            try:
                document = yaml.safe_load(content)
            except yaml.YAMLError as error:
                raise ValueError(" ".join(str(error).split())) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"CDI specification cannot be read: {path}: {error}") from error
    if not isinstance(document, dict):
        raise DataError(f"CDI specification cannot be used: {path}: it is no table")
    return document


def _specification(path: Path, document: Mapping[str, Any]) -> _Specification:
    if (version := _text(document, "cdiVersion")) not in _VERSIONS:
        raise ValueError(f"cdiVersion is {version!r}")
    kind = _text(document, "kind")
    if not _KIND.fullmatch(kind):
        raise ValueError(f"kind is {kind!r}")
    devices: dict[str, Edits] = {}
    document["devices"]  # must be there
    for device in _tables(document, "devices"):
        name = _text(device, "name")
        if not _DEVICE.fullmatch(name) or name in devices:
            raise ValueError(f"device name is {name!r}")
        device["containerEdits"]
        devices[name] = _edits(_table(device, "containerEdits"))
    return _Specification(path, kind, _edits(_table(document, "containerEdits")), devices)


def _edits(table: Mapping[str, Any]) -> Edits:
    if unknown := sorted(str(key) for key in table if key not in _EDITS):
        raise ValueError(f"this coldstart cannot apply {', '.join(unknown)}")
    return Edits(
        environment=tuple(_variable(entry) for entry in _texts(table, "env")),
        nodes=tuple(_node(entry) for entry in _tables(table, "deviceNodes")),
        mounts=tuple(_mount(entry) for entry in _tables(table, "mounts")),
        hooks=tuple(_hook(entry) for entry in _tables(table, "hooks")),
        groups=tuple(_groups(table)),
    )


def _groups(table: Mapping[str, Any]) -> Iterator[int]:
    key = "additionalGids" if table.get("additionalGids") else "additionalGIDs"
    for number in _list(table, key):
        if type(number) is not int or not 0 <= number <= _LARGEST["gid"]:
            raise ValueError(f"additional group is {number!r}")
        if number:
            yield number


def _variable(entry: str) -> str:
    if entry.find("=") <= 0 or "\0" in entry:
        raise ValueError(f"environment variable is {entry!r}")
    return entry


def _node(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    path = _absolute(entry, "path")
    if "hostPath" in entry:
        _absolute(entry, "hostPath")
    if (kind := _text(entry, "type", "")) not in _NODE_TYPES:
        raise ValueError(f"device {path} has type {kind!r}")
    for key, largest in _LARGEST.items():
        if key in entry and (type(entry[key]) is not int or not 0 <= entry[key] <= largest):
            raise ValueError(f"device {path} has {key} {entry[key]!r}")
    permissions = _text(entry, "permissions", "")
    if permissions != "none" and set(permissions) - set("rwm"):
        raise ValueError(f"device {path} has permissions {permissions!r}")
    return entry


def _mount(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    _absolute(entry, "hostPath")
    _absolute(entry, "containerPath")
    _text(entry, "type", "")
    _texts(entry, "options")
    return entry


def _hook(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    if (name := _text(entry, "hookName")) not in _HOOKS:
        raise ValueError(f"hook is {name!r}")
    _absolute(entry, "path")
    _texts(entry, "args")
    _texts(entry, "env")
    timeout = entry.get("timeout")
    if timeout is not None and (type(timeout) is not int or not 0 <= timeout <= _LARGEST_TIMEOUT_SECONDS):
        raise ValueError(f"timeout of hook {name} is {timeout!r}")
    return entry


def _absolute(table: Mapping[str, Any], key: str) -> str:
    path = _text(table, key)
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ValueError(f"{key} is {path!r}")
    return path


def _text(table: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = table[key] if default is None else table.get(key, default)
    return _typed(value, str, key, "text")


def _list(table: Mapping[str, Any], key: str) -> list[Any]:
    return _typed(table.get(key) or [], list, key, "a list")


def _texts(table: Mapping[str, Any], key: str) -> list[str]:
    return [_typed(entry, str, f"{key}[{place}]", "text") for place, entry in enumerate(_list(table, key))]


def _table(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    return _typed(table.get(key) or {}, dict, key, "a table")


def _tables(table: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return [
        _typed(entry, dict, f"{key}[{place}]", "a table") for place, entry in enumerate(_list(table, key))
    ]


def _typed(value: Any, kind: type[_T], name: str, what: str) -> _T:
    if not isinstance(value, kind):
        raise _WrongTypeError(f"{name} is not {what}: {reprlib.repr(value)}")
    return value
