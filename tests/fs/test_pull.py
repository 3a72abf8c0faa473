"""A whole image into the cache: large requests, resumed, limited, and then used without a store."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.errors import IoFailure
from coldstart_fs.content.pull import PullReport, pull_image
from coldstart_fs.content.room import CacheLimits
from coldstart_fs.format.names import digest_text
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.store_url import open_store
from fs import servers
from fs.mounts import flip, small_disk
from fs.readers import CHUNK, Desk, reader_desk

CONTENT = random.Random(29).randbytes(60 * CHUNK + 77)
OTHER = random.Random(31).randbytes(3 * CHUNK)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with reader_desk(tmp_path, CONTENT, other=OTHER) as desk:
        yield desk


def pull(desk: Desk, **settings: Any) -> PullReport:
    desk.server.requests.clear()
    settings = {"cache": desk.cache, "tell": desk.said.append} | settings
    return pull_image("image", open_store(desk.server.url), **settings)


def served_offline(desk: Desk) -> None:
    """The image whole, with a store that answers nothing."""
    desk.server.fault = servers.answer(503)
    reader = desk.reader()
    assert bytes(reader.read(desk.number, 0, len(CONTENT))) == CONTENT
    number = reader.index.lookup(0, b"other")
    assert number is not None
    assert bytes(reader.read(number, 0, len(OTHER))) == OTHER
    assert desk.ranges() == []
    desk.server.fault = lambda _: False


def test_a_pulled_image_is_served_without_its_store(desk: Desk) -> None:
    report = pull(desk)
    assert (report.name, report.packs, report.whole_packs) == ("image", 1, 1)
    assert report.needed_bytes == report.fetched_bytes == len(CONTENT) + len(OTHER)
    assert len(desk.ranges()) <= 3
    served_offline(desk)
    assert desk.copy().read_bytes() == desk.pack().read_bytes()


def test_a_second_pull_verifies_and_fetches_nothing(desk: Desk) -> None:
    pull(desk)
    report = pull(desk)
    assert (report.fetched_bytes, report.whole_packs) == (0, 1)
    assert desk.ranges() == []


def test_what_is_there_already_is_not_fetched_and_damage_is(desk: Desk) -> None:
    reader = desk.reader()
    reader.read(desk.number, 10 * CHUNK, 20 * CHUNK)
    reader.close()
    desk.opened.clear()
    report = pull(desk)
    assert report.fetched_bytes == len(CONTENT) + len(OTHER) - 20 * CHUNK
    flip(desk.copy(), desk.chunk(33).offset + 5)
    assert pull(desk).fetched_bytes == CHUNK
    assert desk.ranges() == [(desk.chunk(33).offset, desk.chunk(33).end - 1)]
    assert any("cached chunk is damaged" in line for line in desk.said)


def test_a_pull_that_fails_says_what_is_missing_and_goes_on_when_run_again(desk: Desk) -> None:
    failing = [True]

    def fault(handler: servers.FaultyHandler) -> bool:
        beyond = (
            int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0]) >= 4 << 20
        )
        return "/packs/" in handler.path and beyond and failing[0] and servers.answer(404)(handler)

    desk.server.fault = fault
    with pytest.raises(Exception, match="bytes are missing; run the pull again to go on"):
        pull(desk)
    failing[0] = False
    report = pull(desk)
    assert 0 < report.fetched_bytes < report.needed_bytes
    served_offline(desk)


def test_a_rate_is_kept(desk: Desk) -> None:
    started = time.monotonic()
    pull(desk, bytes_per_second=8e6)
    assert time.monotonic() - started > (len(CONTENT) - (8 << 20) / 2) / 8e6 * 0.7
    assert max(last + 1 - first for first, last in desk.ranges()) <= 8 << 20


def test_a_dry_run_counts_and_fetches_nothing(desk: Desk) -> None:
    report = pull(desk, dry_run=True)
    assert report.fetched_bytes == report.needed_bytes
    assert desk.ranges() == []
    pull(desk)
    assert pull(desk, dry_run=True).fetched_bytes == 0


def test_a_pack_that_other_images_have_more_in_is_pulled_in_part(desk: Desk) -> None:
    tree = desk.folder / "second"
    tree.mkdir()
    (tree / "part").write_bytes(CONTENT[8 * CHUNK : 20 * CHUNK])
    (tree / "own").write_bytes(random.Random(37).randbytes(CHUNK))
    digest = index_image(
        f"dir:{tree}", store=open_store(str(desk.folder / "store"), create=True), name="second"
    ).digest
    report = pull_image(digest_text(digest), open_store(desk.server.url), desk.cache)
    assert (report.packs, report.whole_packs) == (2, 1)
    assert report.fetched_bytes == 13 * CHUNK


def test_a_folder_of_this_host_needs_no_pull(desk: Desk) -> None:
    report = pull_image("image", open_store(str(desk.folder / "store")), desk.cache)
    assert report.in_place
    assert not (desk.cache / "packs-v2").exists()


@pytest.mark.parametrize("limits", [CacheLimits(quota_bytes=1 << 20), CacheLimits(free_bytes=0)])
def test_a_cache_without_room_ends_the_pull_with_the_reason(desk: Desk, limits: CacheLimits) -> None:
    with small_disk(desk.folder / "small", "4m") as disk:
        with pytest.raises(IoFailure, match="cache cannot keep the image: ") as refusal:
            pull(desk, cache=disk / "cache", limits=limits)
        assert "cache.quota_bytes" in (refusal.value.hint or "")


def test_pulling_leaves_a_mount_that_reads_meanwhile_alone(desk: Desk) -> None:
    reader = desk.reader()
    first = bytes(reader.read(desk.number, 0, 4 * CHUNK))
    pull(desk)
    assert bytes(reader.read(desk.number, 0, len(CONTENT))) == CONTENT
    assert first == CONTENT[: 4 * CHUNK]
    assert desk.fetched_bytes <= len(CONTENT) + len(OTHER) - 4 * CHUNK + os.stat(desk.pack()).st_size % CHUNK


def test_pulls_at_once_all_succeed_fetch_once_and_report_no_damage(desk: Desk) -> None:
    def slowly(_: servers.FaultyHandler) -> bool:
        time.sleep(0.02)  # so that each meets what the others are filling
        return False

    desk.server.fault = slowly
    with ThreadPoolExecutor(3) as pool:
        pulls = [pool.submit(pull, desk, bytes_per_second=40e6) for _ in range(3)]
        reports = [one.result(120) for one in pulls]
    assert [report.whole_packs for report in reports] == [1, 1, 1]
    assert sum(report.fetched_bytes for report in reports) == len(CONTENT) + len(OTHER)
    assert [line for line in desk.said if "damaged" in line] == []
    assert not (desk.cache / "quarantine-v1").exists()
    desk.reader()
    assert desk.copy().read_bytes() == desk.pack().read_bytes()


def test_a_pull_ends_while_others_go_on_writing_to_the_pack(desk: Desk) -> None:
    pull(desk)
    desk.reader()
    done = threading.Event()

    def write() -> None:
        with desk.copy().open("r+b") as stream:
            first = stream.read(1)
            while not done.wait(0.002):
                os.pwrite(stream.fileno(), first, 0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert pull(desk).fetched_bytes == 0
    finally:
        done.set()
        writer.join()
