"""Fetches in progress: one for each chunk, whoever waits is woken, the cache is filled behind the readers."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import trio
import trio.testing

from coldstart_cli.errors import BusyError, DataError, IoFailure
from coldstart_fs import flights as flights_module
from coldstart_fs.fetch import Loaded, Run
from coldstart_fs.flights import Flights
from coldstart_fs.locator import ChunkLocation

_PLACE = ChunkLocation(pack=bytes(32), offset=0, stored_bytes=1, size_bytes=1, encoding=0)


class ScriptedSource:
    """What `Flights` needs of a chunk source, with every answer and every pause in the test's hands."""

    def __init__(self) -> None:
        self.loads: list[tuple[bytes, ...]] = []
        self.kept: list[bytes] = []
        self.failure: Exception | None = None
        self.unknown: set[bytes] = set()
        self.in_memory: dict[bytes, bytes] = {}
        self.cache_is_full = False
        self.gate = threading.Event()
        self.gate.set()
        self.keep_gate = threading.Event()
        self.keep_gate.set()

    def plan(self, digests: list[bytes]) -> list[Run]:
        return [Run(bytes(32), 0, 1, ((digest, _PLACE),)) for digest in digests if digest not in self.unknown]

    def load_now(self, digest: bytes) -> bytes | None:
        return self.in_memory.get(digest)

    def load(self, run: Run) -> dict[bytes, Loaded]:
        self.loads.append(tuple(digest for digest, _ in run.chunks))
        assert self.gate.wait(20)
        if self.failure is not None:
            raise self.failure
        return {digest: Loaded(b"data of " + digest) for digest, _ in run.chunks}

    def keep(self, chunks: Mapping[bytes, bytes]) -> list[bytes]:
        assert self.keep_gate.wait(20)
        if self.cache_is_full:
            return []
        self.kept += chunks
        return list(chunks)


def run_with(source: ScriptedSource, body: Callable[[Flights], Awaitable[None]]) -> Flights:
    made: list[Flights] = []

    async def main() -> None:
        flights = Flights(source)  # type: ignore[arg-type]
        made.append(flights)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flights.write_behind)
            with trio.fail_after(20):
                await body(flights)
            nursery.cancel_scope.cancel()

    trio.run(main)
    return made[0]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await trio.sleep(0.005)


def test_many_readers_of_a_chunk_share_one_fetch() -> None:
    source = ScriptedSource()
    source.gate.clear()
    answers: list[Any] = []

    async def read(flights: Flights) -> None:
        answers.append(await flights.get([b"a"]))

    async def body(flights: Flights) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(read, flights)
            await until(lambda: len(source.loads) == 1)
            source.gate.set()

    flights = run_with(source, body)
    assert source.loads == [(b"a",)]
    assert answers == [{b"a": b"data of a"}] * 50
    assert flights.counters.store_chunks == 1


def test_a_failed_fetch_wakes_everybody_and_is_not_remembered() -> None:
    source = ScriptedSource()
    source.gate.clear()
    source.failure = IoFailure("the disk is gone")
    failures: list[str] = []

    async def read(flights: Flights) -> None:
        try:
            await flights.get([b"a"])
        except IoFailure as error:
            failures.append(error.message)

    async def body(flights: Flights) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(read, flights)
            await until(lambda: len(source.loads) == 1)
            source.gate.set()
        source.failure = None
        assert await flights.get([b"a"]) == {b"a": b"data of a"}

    flights = run_with(source, body)
    assert failures == ["the disk is gone"] * 10
    assert len(source.loads) == 2
    assert (flights.counters.failed_chunks, flights.counters.store_chunks) == (1, 1)


def test_a_cancelled_leader_leaves_nobody_waiting() -> None:
    source = ScriptedSource()
    source.gate.clear()
    outcome: list[str] = []

    async def follow(flights: Flights) -> None:
        try:
            await flights.get([b"a"])
        except BusyError as error:
            outcome.append(error.message)

    async def body(flights: Flights) -> None:
        async with trio.open_nursery() as nursery:
            leader = trio.CancelScope()

            async def lead() -> None:
                with leader:
                    await flights.get([b"a"])

            nursery.start_soon(lead)
            await until(lambda: len(source.loads) == 1)
            nursery.start_soon(follow, flights)
            await trio.testing.wait_all_tasks_blocked()
            leader.cancel()
        source.gate.set()

    run_with(source, body)
    assert outcome == ["fetch was given up"]


def test_a_store_that_does_not_answer_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "_DEADLINE_SECONDS", 0.05)
    source = ScriptedSource()
    source.gate.clear()

    async def body(flights: Flights) -> None:
        with pytest.raises(BusyError, match=r"store did not answer in 0\.05 s: pack blake3:0{64}"):
            await flights.get([b"a"])
        source.gate.set()

    run_with(source, body)


def test_one_bad_chunk_fails_the_request_and_not_its_neighbours() -> None:
    source = ScriptedSource()
    source.unknown = {b"b"}

    async def body(flights: Flights) -> None:
        with pytest.raises(DataError, match="store does not know where this chunk is"):
            await flights.get([b"a", b"b", b"c"])
        await until(lambda: sorted(source.kept) == [b"a", b"c"])

    run_with(source, body)


def test_what_was_fetched_goes_to_the_cache_once() -> None:
    source = ScriptedSource()

    async def body(flights: Flights) -> None:
        await flights.get([b"a", b"b", b"a"])
        await until(lambda: len(source.kept) == 2)
        await until(lambda: flights._held == {})

    run_with(source, body)
    assert sorted(source.kept) == [b"a", b"b"]


def test_until_the_cache_has_it_a_chunk_is_served_from_memory() -> None:
    source = ScriptedSource()
    source.keep_gate.clear()

    async def body(flights: Flights) -> None:
        await flights.get([b"a"])
        assert flights.now(b"a") == b"data of a"
        source.keep_gate.set()
        await until(lambda: source.kept == [b"a"] and flights.now(b"a") is None)

    run_with(source, body)
    assert len(source.loads) == 1


def test_a_full_cache_is_served_through_with_the_latest_chunks_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flights_module, "_HELD_CHUNKS", 3)
    source = ScriptedSource()
    source.cache_is_full = True
    digests = [b"%d" % number for number in range(10)]

    async def body(flights: Flights) -> None:
        for digest in digests:
            await flights.get([digest])
            await flights.room()
        await until(lambda: len(flights._held) == 3)
        assert [digest for digest in digests if flights.now(digest)] == digests[-3:]

    run_with(source, body)


def test_readers_wait_while_the_cache_is_slower_than_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "_HELD_CHUNKS", 2)
    source = ScriptedSource()
    source.keep_gate.clear()
    passed: list[int] = []

    async def body(flights: Flights) -> None:
        async def read() -> None:
            for number in range(10):
                await flights.room()
                await flights.get([b"%d" % number])
                passed.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.2)
            assert len(passed) < 8
            source.keep_gate.set()

    run_with(source, body)
    assert passed == list(range(10))


def test_a_cache_that_hangs_does_not_hang_the_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "_HELD_CHUNKS", 2)
    monkeypatch.setattr(flights_module, "_CACHE_STALL_SECONDS", 0.05)
    source = ScriptedSource()
    source.keep_gate.clear()
    digests = [b"%d" % number for number in range(30)]

    async def body(flights: Flights) -> None:
        for digest in digests:
            await flights.room()
            assert await flights.get([digest]) == {digest: b"data of " + digest}
        assert source.kept == []
        assert len(flights._held) <= 4
        source.keep_gate.set()
        await until(lambda: source.kept != [])
        await flights.get([b"later"])
        await until(lambda: b"later" in source.kept)

    run_with(source, body)


def test_a_chunk_in_memory_is_fetched_without_a_thread_and_kept_too() -> None:
    source = ScriptedSource()
    source.in_memory = {b"a": b"mapped"}

    async def body(flights: Flights) -> None:
        assert flights.now(b"a") == b"mapped"
        assert flights.now(b"b") is None
        await until(lambda: source.kept == [b"a"])

    flights = run_with(source, body)
    assert source.loads == []
    assert (flights.counters.store_chunks, flights.counters.store_bytes) == (1, 6)
