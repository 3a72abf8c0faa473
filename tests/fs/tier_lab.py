"""A cache and a store that serve the same pack, each with faults of its own, and reads through both."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from coldstart_cli.errors import DataError
from coldstart_fs.format.chunk import chunk_digest
from coldstart_fs.format.names import pack_key
from coldstart_fs.stores.store import MARKER, MARKER_CONTENT
from coldstart_fs.stores.store_url import open_store
from coldstart_fs.tiers.attempt import Stored
from coldstart_fs.tiers.packs import TieredPacks, open_tiers
from coldstart_fs.tiers.settings import TierSettings
from fs.servers import FaultyServer

CONTENT = random.Random(7).randbytes(600_000)
PACK = chunk_digest(CONTENT)
KEY = pack_key(PACK)
OFFSET, LENGTH = 1000, 200_000


def serve_pack(root: Path) -> None:
    """A store with one pack."""
    (root / MARKER).write_bytes(MARKER_CONTENT)
    (root / KEY).parent.mkdir(parents=True, exist_ok=True)
    (root / KEY).write_bytes(CONTENT)


@dataclass
class TierLab:
    cache: FaultyServer
    store: FaultyServer
    log: list[str] = field(default_factory=list)
    opened: list[TieredPacks] = field(default_factory=list)
    read_timeout_seconds: float = 10.0
    """A busy machine may be silent for a while; tests of silence are in more of a hurry."""

    def packs(self, *, store: str | None = None, **settings: float) -> TieredPacks:
        """The cache before the store, as a server would open them."""
        tier = TierSettings(
            self.cache.url, **({"read_timeout_seconds": self.read_timeout_seconds} | settings)
        )  # type: ignore[arg-type]
        return self.open(tier, store=store)

    def alone(self) -> TieredPacks:
        """The store without a tier before it."""
        return self.open()

    def open(self, *tiers: TierSettings, store: str | None = None) -> TieredPacks:
        packs = open_tiers(open_store(store or self.store.url), tiers, log=self.log.append)
        self.opened.append(packs)
        return packs


def read(packs: TieredPacks, offset: int = OFFSET, length: int = LENGTH, *, seconds: float = 20.0) -> Stored:
    """A range, checked by digest as a reader of an image checks it; wrong bytes fail the test."""
    digest = chunk_digest(CONTENT[offset : offset + length])

    def check(data: Stored) -> None:
        if chunk_digest(data) != digest:
            raise DataError("chunk does not have its digest")

    data = packs.fetch(PACK, offset, length, deadline=time.monotonic() + seconds, check=check)
    assert data == CONTENT[offset : offset + length]
    return data


def asked(server: FaultyServer) -> int:
    """How many ranges were asked of a server."""
    return sum(wanted is not None for _, _, wanted in server.requests)
