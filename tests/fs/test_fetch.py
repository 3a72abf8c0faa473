"""Chunks from a store: neighbours together, the rest of a request saved from its bad ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.errors import DataError
from coldstart_fs.build import index_image
from coldstart_fs.cache import ChunkCache
from coldstart_fs.chunk import chunk_digest
from coldstart_fs.fetch import ChunkSource, Loaded
from coldstart_fs.folder_store import FolderStore
from coldstart_fs.images import open_image
from coldstart_fs.locator import Locator
from coldstart_fs.names import pack_key
from coldstart_fs.store_url import open_store

CHUNK = 131072


class CountingStore(FolderStore):
    requests: list[tuple[int, int]]

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.requests.append((offset, length))
        return super().get_range(key, offset, length)


@dataclass
class Bench:
    store: CountingStore
    locator: Locator
    cache: ChunkCache
    source: ChunkSource
    content: list[bytes]
    said: list[str]

    @property
    def digests(self) -> list[bytes]:
        return [chunk_digest(part) for part in self.content]

    def load(self, digests: list[bytes]) -> dict[bytes, Loaded]:
        found: dict[bytes, Loaded] = {}
        for run in self.source.plan(digests):
            found |= self.source.load(run)
        return found

    def pack(self) -> Path:
        place = self.locator.find(self.digests[0])
        assert place is not None
        path = self.store.local_path(pack_key(place.pack))
        assert path is not None
        return path

    def offset(self, number: int) -> int:
        place = self.locator.find(self.digests[number])
        assert place is not None
        return place.offset


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    content = [os.urandom(CHUNK) for _ in range(40)] + [os.urandom(999)]
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"".join(content))
    folder = str(tmp_path / "store")
    report = index_image(f"dir:{tmp_path / 'tree'}", store=open_store(folder, create=True), name="image")
    store = CountingStore(tmp_path / "store")
    store.requests = []
    said: list[str] = []
    cache = ChunkCache(tmp_path / "cache", said.append)
    cache.prepare()
    index, locator = open_image(store, report.digest, cache.folder)
    with index, locator:
        yield Bench(store, locator, cache, ChunkSource(store, locator, cache, said.append), content, said)


def test_neighbours_come_in_one_request(bench: Bench) -> None:
    found = bench.load(bench.digests[3:8])
    assert bench.store.requests == [(bench.offset(3), 5 * CHUNK)]
    assert [found[digest].outcome for digest in bench.digests[3:8]] == bench.content[3:8]
    assert not any(loaded.from_cache for loaded in found.values())


def test_strangers_come_alone_and_requests_have_a_limit(bench: Bench) -> None:
    wanted = [bench.digests[number] for number in (20, 2, 3, 9)]
    assert [len(run.chunks) for run in bench.source.plan(wanted)] == [1, 2, 1]
    runs = bench.source.plan(bench.digests)
    assert [run.length for run in runs] == [32 * CHUNK, 8 * CHUNK + 999]


def test_a_chunk_that_nobody_knows_is_in_no_request(bench: Bench) -> None:
    runs = bench.source.plan([bench.digests[0], bytes(31) + b"x", bench.digests[1]])
    assert [len(run.chunks) for run in runs] == [2]


def test_what_the_cache_has_is_not_fetched(bench: Bench) -> None:
    for number in (1, 3):
        bench.cache.put(bench.digests[number], bench.content[number])
    found = bench.load(bench.digests[0:5])
    assert [found[digest].from_cache for digest in bench.digests[0:5]] == [False, True, False, True, False]
    assert [found[digest].outcome for digest in bench.digests[0:5]] == bench.content[0:5]
    assert sum(length for _, length in bench.store.requests) == 3 * CHUNK


def test_a_damaged_chunk_is_an_error_of_its_own(bench: Bench) -> None:
    with bench.pack().open("r+b") as stream:
        stream.seek(bench.offset(2) + 7)
        stream.write(bytes([bench.content[2][7] ^ 1]))
    found = bench.load(bench.digests[0:4])
    bad = found.pop(bench.digests[2]).outcome
    assert isinstance(bad, DataError)
    assert bench.digests[2].hex() in bad.message
    assert bench.pack().stem in bad.message
    assert [loaded.outcome for loaded in found.values()] == [bench.content[number] for number in (0, 1, 3)]
    assert bench.source.load_now(bench.digests[2]) is None


def test_a_pack_cut_short_has_what_stands_before_the_cut(bench: Bench) -> None:
    os.truncate(bench.pack(), bench.offset(2) + 7)
    found = bench.load(bench.digests[0:4])
    assert [isinstance(found[digest].outcome, DataError) for digest in bench.digests[0:4]] == [
        False,
        False,
        True,
        True,
    ]
    assert bench.source.load_now(bench.digests[3]) is None


def test_a_missing_pack_names_chunk_and_file(bench: Bench) -> None:
    pack = bench.pack()
    pack.unlink()
    outcome = bench.load(bench.digests[0:1])[bench.digests[0]].outcome
    assert isinstance(outcome, DataError)
    assert bench.digests[0].hex() in outcome.message
    assert str(pack) in outcome.message
    assert bench.source.load_now(bench.digests[0]) is None


def test_an_open_pack_in_memory_needs_no_thread(bench: Bench) -> None:
    bench.load(bench.digests[:1])
    bench.pack().read_bytes()
    assert [bench.source.load_now(digest) for digest in bench.digests] == bench.content


def test_a_cache_that_fails_is_said_once_and_costs_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        for number in range(3):
            assert bench.source.keep({bench.digests[number]: bench.content[number]}) == []
    assert len(bench.said) == 1
    assert bench.said[0].startswith("cache cannot keep chunks, serving through it: No space left on device")
    assert bench.source.keep({bench.digests[0]: bench.content[0]}) == [bench.digests[0]]
