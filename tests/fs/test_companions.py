"""What comes along with a fetch, within a bound on what nobody reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_fs.content.companions import Kind
from coldstart_fs.content.reader import ImageReader
from fs.readers import CHUNK, Desk, reader_desk

_MAKE = random.Random(47)
SMALL = {f"m{number:03}": _MAKE.randbytes(3000) for number in range(200)}
LARGE = _MAKE.randbytes(64 * CHUNK)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with reader_desk(tmp_path, LARGE, **SMALL) as desk:
        yield desk


def read(reader: ImageReader, name: str) -> bytes:
    number = reader.index.lookup(0, name.encode())
    assert number is not None
    found = reader.at_hand(number, 0, 5000)
    if found is None:
        found = reader.read(number, 0, 5000)
        reader.settle()
    return bytes(found)


def test_small_files_of_a_folder_come_in_few_requests(desk: Desk) -> None:
    reader = desk.reader()
    for name, content in SMALL.items():
        assert read(reader, name) == content
    assert len(desk.ranges()) < 10
    assert desk.fetched_bytes == sum(map(len, SMALL.values()))
    counters = reader.counters()
    assert counters["companion_bytes"] == counters["companion_used_bytes"] > 500_000


def test_small_files_are_brought_backwards_too(desk: Desk) -> None:
    reader = desk.reader()
    for name, content in reversed(SMALL.items()):
        assert read(reader, name) == content
    assert len(desk.ranges()) < 15


def test_the_next_chunk_of_a_large_file_comes_along(desk: Desk) -> None:
    reader = desk.reader()
    reader.read(desk.number, 10 * CHUNK, 100)
    reader.settle()
    assert desk.ranges() == [(desk.chunk(10).offset, desk.chunk(11).end - 1)]
    assert bytes(reader.at_hand(desk.number, 11 * CHUNK, CHUNK) or b"") == desk.part(11)


def test_what_nobody_reads_is_bounded_by_what_is_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldstart_fs.content.companions._BEGINNING_BYTES", 4 * CHUNK)
    reader = desk.reader()
    for place in range(0, 64, 3):  # the next chunk is never the one that is wanted
        reader.read(desk.number, place * CHUNK, CHUNK)
        reader.settle()
    wanted = 22 * CHUNK
    assert wanted < desk.fetched_bytes <= wanted * 1.25 + 5 * CHUNK


def test_neighbours_that_cannot_be_had_cost_the_reader_nothing(desk: Desk) -> None:
    reader = desk.reader()
    number = reader.index.lookup(0, b"m101")
    assert number is not None
    bad = reader.chunks.file(number)[0]
    assert bad is not None
    with desk.pack().open("r+b") as stream:
        stream.seek(bad.offset)
        stream.write(bytes([SMALL["m101"][0] ^ 1]))
    assert read(reader, "m100") == SMALL["m100"]
    assert read(reader, "m102") == SMALL["m102"]


def test_ranges_behind_the_end_of_a_file_name_no_chunks(desk: Desk) -> None:
    # as headers of libraries say them, which may lie
    reader = desk.reader()
    everything = list(reader.unseen(desk.number, [(0, 1 << 40)]))
    assert len(everything) == 64
    assert not list(reader.unseen(desk.number, [(1 << 50, 1 << 40), (len(LARGE), 1)]))


def test_what_is_brought_for_one_reason_in_vain_leaves_room_for_others(desk: Desk) -> None:
    companions = desk.reader().bringer.companions
    vain, good = Kind("vain"), Kind("good")
    chunks = [desk.chunk(place) for place in range(64)]
    assert companions.room_bytes(vain) == companions.room_bytes(good) == 384 << 10
    companions.brought(chunks[:8], vain)
    assert companions.room_bytes(vain) < 0
    companions.brought(chunks[8:10], good)
    for chunk in chunks[8:10]:
        companions.used(chunk)
    assert companions.room_bytes(good) == (384 << 10) + 2 * CHUNK
    assert companions.brought_bytes == 10 * CHUNK
    companions.brought(chunks[8:12], good)
    assert companions.room_bytes(good) == (384 << 10) - 2 * CHUNK


def test_there_are_never_too_many_reasons(desk: Desk) -> None:
    companions = desk.reader().bringer.companions
    for number in range(600):
        companions.brought([desk.chunk(number % 64)], Kind("folder", b"%d" % number))
        companions.used(desk.chunk(number % 64))
    assert companions.used_bytes == 600 * CHUNK
