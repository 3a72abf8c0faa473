"""Damage in the cache and in the store: right bytes or EIO with a reason, never wrong, never latched."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_fs.format.names import digest_text
from coldstart_fs.mounts.kernel_mounts import unmount_now
from coldstart_fs.mounts.mount import mount_detached
from conftest import wait_until
from fs.mounts import CHUNK_BYTES, Lab, flip, forget_pages
from fs.servers import faulty_server

_MAKE = random.Random(3)
CONTENT = _MAKE.randbytes(5 * CHUNK_BYTES + 123)
OTHER = _MAKE.randbytes(2 * CHUNK_BYTES)


@pytest.fixture
def image(lab: Lab) -> Lab:
    lab.image(data=CONTENT, other=OTHER)
    return lab


@pytest.fixture
def remote(image: Lab) -> Iterator[Lab]:
    """The same image behind HTTP: only what comes over a network is cached."""
    with faulty_server(image.store) as server:
        image.url = server.url
        yield image


def cache_everything(lab: Lab, mountpoint: Path) -> None:
    """Read the file, and wait until the cache has all of it."""
    assert (mountpoint / "data").read_bytes() == CONTENT
    for digest, place in lab.places("data"):
        wait_until(lambda digest=digest, place=place: lab.is_cached(digest, place), "the chunk in the cache")
    # before Linux 6.13 a file's times have the grain of the timer: two changes in one tick look like one
    now = time.monotonic()
    wait_until(lambda: time.monotonic() - now > 0.02, "the next tick")


def quarantined(lab: Lab) -> list[str]:
    folder = lab.cache / "quarantine-v1"
    return sorted(os.listdir(folder)) if folder.exists() else []


def read_fails(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno == errno.EIO
    return False


@pytest.mark.parametrize("while_mounted", [False, True])
def test_a_flipped_bit_in_the_cache_is_healed(remote: Lab, while_mounted: bool) -> None:
    record = remote.mount()
    cache_everything(remote, record.mountpoint)
    digest, place = remote.places("data")[2]
    if not while_mounted:
        remote.unmount(record)
    flip(remote.cached(place), place.offset + 777)
    if not while_mounted:
        record = remote.mount()
    forget_pages(record.mountpoint / "data")
    assert (record.mountpoint / "data").read_bytes() == CONTENT
    assert quarantined(remote) == [digest.hex()]
    assert f"cached chunk is damaged, fetching it again: {digest_text(digest)}" in remote.log(record)
    wait_until(lambda: remote.is_cached(digest, place), "the healed chunk in the cache")


@pytest.mark.parametrize("while_mounted", [False, True])
@pytest.mark.parametrize("length", [0, 1000, 3 * CHUNK_BYTES + 5, 1 << 30])
def test_a_copy_of_a_pack_of_the_wrong_length_is_healed(
    remote: Lab, length: int, while_mounted: bool
) -> None:
    record = remote.mount()
    cache_everything(remote, record.mountpoint)
    places = remote.places("data")
    if not while_mounted:
        remote.unmount(record)
    os.truncate(remote.cached(places[0][1]), length)
    if not while_mounted:
        record = remote.mount()
    forget_pages(record.mountpoint / "data")
    assert (record.mountpoint / "data").read_bytes() == CONTENT
    for digest, place in places:
        wait_until(
            lambda digest=digest, place=place: remote.is_cached(digest, place),
            "the healed chunk in the cache",
        )


def test_a_copy_that_was_emptied_and_filled_with_zeros_is_no_data(remote: Lab) -> None:
    record = remote.mount()
    cache_everything(remote, record.mountpoint)
    copy = remote.cached(remote.places("data")[0][1])
    size = copy.stat().st_size
    os.truncate(copy, 0)
    os.truncate(copy, size)
    copy.read_bytes()  # the zeros are in memory now
    forget_pages(record.mountpoint / "data")
    assert (record.mountpoint / "data").read_bytes() == CONTENT
    assert quarantined(remote) == []


def test_a_cache_deleted_under_a_mount_is_filled_again(remote: Lab) -> None:
    record = remote.mount()
    cache_everything(remote, record.mountpoint)
    shutil.rmtree(remote.cache)
    forget_pages(record.mountpoint / "data")
    cache_everything(remote, record.mountpoint)


def test_a_flipped_bit_in_a_pack_is_an_error_with_its_reason_until_it_is_repaired(image: Lab) -> None:
    digest, place = image.places("data")[3]
    flip(image.pack(place), place.offset + 5)
    record = image.mount()
    data = record.mountpoint / "data"
    for _ in range(2):
        assert read_fails(data)
    with data.open("rb", buffering=0) as stream:  # the other chunks of the same file are fine
        assert os.pread(stream.fileno(), 3 * CHUNK_BYTES, 0) == CONTENT[: 3 * CHUNK_BYTES]
        assert (
            os.pread(stream.fileno(), CHUNK_BYTES, 4 * CHUNK_BYTES)
            == CONTENT[4 * CHUNK_BYTES :][:CHUNK_BYTES]
        )
    assert (record.mountpoint / "other").read_bytes() == OTHER
    log = image.log(record)
    assert digest_text(digest) in log
    assert digest_text(place.pack) in log
    key = image.pack(place).relative_to(image.store)
    assert f"; remove {key} from the store and index the image again" in log
    assert not image.cached(place).exists()
    assert image.counters(record, failed_chunks=2)["failed_requests"] >= 2
    flip(image.pack(place), place.offset + 5)
    assert data.read_bytes() == CONTENT


def test_a_pack_that_is_missing_is_an_error_until_it_is_back(image: Lab) -> None:
    _, place = image.places("data")[0]
    pack = image.pack(place)
    pack.rename(pack.with_suffix(".away"))
    record = image.mount()
    assert read_fails(record.mountpoint / "data")
    assert sorted(os.listdir(record.mountpoint)) == ["data", "other"]
    assert f"object is not in the store: {pack}" in image.log(record)
    pack.with_suffix(".away").rename(pack)
    assert (record.mountpoint / "data").read_bytes() == CONTENT


def test_a_pack_that_was_cut_short_serves_what_it_has(image: Lab) -> None:
    _, place = image.places("data")[2]
    whole = image.pack(place).read_bytes()
    os.truncate(image.pack(place), place.offset + 10)
    record = image.mount()
    with (record.mountpoint / "data").open("rb", buffering=0) as stream:
        assert os.pread(stream.fileno(), 2 * CHUNK_BYTES, 0) == CONTENT[: 2 * CHUNK_BYTES]
        with pytest.raises(OSError, match=r".") as refusal:
            os.pread(stream.fileno(), 100, 2 * CHUNK_BYTES)
        assert refusal.value.errno == errno.EIO
    assert "object is cut short" in image.log(record)
    image.pack(place).write_bytes(whole)
    assert (record.mountpoint / "data").read_bytes() == CONTENT


def test_what_is_cached_is_served_without_the_store(remote: Lab) -> None:
    record = remote.mount()
    cache_everything(remote, record.mountpoint)
    remote.unmount(record)
    shutil.rmtree(remote.store / "packs")
    record = remote.mount()
    assert (record.mountpoint / "data").read_bytes() == CONTENT


def test_a_folder_is_read_in_place(image: Lab) -> None:
    record = image.mount()
    for _ in range(2):
        assert (record.mountpoint / "data").read_bytes() == CONTENT
        forget_pages(record.mountpoint / "data")
    assert image.counters(record, store_chunks=6)["store_chunks"] == 6
    assert not (image.cache / "packs-v2").exists()


def test_readers_of_one_cold_file_fetch_each_chunk_once(remote: Lab) -> None:
    record = remote.mount()
    together = Barrier(8)

    def read() -> bytes:
        together.wait(60)
        return (record.mountpoint / "data").read_bytes()

    with ThreadPoolExecutor(8) as readers:
        outcomes = [reading.result(60) for reading in [readers.submit(read) for _ in range(8)]]
    assert outcomes == [CONTENT] * 8
    assert remote.counters(record, store_chunks=6)["store_chunks"] == 6


def test_a_second_mount_takes_its_chunks_from_the_same_cache(remote: Lab) -> None:
    first, second = remote.mount("one", alone=True), remote.mount("two", alone=True)
    cache_everything(remote, first.mountpoint)
    assert (second.mountpoint / "data").read_bytes() == CONTENT
    counters = remote.counters(second, cache_chunks=6)
    assert counters["store_chunks"] == counters["failed_requests"] == 0
    (second.mountpoint / "other").read_bytes()
    remote.unmount(first)
    forget_pages(second.mountpoint / "data")
    assert (second.mountpoint / "data").read_bytes() == CONTENT


def test_equal_chunks_of_two_images_are_cached_once(remote: Lab) -> None:
    remote.image("another", copy=CONTENT)
    first, second = remote.mount("one"), remote.mount("two", name="another")
    cache_everything(remote, first.mountpoint)
    assert (second.mountpoint / "copy").read_bytes() == CONTENT
    assert remote.counters(second, cache_chunks=6)["store_chunks"] == 0


@pytest.fixture
def small_disk(lab: Lab) -> Iterator[Path]:
    folder = lab.folder / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], timeout=60, check=True)
    yield folder
    unmount_now(folder)


def test_a_full_cache_serves_through(remote: Lab, small_disk: Path) -> None:
    lab = remote
    content = random.Random(5).randbytes(24 * CHUNK_BYTES)
    lab.image("full", large=content)
    record = lab.mount(cache=small_disk / "cache", name="full")
    large = record.mountpoint / "large"
    for _ in range(2):
        assert large.read_bytes() == content
        forget_pages(large)
    said = "cache cannot keep chunks, serving through it: "
    # the limit's words, or the disk's own where it was full before the limit was looked at
    full = re.compile("its disk is full but for the|No space left on device")
    wait_until(lambda: full.search(lab.log(record).partition(said)[2]), "a word about the full cache")
    assert full.search(lab.counters(record, store_chunks=24)["cache_failure"])
    lab.unmount(record)
    record = lab.mount(cache=small_disk / "cache", name="full")  # what the disk had no room for is no data
    assert large.read_bytes() == content
    assert lab.counters(record, cache_chunks=1)["quarantined_chunks"] == 0
    lab.unmount(record)


def test_the_limits_of_a_mount_reach_its_server(remote: Lab) -> None:
    record = remote.mount(cache_quota_bytes=2 * CHUNK_BYTES, cache_free_bytes=0)
    assert (record.mountpoint / "data").read_bytes() == CONTENT
    wait_until(
        lambda: (
            "its quota of 262144 bytes is reached" in (remote.counters(record).get("cache_failure") or "")
        ),
        "a word about the quota",
    )


@pytest.mark.parametrize("made", [False, True])
def test_a_read_only_cache_serves_through(remote: Lab, small_disk: Path, made: bool) -> None:
    lab = remote
    if made:
        lab.unmount(lab.mount(cache=small_disk / "cache"))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], timeout=60, check=True)
    record = lab.mount(cache=small_disk / "cache")
    assert (record.mountpoint / "data").read_bytes() == CONTENT
    wait_until(
        lambda: "Read-only file system" in lab.log(record) + " ".join(record.notes), "a word about the cache"
    )
    lab.unmount(record)


def test_a_damaged_index_is_never_mounted(image: Lab) -> None:
    index = image.store / "images" / f"{image.digests['image'].hex()}.index"
    flip(index, index.stat().st_size - 3)
    with pytest.raises(DataError, match=re.escape(f"index is damaged: {index}")):
        image.mount()
    index.unlink()
    with pytest.raises(NotFoundError, match=re.escape(str(index))):
        image.mount()


def test_a_damaged_locator_is_never_mounted(image: Lab) -> None:
    locator = image.store / "locators" / f"{image.digests['image'].hex()}.locator"
    flip(locator, locator.stat().st_size - 3)
    with pytest.raises(DataError, match=re.escape(f"locator is damaged: {locator}")):
        image.mount()


def test_an_index_of_a_newer_coldstart_is_refused_by_name(image: Lab) -> None:
    index = image.store / "images" / f"{image.digests['image'].hex()}.index"
    content = bytearray(index.read_bytes())
    content[8] = 2
    index.write_bytes(content)
    with pytest.raises(DataError, match=r"index has format 2, coldstart .* reads up to 1") as refusal:
        mount_detached(image.request())
    assert "coldstart" in (refusal.value.hint or "")
