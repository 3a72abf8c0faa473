"""Records of image servers: who keeps and who serves a FUSE connection. Written by its keeper alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from coldstart_cli.files import atomic_write, exclusive_lock, make_private
from coldstart_fs.fuse.negotiation import Negotiated
from coldstart_fs.mounts.processes import NOBODY, ProcessIdentity
from coldstart_fs.mounts.server_request import ServerRequest

_SCHEMA = "coldstart.image_server"
_VERSION = 1
_PROCESSES = ("keeper", "server")


@dataclass(frozen=True)
class ServerRecord:
    """One FUSE connection. `folder` also holds the log, the counters and the keeper's socket.

    `root` is where FUSE is mounted: in `folder` for root, whose mount points are bind mounts or overlays of
    it, else the mount point itself. `descriptor` and `journal` are numbers of descriptors in the server.
    `failure` says why the keeper gave up.
    """

    folder: Path
    request: ServerRequest
    root: Path
    shared: bool
    version: str
    keeper: ProcessIdentity = NOBODY
    server: ProcessIdentity = NOBODY
    restarts: int = 0
    descriptor: int = -1
    journal: int = -1
    device: int = 0
    negotiated: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, int | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    failure: str | None = None

    def lives(self) -> bool:
        """Whether requests are answered, or will be as soon as the keeper has started a new server."""
        return self.failure is None and (self.server.lives() or self.keeper.lives())

    def is_protected(self) -> bool:
        """Whether the death of the server would be survived."""
        return self.failure is None and self.keeper.lives() and not self.keeper.is_stopped()

    def is_stopped(self) -> bool:
        """Whether requests wait until somebody continues the server, or gives the mount another."""
        return self.failure is None and self.server.is_stopped()

    @property
    def guardian(self) -> ProcessIdentity:
        """The process whose end can be that of the mount: the keeper, or the server that a dead one left."""
        return self.keeper if self.keeper.lives() else self.server

    @property
    def fuse_flags(self) -> list[str]:
        """What server and kernel agreed on; empty before they have."""
        return Negotiated.from_json(dict(self.negotiated)).flag_names if self.negotiated else []

    @property
    def log(self) -> Path:
        return log_path(self.folder)


def servers_folder(run_folder: Path) -> Path:
    return Path(os.path.realpath(run_folder)) / "servers"


def log_path(folder: Path) -> Path:
    return folder / "log"


def counters_path(folder: Path) -> Path:
    return folder / "counters.json"


def socket_path(folder: Path) -> Path:
    """Where the keeper listens for a successor."""
    return folder / "keeper.socket"


@contextmanager
def server_lock(run_folder: Path, key: str, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Be the only one who starts, joins or leaves the servers of one key; no file stays without servers."""
    folder = servers_folder(run_folder)
    path = folder / f"{key}.lock"
    make_private(folder)
    with exclusive_lock(path, wait_seconds=wait_seconds):
        try:
            yield
        finally:
            if not any(name.startswith(f"{key}-") for name in os.listdir(folder)):
                with suppress(OSError):
                    path.unlink()


def key_of(folder: Path) -> str:
    """What the servers in such folders have in common; the lock is named after it."""
    return folder.name.rpartition("-")[0]


def write_server(record: ServerRecord) -> None:
    content: dict[str, Any] = {"schema": _SCHEMA, "version": _VERSION, **asdict(record)}
    content["coldstart_version"] = record.version
    content["version"] = _VERSION
    del content["folder"]
    content["root"] = str(content["root"])
    # names may hold any byte: surrogates survive as escapes
    text = json.dumps(content, indent=2).encode("ascii") + b"\n"
    atomic_write(record.folder / "server.json", text, mode=0o600)


def read_server(folder: Path) -> ServerRecord | None:
    """The record in a folder; None when there is none or it cannot be read."""
    try:
        content = json.loads((folder / "server.json").read_bytes())
        known = {item.name for item in fields(ServerRecord)}
        values = {key: value for key, value in content.items() if key in known}
        values["version"] = content["coldstart_version"]
        values["folder"] = folder
        values["request"] = ServerRequest.from_json(values["request"])
        values["root"] = Path(values["root"])
        for key in _PROCESSES:
            values[key] = ProcessIdentity(**values[key])
        values["notes"] = tuple(values.get("notes", ()))
        return ServerRecord(**values)
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None


def server_folders(run_folder: Path, key: str | None = None) -> list[Path]:
    """The folders of all servers, or of those with one key, in order of their names; records or not."""
    folder = servers_folder(run_folder)
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, PermissionError):
        return []
    return [
        folder / name
        for name in names
        if "-" in name and not name.endswith(".lock") and (key is None or name.rpartition("-")[0] == key)
    ]


def read_counters(folder: Path) -> dict[str, Any]:
    """What a server counted until a second ago; empty when it has not counted yet."""
    try:
        content = json.loads(counters_path(folder).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
