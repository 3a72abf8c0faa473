"""Everything of an image in the background: after readers, within the cache's limits, when lazy loses."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.errors import ConfigError
from coldstart_fs.content.fetch_mode import FetchMode, parse_fetch_mode
from coldstart_fs.content.reader import ImageReader
from coldstart_fs.content.room import CacheLimits
from coldstart_fs.content.whole_fetch import WholeFetch
from coldstart_fs.tiers.link import Link
from conftest import wait_until
from fs import servers
from fs.mounts import Lab
from fs.readers import CHUNK, Desk, reader_desk
from fs.servers import FaultyServer

CONTENT = random.Random(41).randbytes(64 * CHUNK)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with reader_desk(tmp_path, CONTENT, tiny=b"of 26 bytes, beside others") as desk:
        yield desk


def link(round_trip_seconds: float = 0.05, bytes_per_second: float = 25e6) -> Link:
    found = Link()
    for _ in range(8):
        found.heard(round_trip_seconds, round_trip_seconds + 1e5 / bytes_per_second, 100_000)
    return found


def fetch(desk: Desk, reader: ImageReader, mode: FetchMode, way: Link | None = None) -> WholeFetch:
    found = link() if way is None else way
    reader.bringer.companions.is_wanted = lambda: False
    whole = WholeFetch(reader, mode, lambda: found, desk.said.append)
    whole.start()
    return whole


def until(whole: WholeFetch, state: str) -> dict[str, Any]:
    wait_until(lambda: whole.state == state, f"{state}: {whole.status()}")
    return whole.status()


def test_all_is_fetched_in_few_large_requests_and_needs_no_store_afterwards(desk: Desk) -> None:
    reader = desk.reader()
    status = until(fetch(desk, reader, FetchMode.ALL), "whole")
    assert len(desk.ranges()) < 20
    assert status["brought_bytes"] == sum(path.stat().st_size for path in (desk.folder / "tree").iterdir())
    desk.server.fault = servers.answer(503)
    assert bytes(desk.reader().read(desk.number, 0, len(CONTENT))) == CONTENT


def test_what_a_cache_has_is_not_fetched_again_by_another_server(desk: Desk) -> None:
    first = desk.reader()
    until(fetch(desk, first, FetchMode.ALL), "whole")
    first.close()
    status = until(fetch(desk, desk.reader(), FetchMode.ALL), "whole")
    assert desk.ranges() == []
    assert status["brought_bytes"] < CHUNK  # what is too small to be told from its neighbours


def test_lazily_nothing_is_fetched_that_nobody_asked_for(desk: Desk) -> None:
    reader = desk.reader()
    whole = fetch(desk, reader, FetchMode.LAZY)
    assert bytes(reader.read(desk.number, 0, CHUNK)) == desk.part(0)
    assert desk.fetched_bytes == CHUNK
    assert whole.status()["misses"] == 1


def test_auto_begins_lazily_notices_that_it_loses_and_says_so_in_figures(desk: Desk) -> None:
    reader = desk.reader()
    whole = fetch(desk, reader, FetchMode.AUTO)
    desk.server.fault = servers.slowly(0.05)
    places = list(range(64))
    random.Random(2).shuffle(places)
    asked = 0
    while whole.state == "lazy":
        assert asked < len(places), whole.status()
        assert bytes(reader.read(desk.number, places[asked] * CHUNK, CHUNK)) == desk.part(places[asked])
        asked += 1
    assert asked >= 20
    status = until(whole, "whole")
    assert "ms; the missing" in status["reason"]
    assert any("lazy loses" in said and "MB/s" in said for said in desk.said)


def test_auto_next_door_stays_lazy(desk: Desk) -> None:
    reader = desk.reader()
    whole = fetch(desk, reader, FetchMode.AUTO, link(0.001, 100e6))
    for place in range(0, 64, 2):
        assert bytes(reader.read(desk.number, place * CHUNK, CHUNK)) == desk.part(place)
    assert whole.state == "lazy"
    assert desk.fetched_bytes == 32 * CHUNK


@pytest.mark.parametrize("limits", [CacheLimits(quota_bytes=20 * CHUNK), CacheLimits(free_bytes=1 << 60)])
def test_what_the_cache_may_not_take_is_not_fetched_for_it(desk: Desk, limits: CacheLimits) -> None:
    reader = desk.reader(limits=limits)
    status = until(fetch(desk, reader, FetchMode.ALL), "refused")
    assert "the cache may take" in status["reason"]
    assert desk.ranges() == []
    assert bytes(reader.read(desk.number, 0, CHUNK)) == desk.part(0)


def test_a_folder_of_this_host_is_whole_as_it_is(desk: Desk) -> None:
    reader = desk.reader(url=str(desk.folder / "store"))
    status = until(fetch(desk, reader, FetchMode.ALL), "whole")
    assert status["brought_bytes"] == 0


def test_a_store_that_was_down_is_asked_again_for_what_is_missing(desk: Desk) -> None:
    reader = desk.reader()
    desk.server.fault = servers.first(1, servers.answer(404))
    whole = fetch(desk, reader, FetchMode.ALL)
    until(whole, "whole")
    assert bytes(reader.read(desk.number, 0, len(CONTENT))) == CONTENT


def test_while_somebody_waits_one_request_at_most_is_nobodys(desk: Desk) -> None:
    reader = desk.reader()
    most, now = 0, 0

    def count(handler: servers.FaultyHandler) -> bool:
        nonlocal most, now
        first, last = handler.headers.get("Range", "bytes=0-0").removeprefix("bytes=").split("-")
        if "/packs/" not in handler.path or int(last) - int(first) < 2 * CHUNK:
            return False
        now += 1
        most = max(most, now)
        time.sleep(0.2)
        now -= 1
        return False

    wanted = desk.chunk(63)

    def hold(handler: servers.FaultyHandler) -> bool:
        if handler.headers.get("Range") == f"bytes={wanted.offset}-{wanted.end - 1}":
            # nobody's first request is there, and a second would come while the first is held
            wait_until(lambda: most, "a request of nobody's")
            time.sleep(1.0)
            return False
        return count(handler)

    desk.server.fault = hold
    done: list[int] = []
    reader.read_later(desk.number, 63 * CHUNK, CHUNK, lambda _: done.append(most))  # as it was until then
    wait_until(lambda: desk.server.requests, "the reader's request is sent")
    whole = fetch(desk, reader, FetchMode.ALL)
    wait_until(lambda: done, "the reader has its answer")
    assert done == [1]
    until(whole, "whole")


def test_a_wrong_mode_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"image\.fetch, command line: everything"):
        parse_fetch_mode("everything", "command line")


def test_a_mount_that_fetches_all_says_so_and_reads_on_without_its_store(
    lab: Lab, faulty: FaultyServer
) -> None:
    lab.image(file=CONTENT)
    faulty.root = lab.store
    record = lab.mount(store=faulty.url, fetch="all")
    assert record.fetch == "all"
    wait_until(lambda: lab.counters(record)["fetch"]["state"] == "whole", "everything is fetched")
    faulty.fault = servers.answer(503)
    assert (record.mountpoint / "file").read_bytes() == CONTENT
    assert "everything is in the cache" in lab.log(record)
