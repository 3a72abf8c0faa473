"""The chunk cache: right bytes or nothing, whatever happens to its files."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coldstart_fs.cache import ChunkCache
from coldstart_fs.chunk import chunk_digest
from coldstart_fs.page_cache import read_at

DATA = os.urandom(131072)
DIGEST = chunk_digest(DATA)


class Cache(ChunkCache):
    """A cache that remembers what it logged, read as the server reads it."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        super().__init__(folder, self.said.append)
        self.prepare()

    def whole(self, *, wait: bool = True) -> bytes | bytearray | None:
        return self.read(DIGEST, 0, len(DATA), size_bytes=len(DATA), wait=wait)

    @property
    def file(self) -> Path:
        return self.folder / "chunks-v1" / DIGEST.hex()[:2] / DIGEST.hex()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.mark.parametrize("wait", [True, False])
def test_what_was_put_is_read_whole_and_in_parts(cache: Cache, wait: bool) -> None:
    assert cache.whole(wait=wait) is None
    assert cache.put(DIGEST, DATA)
    for _ in range(2):
        assert cache.whole(wait=wait) == DATA
        assert cache.read(DIGEST, 1000, 77, size_bytes=len(DATA), wait=wait) == DATA[1000:1077]
    again = Cache(cache.folder)
    assert again.read(DIGEST, 131071, 1, size_bytes=len(DATA), wait=wait) == DATA[-1:]
    assert cache.said == again.said == []


def test_it_is_marked_for_backup_programs_and_closed_to_others(cache: Cache) -> None:
    assert (
        (cache.folder / "CACHEDIR.TAG")
        .read_bytes()
        .startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
    )
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    cache.put(DIGEST, DATA)
    assert cache.file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("damage", ["flipped", "short", "long", "empty"])
def test_damage_is_put_aside_and_said(cache: Cache, damage: str, wait: bool) -> None:
    cache.put(DIGEST, DATA)
    content = {
        "flipped": DATA[:5] + bytes([DATA[5] ^ 1]) + DATA[6:],
        "short": DATA[:-1],
        "long": DATA + b"x",
        "empty": b"",
    }[damage]
    cache.file.write_bytes(content)
    fresh = Cache(cache.folder)
    assert fresh.whole(wait=wait) is None
    assert not cache.file.exists()
    assert (cache.folder / "quarantine-v1" / DIGEST.hex()).read_bytes() == content
    assert fresh.quarantined == 1
    assert fresh.said == [f"cached chunk is damaged, fetching it again: blake3:{DIGEST.hex()}"]
    assert fresh.put(DIGEST, DATA)
    assert fresh.whole(wait=wait) == DATA


def test_a_file_that_changes_after_its_first_use_is_verified_anew(cache: Cache) -> None:
    cache.put(DIGEST, DATA)
    assert cache.whole(wait=False) == DATA
    before = cache.file.stat().st_ctime_ns
    while cache.file.stat().st_ctime_ns == before:  # a file's times have the grain of the timer
        with cache.file.open("r+b") as stream:
            stream.write(b"\0" if DATA[:1] != b"\0" else b"\1")
    assert cache.whole(wait=False) is None
    assert cache.quarantined == 1


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "small"
    point.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", point], check=False, timeout=20)
    if made.returncode:
        pytest.skip("cannot mount a small tmpfs")
    yield point
    subprocess.run(["umount", point], check=True, timeout=20)


def test_a_full_disk_keeps_nothing_half_and_says_why(small: Path) -> None:
    cache = Cache(small / "cache")
    assert not cache.put(DIGEST, DATA)
    assert cache.store_failure is not None
    assert cache.store_failure.startswith("No space left on device: ")
    assert cache.whole() is None
    assert [path for path in cache.folder.rglob("*") if path.is_file()] == [cache.folder / "CACHEDIR.TAG"]
    little = b"little"
    assert cache.put(chunk_digest(little), little)
    assert cache.store_failure is None


def test_a_cache_in_memory_answers_without_waiting(small: Path) -> None:
    little = b"little"
    digest = chunk_digest(little)
    cache = Cache(small / "cache")
    cache.put(digest, little)
    for reader in (cache, Cache(small / "cache")):
        assert reader.read(digest, 2, 3, size_bytes=6, wait=False) == b"ttl"


def test_a_read_only_cache_still_serves(small: Path) -> None:
    cache = Cache(small / "cache")
    little = b"little"
    digest = chunk_digest(little)
    cache.put(digest, little)
    subprocess.run(["mount", "-o", "remount,ro", small], check=True, timeout=20)
    late = Cache(small / "cache")
    assert late.read(digest, 0, 6, size_bytes=6, wait=True) == little
    assert not late.put(DIGEST, DATA)
    assert late.store_failure is not None
    assert "Read-only file system" in late.store_failure


def test_a_cache_cleared_under_us_is_filled_again(cache: Cache) -> None:
    cache.put(DIGEST, DATA)
    shutil.rmtree(cache.folder)
    assert cache.whole() is None
    assert cache.put(DIGEST, DATA)
    assert cache.whole() == DATA


def test_what_killed_servers_left_half_written_is_swept(cache: Cache) -> None:
    cache.put(DIGEST, DATA)
    old, new = (cache.folder / "chunks-v1" / f"{name}.tmp" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    long_ago = time.time() - 86400
    os.utime(old, (long_ago, long_ago))
    os.utime(cache.file, (long_ago, long_ago))
    Cache(cache.folder)
    assert not old.exists()
    assert new.exists(), "somebody may be writing it"
    assert cache.file.exists()


def test_many_writers_and_readers_see_only_whole_chunks(tmp_path: Path) -> None:
    caches = [Cache(tmp_path / "cache") for _ in range(3)]
    chunks = [os.urandom(20_000) for _ in range(8)]

    def work(number: int) -> int:
        cache, seen = caches[number % 3], 0
        for data in chunks * 4:
            digest = chunk_digest(data)
            found = cache.read(digest, 0, len(data), size_bytes=len(data), wait=number % 2 == 0)
            assert found is None or found == data
            seen += found is not None
            assert cache.put(digest, data)
        return seen

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(16))) > 0
    assert all(cache.quarantined == 0 for cache in caches)
    assert not list((tmp_path / "cache" / "chunks-v1").glob("*.tmp"))


def test_reading_without_waiting_gives_the_bytes_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for offset, length in [(0, 131072), (0, 131073), (100, 50), (131071, 5), (131072, 5), (200_000, 5)]:
            expected = DATA[offset : offset + length]
            assert read_at(descriptor, offset, length, wait=True) == expected
            assert read_at(descriptor, offset, length, wait=False) in (expected, None)
    finally:
        os.close(descriptor)
