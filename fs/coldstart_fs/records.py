"""Mount records: what is mounted where by which process, so that anybody can end it, also after a crash."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from coldstart_cli.files import atomic_write, exclusive_lock
from coldstart_cli.process import start_ticks

_SCHEMA = "coldstart.mount"
_VERSION = 1
_PATHS = ("mountpoint", "cache", "fuse_mountpoint", "overlay")


@dataclass(frozen=True)
class MountRecord:
    """One mount; `settings` are as the kernel kept them, `notes` what the server has to say.

    `fuse_mountpoint` is `mountpoint` unless an overlay lies on top.
    """

    mountpoint: Path
    image: str
    name: str
    store: str
    cache: Path
    fuse_mountpoint: Path
    overlay: Path | None = None
    server_pid: int = 0
    server_start_ticks: int = 0
    settings: Mapping[str, int | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def server_lives(self) -> bool:
        """Whether the server is still that very process."""
        return self.server_pid > 0 and start_ticks(self.server_pid) == self.server_start_ticks


def record_folder(run_folder: Path, mountpoint: Path) -> Path:
    """Where the record, the log, the counters and the lower mount of a mount point are kept."""
    name = hashlib.sha256(os.fsencode(os.path.abspath(mountpoint))).hexdigest()[:16]
    return Path(os.path.abspath(run_folder)) / "mounts" / name


def lock_path(folder: Path) -> Path:
    """The lock of a record folder; `record_lock` holds it."""
    return folder.with_suffix(".lock")


@contextmanager
def record_lock(folder: Path, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Be the only one who mounts or unmounts there; the lock's file goes when the folder has gone."""
    path = lock_path(folder)
    with exclusive_lock(path, wait_seconds=wait_seconds):
        try:
            yield
        finally:
            if not folder.exists():
                with suppress(OSError):
                    path.unlink()


def log_path(folder: Path) -> Path:
    return folder / "log"


def counters_path(folder: Path) -> Path:
    return folder / "counters.json"


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
            values[key] = None if values.get(key) is None else Path(values[key])
        values["notes"] = tuple(values.get("notes", ()))
        return MountRecord(**values)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def read_counters(folder: Path) -> dict[str, Any]:
    """What the server counted until a second ago; empty when it has not counted yet."""
    try:
        content = json.loads(counters_path(folder).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def all_records(run_folder: Path) -> list[tuple[Path, MountRecord]]:
    """Every readable record with its folder, in order of the mount points."""
    folder = Path(os.path.abspath(run_folder)) / "mounts"
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, PermissionError):
        return []
    found = [(folder / name, record) for name in names if (record := read_record(folder / name)) is not None]
    return sorted(found, key=lambda item: str(item[1].mountpoint))
