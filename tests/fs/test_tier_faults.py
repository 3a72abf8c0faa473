"""Faults of remote tiers: right bytes from the next tier or another try, or an error; never wrong bytes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_cli.errors import (
    ColdstartError,
    DataError,
    PermissionNeededError,
    UnavailableError,
    UnreachableError,
)
from coldstart_fs.tiers import packs as tiered
from coldstart_fs.tiers import tier as tiers
from coldstart_fs.tiers.http_connections import Connections, Origin
from coldstart_fs.tiers.settings import STORE_DEFAULTS, TierSettings
from conftest import wait_until
from fs import servers
from fs.servers import Fault, faulty_server
from fs.tier_lab import CONTENT, KEY, LENGTH, OFFSET, TierLab, asked, read, serve_pack

SECRET = "a-secret-that-nobody-may-see"
PATIENT = TierSettings("", concurrency=16, connect_timeout_seconds=5.0, read_timeout_seconds=10.0, retries=3)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TierLab]:
    monkeypatch.setattr(tiered, "STORE_DEFAULTS", PATIENT)
    roots = [tmp_path / "cache", tmp_path / "store"]
    for root in roots:
        root.mkdir()
        serve_pack(root)
    with faulty_server(roots[0]) as cache, faulty_server(roots[1]) as store:
        lab = TierLab(cache, store)
        yield lab
        for packs in lab.opened:
            wait_until(lambda: not any(tier.in_flight for tier in packs.counters()), "attempts' ends")  # noqa: B023
            packs.close()


@pytest.fixture
def hasty(lab: TierLab, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make silence a fault soon, of the cache and of the store."""

    def hurry() -> None:
        lab.read_timeout_seconds = 0.3
        monkeypatch.setattr(tiered, "STORE_DEFAULTS", replace(PATIENT, read_timeout_seconds=0.3))

    return hurry


FAULTS: dict[str, tuple[Fault, str, type[ColdstartError]]] = {
    "flipped bit": (servers.flipped_bit, "damaged", DataError),
    "other bytes": (servers.claimed_range, "damaged", DataError),
    "short body": (servers.short_body, "reset", UnreachableError),
    "short range": (servers.short_range, "range", DataError),
    "wrong range": (servers.other_range, "range", DataError),
    "no range in a 206": (servers.answer(206, bytes(LENGTH)), "range", DataError),
    "endless 200": (servers.endless, "whole", UnavailableError),
    "page with 200": (servers.answer(200, b"<html>", {"Content-Type": "text/html"}), "page", DataError),
    "page with 206": (servers.page, "page", DataError),
    "page of no type": (servers.answer(200, b"<html>" * 99999), "damaged", DataError),
    "encoded": (servers.encoded, "other", DataError),
    "reset": (servers.reset, "reset", UnreachableError),
    "reset in the body": (servers.reset_in_body, "reset", UnreachableError),
    "stall": (servers.silence, "timeout", UnreachableError),
    "stall in the body": (servers.stall_in_body, "timeout", UnreachableError),
    "drip": (servers.drip, "slow", UnreachableError),
    "garbage": (servers.garbage, "other", ColdstartError),
    "401": (servers.answer(401), "denied", PermissionNeededError),
    "403": (servers.answer(403, SECRET.encode()), "denied", PermissionNeededError),
    "404": (servers.answer(404), "missing", DataError),
    "416": (servers.answer(416), "short", DataError),
    "429": (servers.answer(429), "busy", UnreachableError),
    "500": (servers.answer(500), "server", UnreachableError),
    "503": (servers.answer(503), "server", UnreachableError),
    "redirect in a ring": (servers.answer(302, b"", {"Location": f"/{KEY}"}), "other", ColdstartError),
}
_SILENCES = {"timeout", "slow"}
faults = pytest.mark.parametrize(("fault", "kind"), [(f, k) for f, k, _ in FAULTS.values()], ids=FAULTS)


@faults
def test_the_next_tier_answers_for_a_faulty_cache(
    lab: TierLab, hasty: Callable[[], None], fault: Fault, kind: str
) -> None:
    lab.cache.fault = fault
    if kind in _SILENCES:
        hasty()
    packs = lab.packs()
    read(packs)
    cache, store = packs.counters()
    assert set(cache.errors) == {kind}
    assert (store.answers, store.received_bytes, store.errors) == (1, LENGTH, {})
    assert any(lab.cache.url in line and kind in line and KEY in line for line in lab.log)
    assert SECRET not in str(lab.log)
    lab.cache.fault = lambda _: False
    read(packs, 0, 5000)  # nothing is remembered but by the breaker, which takes more than that to open
    assert cache.answers == 1


@pytest.mark.parametrize(("fault", "kind", "error"), [(f, k, e) for f, k, e in FAULTS.values()], ids=FAULTS)
def test_a_faulty_store_is_an_error_in_time_and_never_wrong_bytes(
    lab: TierLab, hasty: Callable[[], None], fault: Fault, kind: str, error: type[ColdstartError]
) -> None:
    lab.store.fault = fault
    if kind in _SILENCES:
        hasty()
    packs = lab.alone()
    began = time.monotonic()
    with pytest.raises(error) as caught:
        read(packs, seconds=5.0)
    assert time.monotonic() - began < 30
    assert SECRET not in f"{caught.value} {caught.value.hint}"
    assert set(packs.counters()[0].errors) == {kind}
    lab.store.fault = lambda _: False
    read(packs)


@pytest.mark.parametrize(
    "fault",
    [
        "flipped bit",
        "short body",
        "reset",
        "reset in the body",
        "stall",
        "stall in the body",
        "drip",
        "500",
        "429",
    ],
)
def test_a_fault_of_the_store_that_goes_away_is_not_seen(
    lab: TierLab, hasty: Callable[[], None], fault: str
) -> None:
    if FAULTS[fault][1] in _SILENCES:
        hasty()
    lab.store.fault = servers.first(1, FAULTS[fault][0])
    packs = lab.alone()
    read(packs)
    assert packs.counters()[0].answers == 1


def test_both_tiers_down_and_back_within_the_deadline(lab: TierLab) -> None:
    lab.cache.fault = servers.reset
    lab.store.fault = servers.first(5, servers.reset)
    read(lab.packs())


def test_a_name_that_cannot_be_resolved_costs_the_next_tier_nothing(lab: TierLab) -> None:
    packs = lab.open(TierSettings("http://cache.invalid:8080/x"))
    read(packs)
    assert packs.counters()[0].errors == {"dns": 1}
    assert "its name cannot be resolved" in lab.log[0]


def test_a_refused_connection_costs_the_next_tier_nothing(lab: TierLab) -> None:
    packs = lab.open(TierSettings(f"http://127.0.0.1:{servers.free_port()}"))
    for _ in range(20):
        read(packs)
    cache, _ = packs.counters()
    assert cache.breaker != "closed"
    # it is tried again now and then, after longer and longer pauses
    assert cache.skipped > cache.errors["connect"]


def test_wrong_bytes_of_a_cache_are_asked_for_again_past_the_cache(lab: TierLab) -> None:
    heard: list[str | None] = []

    def wrong_until_refreshed(handler: servers.FaultyHandler) -> bool:
        heard.append(handler.headers.get("Cache-Control"))
        return heard[-1] != "no-cache" and servers.flipped_bit(handler)

    lab.cache.fault = wrong_until_refreshed
    packs = lab.packs()
    read(packs)
    assert heard == [None, "no-cache"]
    assert asked(lab.store) == 0
    assert packs.counters()[0].errors == {"damaged": 1}


def test_a_cache_with_wrong_bytes_is_left_alone_after_repeats(lab: TierLab) -> None:
    lab.cache.fault = servers.flipped_bit
    packs = lab.packs()
    for number in range(6):
        read(packs, number * 1000, 1000)
    cache, _ = packs.counters()
    assert cache.errors["damaged"] <= 4
    assert cache.breaker == "open"
    assert any("is left alone for a while" in line for line in lab.log)


def test_a_store_that_is_damaged_is_still_asked(lab: TierLab) -> None:
    lab.store.fault = servers.flipped_bit
    packs = lab.alone()
    for number in range(8):
        with pytest.raises(DataError):
            read(packs, number * 1000, 1000)
    assert packs.counters()[0].breaker == "closed"


def test_retry_after_of_a_cache_is_honoured_by_leaving_it_alone(lab: TierLab) -> None:
    lab.cache.fault = servers.answer(429, b"", {"Retry-After": "30"})
    packs = lab.packs()
    for _ in range(5):
        read(packs)
    assert asked(lab.cache) == 1


def test_retry_after_of_the_store_is_waited_for_when_there_is_time(lab: TierLab) -> None:
    times: list[float] = []
    later = 1

    def busy_once(handler: servers.FaultyHandler) -> bool:
        times.append(time.monotonic())
        return len(times) == 1 and servers.answer(503, b"", {"Retry-After": str(later)})(handler)

    lab.store.fault = busy_once
    read(lab.alone())
    assert times[1] - times[0] >= 0.99
    times.clear()
    later = 120
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="503 Service Unavailable"):
        read(lab.alone(), seconds=60)
    assert time.monotonic() - began < 30


def test_a_silent_cache_leaves_time_for_the_store(lab: TierLab) -> None:
    lab.cache.fault = servers.silence
    packs = lab.packs(read_timeout_seconds=60.0)
    began = time.monotonic()
    read(packs, seconds=6.0)
    assert time.monotonic() - began > 1.0


def test_a_store_that_is_known_to_be_down_is_not_waited_for(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.store.fault = servers.reset
    packs = lab.alone()
    packs.store_is_down()
    began = time.monotonic()
    with pytest.raises(UnreachableError):
        read(packs)
    assert time.monotonic() - began < 10
    lab.store.fault = lambda _: False
    wait_until(lambda: packs.counters()[0].breaker != "open", "another try")
    read(packs)
    monkeypatch.setattr(tiered, "OUTAGE_SECONDS", 0.6)
    lab.store.fault = servers.reset
    began = time.monotonic()
    with pytest.raises(UnreachableError):
        read(packs)
    assert 0.1 < time.monotonic() - began < 15  # waited out, since it answered a moment ago


def test_the_deadline_holds_whatever_is_silent(lab: TierLab) -> None:
    lab.cache.fault = lab.store.fault = servers.silence
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="no answer in time"):
        read(lab.packs(), seconds=0.8)
    assert time.monotonic() - began < 20


def test_a_second_request_overtakes_a_silent_first_one(lab: TierLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldstart_fs.tiers.hedging.SHARE", 1.0)  # a busy machine may use some up
    packs = lab.packs(read_timeout_seconds=60.0)
    for number in range(40):
        read(packs, number * 10, 5000)
    lab.cache.fault = servers.silence
    began = time.monotonic()
    read(packs, seconds=60.0)
    assert time.monotonic() - began < 20
    cache, store = packs.counters()
    assert cache.given_up >= 1
    assert store.requests == store.hedges
    assert store.hedges_won >= 1


@pytest.mark.parametrize("fault", [servers.stall_in_body, servers.drip])
def test_a_second_request_overtakes_a_body_that_does_not_come(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr("coldstart_fs.tiers.hedging.SHARE", 1.0)
    monkeypatch.setattr("coldstart_fs.tiers.hedging._LEAST_SECONDS", 0.001)
    packs = lab.packs(read_timeout_seconds=60.0)
    for number in range(40):
        read(packs, number * 10, 5000)
    lab.cache.fault = fault
    began = time.monotonic()
    read(packs, seconds=60.0)
    assert time.monotonic() - began < 20
    assert packs.counters()[1].hedges_won >= 1


def test_who_waits_asks_himself_on_a_connection_that_is_there(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs = lab.alone()
    read(packs)

    def another(*_: object) -> None:
        raise AssertionError("a hop into another thread")

    monkeypatch.setattr("coldstart_fs.tiers.workers.Workers.run", another)
    for number in range(5):
        read(packs, number * 10, 5000)


@pytest.mark.parametrize("fault", [servers.drip, servers.silence, servers.stall_in_body])
def test_the_deadline_holds_for_who_asks_himself(lab: TierLab, fault: Fault) -> None:
    packs = lab.packs(read_timeout_seconds=60.0)
    read(packs)  # on both, so that connections are there
    lab.cache.fault = servers.reset
    read(packs)
    lab.cache.fault = lab.store.fault = fault
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="no answer in time"):
        read(packs, seconds=0.8)
    assert time.monotonic() - began < 20


def test_a_connection_that_ended_is_made_anew_in_another_thread(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are looked up on the way, which nobody can interrupt."""
    packs = lab.alone()
    read(packs)
    lab.store.fault = servers.first(1, servers.reset)  # the server had gone
    threads: list[str] = []

    def connect(*arguments: object) -> socket.socket:
        threads.append(threading.current_thread().name)
        return made(*arguments)

    made: Callable[..., socket.socket] = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", connect)
    read(packs)
    assert threads == ["coldstart-fetch"]
    assert packs.counters()[0].errors == {}


def test_a_silent_cache_is_not_doubled_with_requests(lab: TierLab) -> None:
    packs = lab.packs()
    for number in range(40):
        read(packs, number * 10, 5000)
    lab.cache.fault = servers.slowly(0.05)
    for number in range(20):
        read(packs, number * 10, 5000)
    _, store = packs.counters()
    assert store.hedges <= 3


def test_a_tier_gets_no_more_requests_at_once_than_it_may(lab: TierLab) -> None:
    most = [0, 0]

    def count(handler: servers.FaultyHandler) -> bool:
        most[0] += 1
        most[1] = max(most)
        time.sleep(0.02)
        most[0] -= 1
        return False

    lab.cache.fault = count
    packs = lab.packs(concurrency=3)
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda number: read(packs, number * 1000, 5000), range(24)))
    assert most[1] <= 3
    cache, store = packs.counters()
    assert (cache.answers + store.hedges_won, cache.errors, cache.in_flight) == (24, {}, 0)


def test_a_connection_is_used_again_and_one_that_the_server_ended_is_no_failure(lab: TierLab) -> None:
    seen: set[tuple[str, int]] = set()

    def note(handler: servers.FaultyHandler) -> bool:
        seen.add(handler.client_address)
        return False

    lab.cache.fault = note
    packs = lab.packs()
    for _ in range(5):
        read(packs)
    assert len(seen) == 1

    def end_afterwards(handler: servers.FaultyHandler) -> bool:
        handler.serve()
        handler.close_connection = True
        return True

    lab.cache.fault = end_afterwards
    for _ in range(5):
        read(packs)
    cache, store = packs.counters()
    assert (cache.errors, cache.answers, store.requests) == ({}, 10, 0)


def test_a_small_whole_object_will_do_for_a_range(lab: TierLab) -> None:
    lab.cache.fault = servers.whole
    packs = lab.packs()
    read(packs)
    read(packs, 0, len(CONTENT))
    read(packs, len(CONTENT) - 1, 1)
    assert packs.counters()[1].requests == 0


def test_a_range_behind_the_end_is_a_pack_cut_short(lab: TierLab) -> None:
    (lab.store.root / KEY).write_bytes(CONTENT[: OFFSET + 100])
    with pytest.raises(DataError, match="object is cut short"):
        read(lab.alone())
    (lab.cache.root / KEY).write_bytes(CONTENT[: OFFSET + 100])
    (lab.store.root / KEY).write_bytes(CONTENT)
    packs = lab.packs()
    read(packs)
    assert packs.counters()[0].errors == {"short": 2}


def test_a_redirect_is_followed_to_where_the_bytes_are(lab: TierLab) -> None:
    lab.cache.fault = servers.answer(307, b"", {"Location": f"{lab.store.url}/{KEY}?signature={SECRET}"})
    packs = lab.packs()
    read(packs)
    assert packs.counters()[0].answers == 1
    lab.store.fault = servers.answer(403)
    with pytest.raises(PermissionNeededError):
        read(packs)
    assert SECRET not in str(lab.log)


def test_a_pack_that_the_store_lacks_is_damage_with_a_remedy(lab: TierLab) -> None:
    for server in (lab.cache, lab.store):
        (server.root / KEY).unlink()
    with pytest.raises(DataError, match="object is not in the store") as caught:
        read(lab.packs())
    assert caught.value.hint == "index the image again"


def test_a_folder_store_comes_after_tiers_as_any_other(lab: TierLab) -> None:
    packs = lab.packs(store=str(lab.store.root))
    read(packs)
    lab.cache.fault = servers.reset
    read(packs)
    assert [tier.answers for tier in packs.counters()] == [1, 1]


def test_an_index_comes_from_a_tier_when_its_digest_is_right(lab: TierLab) -> None:
    from coldstart_fs.format.names import index_key

    (lab.cache.root / "images").mkdir()
    (lab.store.root / "images").mkdir()
    from fs.tier_lab import PACK

    for server in (lab.cache, lab.store):
        (server.root / index_key(PACK)).write_bytes(CONTENT)
    packs = lab.packs()
    assert packs.index(PACK, timeout_seconds=60) == CONTENT
    assert len(lab.store.requests) == 0
    (lab.cache.root / index_key(PACK)).write_bytes(CONTENT[:-1] + b"x")
    assert packs.index(PACK, timeout_seconds=60) == CONTENT
    (lab.store.root / index_key(PACK)).write_bytes(b"x")
    with pytest.raises(DataError, match="index is damaged"):
        packs.index(PACK, timeout_seconds=60)


def test_settings_of_the_store_are_more_patient_than_those_of_a_cache() -> None:
    assert STORE_DEFAULTS.retries > TierSettings("http://x").retries
    assert tiers.LONGEST_STORE_OPEN_SECONDS < tiers.LONGEST_OPEN_SECONDS


def test_a_connection_that_comes_back_after_the_end_is_ended_too(lab: TierLab) -> None:
    host, port = lab.cache.url.removeprefix("http://").split(":")
    connections = Connections(most_idle=4)
    connection = connections.new(Origin("http", host, int(port)), connect_seconds=60.0)
    connection.connect()
    connections.close()
    connections.keep(connection)
    assert connection.socket is None
    assert connections.idle(connection.origin) is None
