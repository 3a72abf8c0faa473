"""Images are read ahead of criu only where that can help, and never when it is done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_snapshot.restoring import read_ahead
from coldstart_snapshot.restoring.page_cache import chunks, cold_bytes, data_ranges, fetch, resident_bytes
from coldstart_snapshot.restoring.read_ahead import decide, reading_ahead
from conftest import wait_until

_MIB = 1 << 20


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    """A file of 64 MiB that the page cache does not have, with a hole of 16 MiB in it."""
    path = tmp_path / "pages-1.img"
    with path.open("wb") as stream:
        stream.write(os.urandom(24 * _MIB))
        stream.seek(16 * _MIB, os.SEEK_CUR)
        stream.write(os.urandom(24 * _MIB))
        stream.flush()
        os.fsync(stream.fileno())
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        if resident_bytes(descriptor) > _MIB:
            pytest.skip("the file system of the tests does not let go of its page cache")
        yield descriptor
    finally:
        os.close(descriptor)


def test_the_page_cache_is_asked_what_it_has(descriptor: int) -> None:
    assert list(data_ranges(descriptor)) == [(0, 24 * _MIB), (40 * _MIB, 64 * _MIB)]
    fetch(descriptor, 0, 8 * _MIB)
    assert 7 * _MIB < resident_bytes(descriptor, 0, 8 * _MIB) <= 8 * _MIB
    assert 7 * _MIB < resident_bytes(descriptor) < 24 * _MIB
    assert sum(length for _, length in chunks(descriptor, 5 * _MIB)) == 48 * _MIB


def test_a_range_larger_than_the_read_ahead_of_the_device_is_fetched_whole(descriptor: int) -> None:
    fetch(descriptor, 0, 24 * _MIB)
    # less what a kernel that reclaims idle pages by itself, as DAMON does, may have taken
    assert resident_bytes(descriptor, 0, 24 * _MIB) > 20 * _MIB


def test_a_kernel_without_cachestat_is_asked_by_mincore(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(descriptor, 0, 8 * _MIB)
    monkeypatch.setattr("coldstart_snapshot.restoring.page_cache._CACHESTAT", 100_000)
    assert 7 * _MIB < resident_bytes(descriptor, 0, 8 * _MIB) <= 8 * _MIB
    assert resident_bytes(descriptor, 41 * _MIB, _MIB) == 0


@pytest.mark.parametrize(
    ("cold", "cpus", "processes", "readers", "decision"),
    [
        (_MIB, 64, 1, 0, "off: the page cache has the images"),
        (1024 * _MIB, 2, 1, 0, "off: no CPUs to spare, of 2 criu wants 2"),
        (1024 * _MIB, 16, 15, 0, "off: no CPUs to spare, of 16 criu wants 16"),
        (1024 * _MIB, 8, 1, 6, "probing"),
        (1024 * _MIB, 128, 4, 8, "probing"),
    ],
)
def test_cold_images_and_spare_cpus_come_before_any_probe(
    cold: int, cpus: int, processes: int, readers: int, decision: str
) -> None:
    outcome = decide(cold, cpus, processes)
    assert (outcome.readers, outcome.decision) == (readers, decision)


@pytest.mark.parametrize(("least_gain", "whole"), [(0.0, True), (1e9, False)])
def test_what_the_probe_says_decides_whether_all_is_read(
    descriptor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_gain: float, whole: bool
) -> None:
    image = tmp_path / "pages-1.img"
    monkeypatch.setattr(read_ahead, "_LEAST_COLD_BYTES", _MIB)
    monkeypatch.setattr(read_ahead, "_LEAST_CPUS", 1)
    monkeypatch.setattr(read_ahead, "_CHUNK_BYTES", _MIB)
    monkeypatch.setattr(read_ahead, "_LEAST_GAIN", least_gain)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    with reading_ahead([image], processes=1) as outcome:
        wait_until(lambda: outcome.decision.startswith(("on", "off")), "the probe decides")
        if whole:
            wait_until(lambda: cold_bytes((image,)) == 0, "everything is read")
    assert outcome.decision.startswith("on: one reader" if whole else "off: one reader")
    assert outcome.bytes_per_second is not None
    assert (cold_bytes((image,)) > 16 * _MIB) != whole


def test_nothing_is_read_once_criu_is_done(
    descriptor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_LEAST_COLD_BYTES", _MIB)
    monkeypatch.setattr(read_ahead, "_LEAST_CPUS", 1)
    monkeypatch.setattr(read_ahead, "_CHUNK_BYTES", _MIB // 4)
    monkeypatch.setattr(read_ahead, "_LEAST_GAIN", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    image = tmp_path / "pages-1.img"
    with reading_ahead([image], processes=1):
        pass
    left = cold_bytes((image,))
    # what was begun is at most a chunk and the kernel's own read-ahead for each reader
    assert left > 32 * _MIB
    assert cold_bytes((image,)) == left


def test_a_file_system_that_does_not_answer_is_no_reason_to_fail(tmp_path: Path) -> None:
    with reading_ahead([tmp_path / "absent"], processes=1) as outcome:
        pass
    assert outcome.decision == "off: No such file or directory"
