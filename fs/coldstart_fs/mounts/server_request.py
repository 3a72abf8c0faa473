"""What an image server is asked to serve, and what its keeper is asked to keep."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

_KEY_CHARACTERS = 16


@dataclass(frozen=True)
class ServerRequest:
    """What to serve from where. Mounts for which all of this is equal can share one server."""

    image: str
    store: str
    cache: str
    traces: Mapping[str, Any] | None = None
    tiers: tuple[str, ...] = ()
    """Asked before the store, in this order, as `tiers.settings` reads them."""
    cache_quota_bytes: int | None = None
    cache_free_bytes: int | None = None
    """As `content.room.CacheLimits`."""
    fetch: str = "auto"
    """As `content.whole_fetch.FetchMode`."""
    lease: bool = True
    """Whether to tell a shared store that the image is in use."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """What another version wrote: fields that this one does not know are left out."""
        known = {item.name for item in fields(cls)}
        values = {key: value for key, value in content.items() if key in known}
        return cls(**values | {"tiers": tuple(values.get("tiers", ()))})

    def key(self) -> str:
        """The same for equal requests of one user."""
        content = json.dumps([asdict(self), os.geteuid()], sort_keys=True)
        return hashlib.sha256(content.encode("ascii")).hexdigest()[:_KEY_CHARACTERS]


@dataclass(frozen=True)
class KeeperOrder:
    """What a keeper is started for: `folder` is its record's, `root` where FUSE is to be mounted.

    With `take_over` the connection that the record names is taken from those who have it.
    """

    request: ServerRequest
    folder: Path
    root: Path
    shared: bool
    take_over: bool = False
    timeout_seconds: float = 30.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder), "root": str(self.root)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        changes = {
            "request": ServerRequest.from_json(content["request"]),
            "folder": Path(content["folder"]),
            "root": Path(content["root"]),
        }
        return cls(**(content | changes))
