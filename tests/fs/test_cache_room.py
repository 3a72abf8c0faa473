"""Quota and free space of the cache: the least recently used goes, nothing that a mount has open does."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import pytest

from coldstart_fs.content import room as room_module
from coldstart_fs.content.reader import ImageReader
from coldstart_fs.content.room import CacheLimits, copies_of, free_bytes, remove_copy
from coldstart_fs.content.sweep import sweep
from conftest import wait_until
from fs.mounts import small_disk
from fs.readers import CHUNK, Desk, reader_desk

CONTENT = random.Random(19).randbytes(16 * CHUNK)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with reader_desk(tmp_path, CONTENT) as desk:
        yield desk


def other_copy(cache: Path, name: str, size: int, *, days_ago: float) -> Path:
    """A copy of some other pack, as images that were used then left it."""
    path = cache / "packs-v2" / name[:2] / f"{name}.pack"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    then = time.time() - days_ago * 86400
    os.utime(path, (then, then))
    return path


def read(desk: Desk, reader: ImageReader) -> None:
    for place in range(0, 16, 4):
        assert bytes(reader.read(desk.number, place * CHUNK, 4 * CHUNK)) == desk.part(place, 4)
    wait_until(lambda: not reader._flights.any, "the end of all writing")


def test_a_quota_is_kept_by_removing_what_was_used_longest_ago(desk: Desk) -> None:
    old = [other_copy(desk.cache, f"{number:02}", 1 << 20, days_ago=10 - number) for number in range(4)]
    reader = desk.reader(limits=CacheLimits(quota_bytes=5 << 20, free_bytes=0))
    read(desk, reader)
    wait_until(
        lambda: sum(copy.size_bytes for copy in copies_of(desk.cache)) <= 5 << 20, "a cache within its quota"
    )
    assert not old[0].exists()
    assert old[3].exists()
    assert reader.counters()["cache_failure"] is None
    assert any(line.startswith("cache made room") for line in desk.said)


def test_what_a_mount_has_open_stays_and_the_rest_is_served_through(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_module, "_MEASURED_SECONDS", 0.0)
    first = desk.reader(limits=CacheLimits(free_bytes=0))
    read(desk, first)
    copy = desk.copy()
    with reader_desk(_folder(desk), random.Random(23).randbytes(16 * CHUNK)) as other:
        reader = other.reader(cache=desk.cache, limits=CacheLimits(quota_bytes=2 << 20, free_bytes=0))
        for place in range(16):
            assert bytes(reader.read(other.number, place * CHUNK, CHUNK)) == other.part(place)
        wait_until(lambda: reader.counters()["cache_failure"], "a word about the quota")
        assert "its quota of 2097152 bytes is reached" in reader.counters()["cache_failure"]
        assert copy.exists()
        reader.settle()  # what it still fills would find room there, too
        first.close()
        desk.opened.remove(first)
        then = time.time() - 86400
        os.utime(copy, (then, then))
        again = other.reader(cache=desk.cache, limits=CacheLimits(quota_bytes=2 << 20, free_bytes=0))
        bytes(again.read(other.number, 0, 15 * CHUNK))
        wait_until(lambda: not copy.exists(), "room made of what nobody has open any more")


def _folder(desk: Desk) -> Path:
    folder = desk.folder / "second"
    folder.mkdir()
    return folder


def test_some_of_the_disk_stays_free(desk: Desk) -> None:
    with small_disk(desk.folder / "small", "6m") as disk:
        old = other_copy(disk / "cache", "aa", 3 << 20, days_ago=1)
        reader = desk.reader(cache=disk / "cache", limits=CacheLimits(free_bytes=2 << 20))
        read(desk, reader)
        assert not old.exists()
        assert free_bytes(disk) >= 2 << 20
        reader.close()
        desk.opened.clear()


def test_a_copy_that_is_open_or_whose_lease_cannot_be_asked_is_not_removed(desk: Desk) -> None:
    reader = desk.reader()
    read(desk, reader)
    assert not remove_copy(desk.copy())
    assert not remove_copy(desk.cache / "absent")
    link = desk.cache / "link"
    link.symlink_to(other_copy(desk.cache, "bb", 10, days_ago=1))
    assert not remove_copy(link)
    reader.close()
    desk.opened.clear()
    assert remove_copy(desk.copy())


def test_a_copy_removed_between_opening_and_leasing_is_made_anew(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coldstart_fs.content import pack_file

    first = desk.reader()
    read(desk, first)
    first.settle()
    first.close()
    desk.opened.clear()
    copy, lease, removed = desk.copy(), pack_file._lease, []
    opening = Lock()

    def remove_first(descriptor: int) -> bool:
        with opening:  # several threads may open it at once
            if not removed:
                removed.append(remove_copy(copy))
        return lease(descriptor)

    monkeypatch.setattr(pack_file, "_lease", remove_first)
    reader = desk.reader()
    read(desk, reader)
    assert removed == [True]
    assert copy.stat().st_blocks > 0


def test_older_formats_and_old_quarantine_are_swept_when_nobody_uses_them(desk: Desk) -> None:
    chunk = desk.cache / "chunks-v1" / "ab" / ("ab" * 32)
    bad = desk.cache / "quarantine-v1" / ("cd" * 32)
    for path in (chunk, bad):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    assert sweep(desk.cache) == []
    then = time.time() - 40 * 86400
    for path in (chunk.parent, chunk.parent.parent, bad):
        os.utime(path, (then, then))
    assert sweep(desk.cache, dry_run=True) == [desk.cache / "chunks-v1", bad]
    assert chunk.exists()
    desk.reader()
    wait_until(lambda: not (desk.cache / "chunks-v1").exists() and not bad.exists(), "the sweep of a start")
