"""The replica specification: the TOML that `launch` reads, checked key by key before anything starts."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from coldstart_cli.errors import DataError, UsageError, near_matches_hint
from coldstart_cli.regular import read_input
from coldstart_launch.names import NAME_HINT, is_replica_name

if TYPE_CHECKING:
    from coldstart_launch.publish import Publication
    from coldstart_snapshot.answers.golden import GoldenRequest
    from coldstart_snapshot.engines.settings import EngineSettings
    from coldstart_snapshot.kept.restore_command import RestoreCommand

SCHEMA = "coldstart.spec"
VERSION = 1
DEFAULT_READY_TIMEOUT_SECONDS = 300.0
_DIGEST = re.compile(r"blake3:[0-9a-f]{64}")
_NETWORKS = ("host", "own", "none")


@dataclass(frozen=True)
class HostMount:
    """A folder or file of the host that the container sees."""

    source: Path
    destination: str
    read_only: bool


@dataclass(frozen=True)
class Readiness:
    """The replica is ready when `url` answers 200; None: as soon as it runs."""

    url: str | None
    timeout_seconds: float


@dataclass(frozen=True)
class ReplicaSpec:
    """What to run; `command`, `environment`, `working_directory` and `user` override the image's."""

    name: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    working_directory: str | None
    user: str | None
    network: str
    """`host`; `own`: loopback alone; `none`: the same, of the container itself; else a namespace's path."""
    mounts: tuple[HostMount, ...]
    ready: Readiness
    snapshot: str
    groups: tuple[int, ...] | None = None
    """Supplementary groups; `None` for those that the image gives the user."""
    workload: str | None = None
    """Which use of the image this is, for its trace; replicas of one share a server. `None`: the name."""
    gpus: int = 0
    """GPUs that are taken from this host's pool; CUDA_VISIBLE_DEVICES then names them."""
    publish: tuple[Publication, ...] = ()
    """Ports of the host that lead to ports of the replica, which is not in the host's network then."""
    restore_command: RestoreCommand | None = None
    """What runs in the container after each restore, before the replica counts as ready."""
    stream: tuple[str, ...] = ()
    """Files and folders of weights that are read while the replica is restored or started."""
    engine: EngineSettings | None = None
    """How the server is put to sleep while it is captured, and woken after a restore."""
    devices: tuple[str, ...] = ()
    """Devices that the container gets, by their CDI names: `nvidia.com/gpu=0`."""
    golden: tuple[GoldenRequest, ...] = ()
    """Requests whose answers are recorded at a capture; a restored replica that answers otherwise is none."""
    snapshot_digests: tuple[str, ...] = ()
    """Where some are given, only a snapshot with one of them is restored, and it may be fetched."""


def load_spec(path: Path) -> ReplicaSpec:
    """Read and check a specification; every refusal names the file and the key."""
    try:
        document = tomllib.loads(read_input(path, "specification").decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"specification is not valid TOML: {path}: {error}") from error
    return _Reader(path).spec(document)


def _is_usable_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in {"http", "https"} and bool(host) and parts.port != 0
    except ValueError:  # a port over 65535, an unclosed bracket, a label over 63 characters
        return False


class _Reader:
    """Takes values out of the parsed TOML and refuses what is unknown or of the wrong type."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def spec(self, document: dict[str, Any]) -> ReplicaSpec:
        self._check_keys(document, _KEYS, "")
        if document.get("schema") != SCHEMA:
            raise DataError(f'{self._path}: schema must be "{SCHEMA}": {document.get("schema")!r}')
        version = document.get("version")
        if not isinstance(version, int) or version < 1:
            raise DataError(f"{self._path}: version must be a whole number: {version!r}")
        if version > VERSION:
            raise DataError(
                f"{self._path}: version {version} is newer than this coldstart reads: {VERSION}",
                hint="install a newer coldstart",
            )
        name = self._name(self._text(document, "name"), "name")
        ready = self._table(document, "ready", _READY_KEYS)
        snapshot, digests = self._snapshot(document, name)
        network = self._optional_text(document, "network") or "host"
        gpus = self._gpus(document)
        workload = self._optional_text(document, "workload")
        if network not in _NETWORKS and not network.startswith("/"):
            names = ", ".join(_NETWORKS)
            raise DataError(f"{self._path}: network must be one of {names}, or a namespace's path: {network}")
        return ReplicaSpec(
            name=name,
            image=self._text(document, "image"),
            command=self._texts(document, "command"),
            environment=self._environment(document),
            working_directory=self._folder(document, "working_directory"),
            user=self._optional_text(document, "user"),
            network=network,
            workload=None if workload is None else self._name(workload, "workload"),
            gpus=gpus,
            publish=self._publications(document, network),
            restore_command=self._restore_command(document),
            devices=self._devices(document),
            golden=self._golden(document, ready),
            engine=self._engine(document),
            stream=self._stream(document),
            mounts=self._mounts(document),
            ready=self._readiness(ready),
            snapshot=snapshot,
            snapshot_digests=digests,
        )

    def _snapshot(self, document: Mapping[str, Any], name: str) -> tuple[str, tuple[str, ...]]:
        """Its name, and the digests that are pinned: `snapshot = "NAME@blake3:HEX"`, or a table of both."""
        given = document.get("snapshot", {})
        table = (
            {"name": given} if isinstance(given, str) else self._table(document, "snapshot", _SNAPSHOT_KEYS)
        )
        text, separator, digest = (self._optional_text(table, "name", "snapshot.") or name).partition("@")
        digests = self._texts(table, "digests") + ((digest,) if separator else ())
        for one in digests:
            if not _DIGEST.fullmatch(one):
                raise DataError(
                    f"{self._path}: not the digest of a snapshot: {one!r}",
                    hint="`coldstart snap show NAME` tells it: `blake3:` and 64 hex digits",
                )
        return self._name(text, "snapshot.name"), digests

    def _name(self, name: str, key: str) -> str:
        if not is_replica_name(name):
            raise DataError(
                f"{self._path}: {key} is not usable: {name!r}",
                hint=NAME_HINT,
            )
        return name

    def _check_keys(self, table: Mapping[str, Any], known: set[str], prefix: str) -> None:
        for key in table:
            if key not in known:
                raise DataError(
                    f"{self._path}: unknown key: {prefix}{key}", hint=near_matches_hint(key, known)
                )

    def _table(self, document: Mapping[str, Any], key: str, known: set[str]) -> Mapping[str, Any]:
        table = document.get(key, {})
        if not isinstance(table, dict):
            raise DataError(f"{self._path}: {key} must be a table: {table!r}")
        self._check_keys(table, known, f"{key}.")
        return table

    def _optional_text(self, table: Mapping[str, Any], key: str, prefix: str = "") -> str | None:
        value = table.get(key)
        if value is not None and (not isinstance(value, str) or not value or "\0" in value):
            raise DataError(f"{self._path}: {prefix}{key} must be a non-empty text: {value!r}")
        return value

    def _text(self, table: Mapping[str, Any], key: str, prefix: str = "") -> str:
        value = self._optional_text(table, key, prefix)
        if value is None:
            raise DataError(f"{self._path}: missing key: {prefix}{key}")
        return value

    def _texts(self, document: Mapping[str, Any], key: str, prefix: str = "") -> tuple[str, ...]:
        value = self._strings(document, key, prefix)
        if value and not value[0]:
            raise DataError(f"{self._path}: {prefix}{key} must begin with a program: {list(value)!r}")
        return value

    def _strings(self, document: Mapping[str, Any], key: str, prefix: str = "") -> tuple[str, ...]:
        value = document.get(key, [])
        if not isinstance(value, list) or not all(
            isinstance(item, str) and "\0" not in item for item in value
        ):
            raise DataError(f"{self._path}: {prefix}{key} must be a list of texts: {value!r}")
        return tuple(value)

    def _folder(self, document: Mapping[str, Any], key: str) -> str | None:
        value = self._optional_text(document, key)
        if value is not None and not value.startswith("/"):
            raise DataError(f"{self._path}: {key} must be absolute: {value}")
        return value

    def _environment(self, document: Mapping[str, Any]) -> dict[str, str]:
        table = document.get("environment", {})
        if not isinstance(table, dict):
            raise DataError(f"{self._path}: environment must be a table: {table!r}")
        for name, value in table.items():
            if not isinstance(value, str) or "\0" in value or "=" in name or not name:
                raise DataError(f"{self._path}: environment.{name} must be a text: {value!r}")
        return dict(table)

    def _gpus(self, document: Mapping[str, Any]) -> int:
        gpus = document.get("gpus", 0)
        if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 0:
            raise DataError(f"{self._path}: gpus must be a whole number: {gpus!r}")
        if gpus and "CUDA_VISIBLE_DEVICES" in self._environment(document):
            raise DataError(
                f"{self._path}: gpus and environment.CUDA_VISIBLE_DEVICES exclude each other",
                hint="leave one out: with `gpus` the pool chooses them",
            )
        return gpus

    def _publications(self, document: Mapping[str, Any], network: str) -> tuple[Publication, ...]:
        texts = self._strings(document, "publish")
        if texts and network == "host":
            raise DataError(
                f"{self._path}: publish and the host's network exclude each other", hint='network = "own"'
            )
        from coldstart_launch.publish import parse_publication

        try:
            return tuple(parse_publication(text) for text in texts)
        except UsageError as error:
            raise DataError(f"{self._path}: publish: {error.message}", hint=error.hint) from error

    def _golden(self, document: Mapping[str, Any], ready: Mapping[str, Any]) -> tuple[GoldenRequest, ...]:
        if "golden" not in document:
            return ()
        from coldstart_snapshot.answers.golden_file import golden_requests

        return golden_requests(document["golden"], ready.get("url"), self._path)

    def _restore_command(self, document: Mapping[str, Any]) -> RestoreCommand | None:
        from coldstart_snapshot.kept.restore_command import DEFAULT_TIMEOUT_SECONDS, RestoreCommand

        table = self._table(document, "restore", {"exec", "timeout_seconds"})
        if "restore" not in document:
            return None
        arguments = self._texts(table, "exec", "restore.")
        if not arguments:
            raise DataError(f"{self._path}: missing key: restore.exec")
        seconds = self._seconds(table, "restore.", DEFAULT_TIMEOUT_SECONDS)
        return RestoreCommand(arguments, seconds)

    def _devices(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        from coldstart_snapshot.containers.cdi import GPU_KIND, check_device_name

        devices = self._texts(document, "devices")
        for name in devices:
            try:
                check_device_name(name)
            except DataError as error:
                error.message = f"{self._path}: {error.message}"
                raise
        if self._gpus(document) and any(name.startswith(f"{GPU_KIND}=") for name in devices):
            raise DataError(
                f"{self._path}: gpus and devices of {GPU_KIND} exclude each other",
                hint="leave one out: with `gpus` the pool chooses them",
            )
        return devices

    def _stream(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        paths = self._strings(document, "stream")
        for path in paths:
            if not path.startswith("/") or ".." in path.split("/"):
                raise DataError(f"{self._path}: stream must name absolute paths: {path!r}")
        return paths

    def _engine(self, document: Mapping[str, Any]) -> EngineSettings | None:
        if "engine" not in document:
            return None
        from coldstart_snapshot.engines.settings import EngineSettings

        table = dict(self._table(document, "engine", set(EngineSettings.__dataclass_fields__)))
        if table.get("kind") in {"vllm", "sglang"} and (url := document.get("ready", {}).get("url")):
            parts = urlsplit(url)
            table.setdefault("url", f"{parts.scheme}://{parts.netloc}")
        try:
            return EngineSettings.from_document(table)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self._path}: engine: {error}") from error

    def _readiness(self, table: Mapping[str, Any]) -> Readiness:
        url = self._optional_text(table, "url", "ready.")
        if url is not None and not _is_usable_url(url):
            raise DataError(f"{self._path}: ready.url must be an http or https URL: {url}")
        return Readiness(url, self._seconds(table, "ready.", DEFAULT_READY_TIMEOUT_SECONDS))

    def _seconds(self, table: Mapping[str, Any], prefix: str, default: float) -> float:
        seconds = table.get("timeout_seconds", default)
        # a bool is an int in Python; `not 0 < x` is also true for NaN
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not 0 < seconds < float("inf")
        ):
            raise DataError(f"{self._path}: {prefix}timeout_seconds must be a positive number: {seconds!r}")
        return float(seconds)

    def _mounts(self, document: Mapping[str, Any]) -> tuple[HostMount, ...]:
        tables = document.get("mounts", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise DataError(f"{self._path}: mounts must be tables: `[[mounts]]`")
        mounts = []
        for number, table in enumerate(tables, start=1):
            prefix = f"mounts[{number}]."
            self._check_keys(table, {"source", "destination", "read_only"}, prefix)
            source = Path(self._text(table, "source", prefix))
            destination = self._text(table, "destination", prefix)
            read_only = table.get("read_only", True)
            if not source.is_absolute() or not destination.startswith("/") or ".." in destination.split("/"):
                raise DataError(
                    f"{self._path}: {prefix}source and destination must be absolute: {source}, {destination}"
                )
            if os.path.normpath(destination) == "/":
                raise DataError(
                    f"{self._path}: {prefix}destination must not be the whole root: {destination}"
                )
            if not source.exists():
                raise DataError(f"{self._path}: {prefix}source does not exist: {source}")
            if not isinstance(read_only, bool):
                raise DataError(f"{self._path}: {prefix}read_only must be true or false: {read_only!r}")
            mounts.append(HostMount(source, destination, read_only))
        return tuple(mounts)


_KEYS = {
    "schema",
    "version",
    "name",
    "image",
    "command",
    "environment",
    "working_directory",
    "user",
    "network",
    "workload",
    "gpus",
    "devices",
    "engine",
    "stream",
    "ready",
    "snapshot",
    "mounts",
    "publish",
    "restore",
    "golden",
}
_SNAPSHOT_KEYS = {"name", "digests"}
_READY_KEYS = {"url", "timeout_seconds"}
