"""Bytes of an image for threads: what a file holds, at hand or waited for, fetched once, never wrong."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, ColdstartError, DataError, UnreachableError
from coldstart_fs.content import reader as reader_module
from coldstart_fs.format.chunk import Compression
from conftest import wait_until
from fs import servers
from fs.readers import CHUNK, Desk, reader_desk

_MAKE = random.Random(11)
CONTENT = _MAKE.randbytes(20 * CHUNK) + bytes(CHUNK) + _MAKE.randbytes(999)
TEXT = b"".join(b"%d bottles of water on the wall\n" % number for number in range(40_000))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with reader_desk(tmp_path, CONTENT) as desk:
        yield desk


@pytest.fixture(params=["remote", "in place", "compressed"])
def any_desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    compressed = request.param == "compressed"
    with reader_desk(
        tmp_path, TEXT if compressed else CONTENT, compression=Compression() if compressed else None
    ) as desk:
        desk.reader(url=str(tmp_path / "store") if request.param == "in place" else None)
        yield desk


RANGES = [
    (0, 10),
    (CHUNK - 5, 10),
    (0, 5 * CHUNK),
    (20 * CHUNK + 7, 100),
    (19 * CHUNK, 999_999),
    (3, 1 << 30),
]


@pytest.mark.parametrize(("offset", "length"), RANGES)
def test_a_range_is_what_the_file_holds_waited_for_or_at_hand(
    any_desk: Desk, offset: int, length: int
) -> None:
    expected = any_desk.content[offset : offset + length]
    reader = any_desk.opened[0]
    assert bytes(reader.read(any_desk.number, offset, length)) == expected
    found = reader.at_hand(any_desk.number, offset, length)
    assert found is None or bytes(found) == expected
    wait_until(lambda: reader.at_hand(any_desk.number, offset, length) is not None, "bytes at hand")


def test_beyond_the_end_there_is_nothing(desk: Desk) -> None:
    reader = desk.reader()
    for offset in (len(CONTENT), len(CONTENT) + 5 * CHUNK):
        assert bytes(reader.read(desk.number, offset, 10)) == b""
        assert reader.at_hand(desk.number, offset, 10) == b""


def test_what_nobody_has_fetched_is_not_at_hand_and_holes_always_are(desk: Desk) -> None:
    reader = desk.reader()
    assert reader.at_hand(desk.number, 0, 10) is None
    assert reader.at_hand(desk.number, 19 * CHUNK, 2 * CHUNK) is None
    assert reader.at_hand(desk.number, 20 * CHUNK + 5, 100) == bytes(100)
    assert desk.ranges() == []


def test_neighbours_come_in_one_request_and_nothing_that_was_not_asked_for(desk: Desk) -> None:
    reader = desk.reader()
    reader.read(desk.number, 3 * CHUNK + 5, 4 * CHUNK)
    first, last = desk.chunk(3), desk.chunk(7)
    assert desk.ranges() == [(first.offset, last.end - 1)]
    reader.settle()
    reader.read(desk.number, CHUNK, 9 * CHUNK)  # what is here is not fetched again
    assert sorted(desk.ranges()[1:]) == [
        (desk.chunk(1).offset, desk.chunk(2).end - 1),
        (desk.chunk(8).offset, desk.chunk(9).end - 1),
    ]


def test_many_readers_of_one_chunk_cause_one_request(desk: Desk) -> None:
    reader = desk.reader()
    desk.server.fault = servers.slowly(0.2)
    with ThreadPoolExecutor(16) as pool:
        parts = [pool.submit(reader.read, desk.number, 4 * CHUNK + place, 100) for place in range(16)]
        for place, part in enumerate(parts):
            assert bytes(part.result(60)) == CONTENT[4 * CHUNK + place : 4 * CHUNK + place + 100]
    assert len(desk.ranges()) == 1


def test_readers_that_wait_are_counted(desk: Desk) -> None:
    reader = desk.reader()
    go_on = threading.Event()
    desk.server.fault = lambda _: not go_on.wait(60)
    answered = threading.Event()
    reader.read_later(desk.number, 0, 10, lambda _: answered.set())
    wait_until(lambda: reader.demand_waiting == 1, "a reader that waits")
    assert not answered.is_set()
    go_on.set()
    assert answered.wait(60)
    assert reader.demand_waiting == 0


def test_errors_go_to_all_who_wait_and_are_not_remembered(desk: Desk) -> None:
    reader = desk.reader()
    desk.server.fault = servers.answer(404)
    with ThreadPoolExecutor(4) as pool:
        reads = [pool.submit(reader.read, desk.number, 0, 10) for _ in range(4)]
        for read in reads:
            with pytest.raises(DataError, match="chunk cannot be fetched: blake3:"):
                read.result(60)
    desk.server.fault = lambda _: False
    assert bytes(reader.read(desk.number, 0, 10)) == CONTENT[:10]
    assert reader.counters()["failed_chunks"] >= 1


def test_a_damaged_chunk_costs_its_neighbours_nothing_and_is_never_kept(desk: Desk) -> None:
    reader = desk.reader()
    with desk.pack().open("r+b") as stream:
        stream.seek(desk.chunk(2).offset + 7)
        stream.write(bytes([CONTENT[2 * CHUNK + 7] ^ 1]))
    bad = desk.chunk(2)
    with pytest.raises(DataError) as refusal:
        reader.read(desk.number, 0, 4 * CHUNK)
    assert bad.digest.hex() in refusal.value.message
    assert bad.pack.hex() in refusal.value.message
    assert refusal.value.hint is not None
    requests = len(desk.ranges())
    for place in (0, 1, 3):
        assert bytes(reader.read(desk.number, place * CHUNK, CHUNK)) == desk.part(place)
    assert len(desk.ranges()) == requests
    wait_until(lambda: desk.copy().stat().st_size >= desk.chunk(3).end, "the other chunks in the cache")
    assert desk.copy().read_bytes()[bad.offset : bad.end] == bytes(CHUNK)


def test_a_pack_that_was_cut_short_has_what_stands_before_the_cut(desk: Desk) -> None:
    reader = desk.reader()
    os.truncate(desk.pack(), desk.chunk(2).offset + 7)
    with pytest.raises(DataError):
        reader.read(desk.number, 0, 4 * CHUNK)
    assert bytes(reader.read(desk.number, 0, 2 * CHUNK)) == desk.part(0, 2)


def test_a_silent_server_costs_a_reader_its_deadline_and_others_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = desk.reader()
    reader.read(desk.number, 0, CHUNK)
    desk.server.fault = servers.silence
    with monkeypatch.context() as hurry:
        hurry.setattr(reader_module, "READ_SECONDS", 0.4)
        with pytest.raises((BusyError, UnreachableError), match="no answer in"):
            reader.read(desk.number, 5 * CHUNK, 10)
    assert bytes(reader.read(desk.number, 0, CHUNK)) == desk.part(0)


def test_each_demand_read_is_told_once(desk: Desk) -> None:
    reader = desk.reader()
    told: list[tuple[int, int, int]] = []
    reader.observer = lambda *read: told.append(read)
    for _ in range(2):
        if reader.at_hand(desk.number, 0, 10) is None:
            reader.read(desk.number, 0, 10)
    assert told == [(desk.number, 0, 10)] * 2


def test_a_store_of_this_host_is_read_in_place_and_its_damage_is_met_while_it_is_open(desk: Desk) -> None:
    reader = desk.reader(url=str(desk.folder / "store"))
    assert bytes(reader.read(desk.number, 0, 1 << 30)) == CONTENT
    assert not (desk.cache / "packs-v2").exists()
    with desk.pack().open("r+b") as stream:
        stream.seek(desk.chunk(2).offset + 7)
        stream.write(bytes([CONTENT[2 * CHUNK + 7] ^ 1]))
    assert reader.at_hand(desk.number, 2 * CHUNK, 100) is None
    with pytest.raises(DataError):
        reader.read(desk.number, 2 * CHUNK, 100)
    assert bytes(reader.read(desk.number, 3 * CHUNK, CHUNK)) == desk.part(3)


def test_a_reader_that_is_closed_wakes_who_waits(desk: Desk) -> None:
    reader = desk.reader()
    desk.server.fault = servers.silence
    outcomes: list[object] = []
    reader.read_later(desk.number, 0, 10, outcomes.append)
    reader.close()
    desk.opened.remove(reader)
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], ColdstartError)
