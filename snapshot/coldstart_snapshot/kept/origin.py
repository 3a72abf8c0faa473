"""`origin.json` beside a manifest: from which store a variant came, and why it was trusted."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from coldstart_cli.errors import DataError
from coldstart_cli.files import atomic_write
from coldstart_snapshot.kept.manifest import ORIGIN_NAME

_SCHEMA = "coldstart.snapshot-origin"


@dataclass(frozen=True)
class Origin:
    """`trust` is `pinned`, `signed` or `trusted`; `key` is the public key of a signature."""

    store: str
    manifest: str
    trust: str
    key: str | None
    fetched: str


def write_origin(folder: Path, origin: Origin) -> None:
    content = json.dumps({"schema": _SCHEMA, "version": 1, **asdict(origin)}).encode() + b"\n"
    atomic_write(folder / ORIGIN_NAME, content, mode=0o600)


def read_origin(folder: Path) -> Origin | None:
    """How a variant came to this host; None when it was captured here."""
    path = folder / ORIGIN_NAME
    try:
        document = json.loads(path.read_bytes())
        if document.pop("schema") != _SCHEMA or document.pop("version") != 1:
            raise DataError(f"record of a snapshot's origin is not of this release: {path}")
        return Origin(**document)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"record of a snapshot's origin is damaged: {path}: {error}") from error
