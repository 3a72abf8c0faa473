"""Hosts that copy made-up snapshots to stores and from them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from coldstart_cli.config import Config, load
from coldstart_snapshot.distribution.distribute import SnapshotReference, SnapshotStore
from coldstart_snapshot.distribution.receive import Incoming, fetch_snapshot, find_offer
from coldstart_snapshot.distribution.send import SentVersion, send_snapshot
from coldstart_snapshot.distribution.trust import TrustRule
from coldstart_snapshot.kept.inventory import list_variants
from coldstart_snapshot.kept.manifest import Manifest, write_manifest
from coldstart_snapshot.kept.verify import digest_files
from snapshot.made import manifest_of

PAGE = 4096
TRUSTED = TrustRule(given=True)


def pagemap(runs: list[tuple[int, int]]) -> bytes:
    """A pagemap image of criu: which addresses the pages of file 1 are of."""

    def varint(number: int) -> bytes:
        found = bytearray()
        while number > 0x7F:
            found.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*found, number])

    def message(*fields: tuple[int, int]) -> bytes:
        body = b"".join(bytes([tag << 3]) + varint(number) for tag, number in fields)
        return len(body).to_bytes(4, "little") + body

    magic = (0x54564319).to_bytes(4, "little") + (0x56084025).to_bytes(4, "little")
    present = 4
    entries = [message((1, address), (2, count), (4, present)) for address, count in runs]
    return magic + message((1, 1)) + b"".join(entries)


@dataclass
class Memory:
    """Pages of a made-up process, by address."""

    pages: dict[int, bytes]

    @classmethod
    def random(cls, count: int, address: int = 0x7F00_0000_0000) -> Memory:
        return cls({address + number * PAGE: os.urandom(PAGE) for number in range(count)})

    def with_page(self, address: int, content: bytes) -> Memory:
        return Memory({**self.pages, address: content})

    def runs(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for address in sorted(self.pages):
            if found and found[-1][0] + found[-1][1] * PAGE == address:
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((address, 1))
        return found


class Host:
    """A host with a state folder of its own."""

    def __init__(self, folder: Path, **settings: str) -> None:
        values: dict[str, str] = {"state_dir": str(folder / "state"), "run_dir": str(folder / "run")}
        self.config: Config = load(values).replaced(settings, "test")

    def capture(self, name: str, memory: Memory, created: str = "2026-01-02T03:04:05Z") -> Manifest:
        manifest = replace(manifest_of(name), created=created, gpu=None)
        folder = self.config.state_folder / "snapshots" / name / manifest.variant
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "images").mkdir(parents=True)
        (folder / "bundle").mkdir()
        (folder / "images" / "inventory.img").write_bytes(b"inventory")
        (folder / "images" / "pagemap-1.img").write_bytes(pagemap(memory.runs()))
        (folder / "images" / "pages-1.img").write_bytes(
            b"".join(content for _, content in sorted(memory.pages.items()))
        )
        (folder / "bundle" / "config.json").write_text("{}")
        (folder / "upper.tar").write_bytes(b"layer" * 1000)
        complete = replace(manifest, files=digest_files(folder))
        write_manifest(folder, complete)
        return complete

    def store(self, url: str | Path, *, create: bool = False) -> SnapshotStore:
        return SnapshotStore.open(str(url), self.config, create=create)

    def send(self, name: str, url: str | Path, **options: object) -> SentVersion:
        (sent,) = send_snapshot(
            SnapshotReference.parse(name),
            self.store(url, create=True),
            self.config,
            **options,  # type: ignore[arg-type]
        )
        return sent

    def fetch(self, name: str, url: str | Path, rule: TrustRule = TRUSTED) -> Incoming:
        store = self.store(url)
        reference = SnapshotReference.parse(name)
        offer = find_offer(
            reference, store, replace(rule, pinned=[reference.digest] if reference.digest else [])
        )
        return fetch_snapshot(offer, store, self.config)[1]

    def names(self) -> list[str]:
        found = list_variants(self.config.state_folder)
        return [variant.manifest.name for variant in found]  # type: ignore[union-attr]
