"""Mount records: what is mounted where by which process, so that anybody can end it, also after a crash."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from coldstart_cli.errors import PermissionNeededError
from coldstart_cli.files import atomic_write, exclusive_lock, make_private
from coldstart_fs.mounts.server_records import ServerRecord, read_server

_SCHEMA = "coldstart.mount"
_VERSION = 2
_PATHS = ("mountpoint", "cache", "fuse_mountpoint", "server_folder", "overlay")


@dataclass(frozen=True)
class MountRecord:
    """One mount point. `server_folder` holds the record of the server behind it, which others may use too.

    `fuse_mountpoint` is where that server's FUSE file system is mounted; `mountpoint` is a bind mount or an
    overlay of it, unless both are the same.
    """

    mountpoint: Path
    image: str
    name: str
    store: str
    cache: Path
    fuse_mountpoint: Path = Path()
    server_folder: Path = Path()
    overlay: Path | None = None
    suid: bool = False
    dev: bool = False
    notes: tuple[str, ...] = ()
    traces: Mapping[str, Any] | None = None
    tiers: tuple[str, ...] = ()
    cache_quota_bytes: int | None = None
    cache_free_bytes: int | None = None
    fetch: str = "auto"
    lease: bool = True

    def server(self) -> ServerRecord | None:
        """The server as it is on record now; None when there is none any more."""
        return read_server(self.server_folder)

    @property
    def server_pid(self) -> int:
        """Who answers for the mount now; a server that died has a successor."""
        server = self.server()
        return 0 if server is None else server.server.pid

    @property
    def settings(self) -> Mapping[str, int | None]:
        """Kernel settings of the connection, as the kernel kept them."""
        server = self.server()
        return {} if server is None else server.settings

    def server_lives(self) -> bool:
        """Whether requests are answered, or will be as soon as a successor has started."""
        server = self.server()
        return server is not None and server.lives()


def record_folder(run_folder: Path, mountpoint: Path) -> Path:
    """Where the record of a mount point is kept."""
    name = hashlib.sha256(os.fsencode(os.path.abspath(mountpoint))).hexdigest()[:16]
    return Path(os.path.realpath(run_folder)) / "mounts" / name


def lock_path(folder: Path) -> Path:
    """The lock of a record folder; `record_lock` holds it."""
    return folder.with_suffix(".lock")


@contextmanager
def record_lock(folder: Path, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Be the only one who mounts or unmounts there; the lock's file goes when the folder has gone."""
    path = lock_path(folder)
    make_private(path.parent)
    with exclusive_lock(path, wait_seconds=wait_seconds):
        try:
            yield
        finally:
            if not folder.exists():
                with suppress(OSError):
                    path.unlink()


def write_record(folder: Path, record: MountRecord) -> None:
    content: dict[str, Any] = {"schema": _SCHEMA, "version": _VERSION, **asdict(record)}
    for key in _PATHS:
        content[key] = None if content[key] is None else str(content[key])
    # names may hold any byte: surrogates survive as escapes
    atomic_write(folder / "record.json", json.dumps(content, indent=2).encode("ascii") + b"\n", mode=0o600)


def read_record(folder: Path) -> MountRecord | None:
    """The record in a folder; None when there is none or it cannot be read."""
    try:
        content = json.loads((folder / "record.json").read_bytes())
        known = {item.name for item in fields(MountRecord)}
        values = {key: value for key, value in content.items() if key in known}
        for key in _PATHS:
            values[key] = None if values[key] is None else Path(values[key])
        for key in ("notes", "tiers"):
            values[key] = tuple(values.get(key, ()))
        return MountRecord(**values)
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None


def all_records(run_folder: Path) -> list[tuple[Path, MountRecord]]:
    """Every record that can be read with its folder, in order of the mount points."""
    folder = Path(os.path.realpath(run_folder)) / "mounts"
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except PermissionError as error:  # none that we can see is not none
        raise PermissionNeededError(
            f"cannot read which images are mounted: {folder}",
            hint="run as the owner of that folder, or with another `run_dir`",
        ) from error
    found = [(folder / name, record) for name in names if (record := read_record(folder / name)) is not None]
    return sorted(found, key=lambda item: str(item[1].mountpoint))
