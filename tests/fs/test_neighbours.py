"""What is brought beside a miss: as much as the link gives for free, and nothing next door."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_fs.content import neighbours
from coldstart_fs.content.companions import Kind
from coldstart_fs.content.neighbours import MOST_REQUESTS
from coldstart_fs.content.reader import ImageReader
from coldstart_fs.content.windows import LARGEST_BYTES, Windows
from coldstart_fs.tiers.link import Link
from conftest import wait_until
from fs import servers
from fs.readers import CHUNK, Desk, reader_desk

CONTENT = random.Random(37).randbytes(40 * CHUNK)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with reader_desk(tmp_path, CONTENT) as desk:
        yield desk


def far(desk: Desk, free_bytes: int) -> ImageReader:
    """A reader over a link that gives so much for free."""
    reader = desk.reader()
    reader.neighbours.free_bytes = lambda: free_bytes
    reader.bringer.companions.is_wanted = lambda: False
    return reader


def read(desk: Desk, reader: ImageReader, place: int, chunks: int = 1) -> None:
    found = reader.read(desk.number, place * CHUNK, chunks * CHUNK)
    assert bytes(found) == desk.part(place, chunks)
    settle(reader)


def settle(reader: ImageReader) -> None:
    """Wait for what nobody waits for."""
    wait_until(lambda: not reader.neighbours.running, "neighbours are brought")
    reader.settle()


def test_what_stands_beside_a_miss_comes_in_a_request_of_its_own(desk: Desk) -> None:
    reader = far(desk, 4 * CHUNK)
    read(desk, reader, 20)
    assert (desk.chunk(20).offset, desk.chunk(20).end - 1) in desk.ranges()
    assert desk.fetched_bytes == 4 * CHUNK  # from a quarter of it before
    asked = len(desk.ranges())
    assert asked == 3
    for place in (19, 21, 22):
        read(desk, reader, place)
    assert len(desk.ranges()) == asked


def test_misses_next_to_each_other_bring_more_each_time(desk: Desk) -> None:
    reader = far(desk, 2 * CHUNK)
    place, found = 0, []
    for _ in range(3):
        before = desk.fetched_bytes
        read(desk, reader, place)
        found.append((desk.fetched_bytes - before) // CHUNK)
        place += found[-1]
    assert found == sorted(found)
    assert found[-1] >= 3 * found[0]


def test_over_a_short_link_nothing_comes_that_was_not_asked_for(desk: Desk) -> None:
    reader = far(desk, CHUNK - 1)
    for place in (3, 5, 20):
        read(desk, reader, place)
    assert desk.fetched_bytes == 3 * CHUNK
    assert reader.neighbours.brought_bytes == 0


def test_what_a_long_link_gives_for_free_has_an_end_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_FAR", neighbours._FAR._replace(beginning_bytes=6 * CHUNK))
    reader = far(desk, 4 * CHUNK)
    for place in range(1, 40, 5):
        read(desk, reader, place)
    assert 0 < reader.neighbours.brought_bytes <= 6 * CHUNK
    assert reader.bringer.companions.room_bytes(Kind("other")) == 384 << 10  # of others it takes none


def test_what_fails_beside_a_miss_fails_nobody_and_is_asked_for_again(desk: Desk) -> None:
    reader = far(desk, 4 * CHUNK)
    wanted = desk.chunk(20)

    def refuse_others(handler: servers.FaultyHandler) -> bool:
        asked = handler.headers.get("Range", "")
        ours = asked == f"bytes={wanted.offset}-{wanted.end - 1}"
        return "/packs/" in handler.path and not ours and servers.answer(404)(handler)

    desk.server.fault = refuse_others
    read(desk, reader, 20)
    desk.server.fault = lambda _: False
    read(desk, reader, 21)


def test_few_requests_are_on_their_way_beside_those_that_are_waited_for(desk: Desk) -> None:
    reader = far(desk, 2 * CHUNK)
    asked: list[str] = []

    def hold_others(handler: servers.FaultyHandler) -> bool:
        first, last = handler.headers.get("Range", "bytes=0-0").removeprefix("bytes=").split("-")
        if "/packs/" not in handler.path or int(last) - int(first) < CHUNK:
            return False
        asked.append(handler.path)
        return servers.silence(handler)

    desk.server.fault = hold_others
    desk.server.silent_seconds = 2.0
    for place in range(4, 40, 6):
        found = reader.read(desk.number, place * CHUNK, CHUNK)
        assert bytes(found) == desk.part(place)
    assert len(asked) <= MOST_REQUESTS


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Desk]:
    """Small files, side by side in their pack in the order of their names."""
    with reader_desk(tmp_path, b"content", **SMALL) as desk:
        yield desk


SMALL = {f"m{number:03}": random.Random(number).randbytes(4000) for number in range(500)}


def read_small(reader: ImageReader, name: str) -> bool:
    """Whether it was there already."""
    number = reader.index.lookup(0, name.encode())
    assert number is not None
    found = reader.at_hand(number, 0, 4000)
    if found is None:
        assert reader.read(number, 0, 4000) == SMALL[name]
        return False
    assert found == SMALL[name]
    return True


def test_next_door_small_files_in_a_row_are_brought_on_from_there(shelf: Desk) -> None:
    reader = shelf.reader()
    waited = 0
    for name in SMALL:
        waited += not read_small(reader, name)
        settle(reader)
    assert waited <= 8
    assert shelf.fetched_bytes == sum(map(len, SMALL.values()))
    counters = reader.counters()
    assert counters["companion_used_bytes"] == counters["companion_bytes"]


def test_next_door_nothing_more_is_brought_where_it_is_not_read(shelf: Desk) -> None:
    reader = shelf.reader()
    for name in [*SMALL][::26]:  # each beside what the last one brought
        read_small(reader, name)
        settle(reader)
    assert reader.neighbours.brought_bytes == 0


def test_a_window_never_grows_beyond_its_bound_and_is_forgotten_for_far_places() -> None:
    windows = Windows()
    begin, sizes = 0, []
    for _ in range(12):
        window = windows.around(b"pack", begin, begin + CHUNK, 4 * CHUNK)
        sizes.append(window.end - begin)
        begin = window.end
    assert max(sizes) <= LARGEST_BYTES
    assert sizes[4] == sizes[-1]
    window = windows.around(b"pack", 1 << 30, (1 << 30) + CHUNK, 4 * CHUNK)
    assert window.end - window.begin == 4 * CHUNK


def test_a_long_link_gives_its_round_trip_times_its_rate_for_free() -> None:
    link = Link()
    assert (link.round_trip_seconds, link.bytes_per_second, link.free_bytes) == (None, None, 0)
    for _ in range(6):
        link.heard(0.050, 0.050 + 0.005, 125_000)  # 25 MB/s
        link.heard(0.050, 0.0501, 2_000)  # nothing to be learnt about the rate
    assert link.round_trip_seconds == pytest.approx(0.050)
    assert link.bytes_per_second == pytest.approx(25e6)
    assert link.free_bytes == pytest.approx(0.040 * 25e6, rel=0.01)


def test_waits_behind_other_requests_do_not_make_a_link_long() -> None:
    link = Link()
    for number in range(30):
        link.heard(0.2 if number % 5 else 0.001, 0.3, 125_000)
    assert link.round_trip_seconds == pytest.approx(0.001)
    assert link.free_bytes == 0
