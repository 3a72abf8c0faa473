"""The replica specification: the TOML that `launch` reads, checked key by key before anything starts."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from coldstart_cli.errors import DataError, NotFoundError, near_matches_hint

SCHEMA = "coldstart.spec"
VERSION = 1
DEFAULT_READY_TIMEOUT_SECONDS = 300.0
# a replica's name becomes a folder, a container id and a cgroup
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
Network = Literal["host", "none"]
_NETWORKS: dict[str, Network] = {"host": "host", "none": "none"}


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
    network: Network
    mounts: tuple[HostMount, ...]
    ready: Readiness
    snapshot: str
    groups: tuple[int, ...] | None = None
    """Supplementary groups; `None` for those that the image gives the user."""


def load_spec(path: Path) -> ReplicaSpec:
    """Read and check a specification; every refusal names the file and the key."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(f"specification does not exist: {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"specification is not valid TOML: {path}: {error}") from error
    except OSError as error:
        raise NotFoundError(f"cannot read specification: {path}: {error.strerror}") from error
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
        snapshot = self._table(document, "snapshot", {"name"})
        network = self._optional_text(document, "network") or "host"
        if network not in _NETWORKS:
            raise DataError(f"{self._path}: network must be one of {', '.join(_NETWORKS)}: {network}")
        return ReplicaSpec(
            name=name,
            image=self._text(document, "image"),
            command=self._texts(document, "command"),
            environment=self._environment(document),
            working_directory=self._folder(document, "working_directory"),
            user=self._optional_text(document, "user"),
            network=_NETWORKS[network],
            mounts=self._mounts(document),
            ready=self._readiness(ready),
            snapshot=self._name(self._optional_text(snapshot, "name", "snapshot.") or name, "snapshot.name"),
        )

    def _name(self, name: str, key: str) -> str:
        if not _NAME.fullmatch(name):
            raise DataError(
                f"{self._path}: {key} is not usable: {name!r}",
                hint="1-63 letters, digits, `_`, `.`, `-`, beginning with a letter or digit",
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

    def _texts(self, document: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = document.get(key, [])
        if not isinstance(value, list) or not all(
            isinstance(item, str) and "\0" not in item for item in value
        ):
            raise DataError(f"{self._path}: {key} must be a list of texts: {value!r}")
        if value and not value[0]:
            raise DataError(f"{self._path}: {key} must begin with a program: {value!r}")
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

    def _readiness(self, table: Mapping[str, Any]) -> Readiness:
        url = self._optional_text(table, "url", "ready.")
        if url is not None and not _is_usable_url(url):
            raise DataError(f"{self._path}: ready.url must be an http or https URL: {url}")
        timeout = table.get("timeout_seconds", DEFAULT_READY_TIMEOUT_SECONDS)
        # a bool is an int in Python; `not 0 < x` is also true for NaN
        if (
            isinstance(timeout, bool)
            or not isinstance(timeout, int | float)
            or not 0 < timeout < float("inf")
        ):
            raise DataError(f"{self._path}: ready.timeout_seconds must be a positive number: {timeout!r}")
        return Readiness(url, float(timeout))

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
    "ready",
    "snapshot",
    "mounts",
}
_READY_KEYS = {"url", "timeout_seconds"}
