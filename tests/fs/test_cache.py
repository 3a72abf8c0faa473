"""The cache of packs: shared by processes, never trusted, and never in the way of a read."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from coldstart_fs.content import bringing as bringing_module
from coldstart_fs.content import reader as reader_module
from coldstart_fs.content.pack_file import PackFile
from coldstart_fs.content.range_locks import lock_range, unlock_range
from coldstart_fs.content.reader import ImageReader
from coldstart_fs.content.room import CacheLimits, copies_of
from coldstart_fs.content.scrub import scrub_cache
from coldstart_fs.format.chunk import Compression
from coldstart_fs.indexing.progress import Progress
from conftest import wait_until
from fs import servers
from fs.mounts import flip, small_disk
from fs.readers import CHUNK, Desk, reader_desk

CONTENT = random.Random(13).randbytes(40 * CHUNK)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with reader_desk(tmp_path, CONTENT) as desk:
        yield desk


def fill(desk: Desk, reader: ImageReader, place: int = 0, chunks: int = 40) -> None:
    """Read chunks, and wait until the cache has them."""
    assert bytes(reader.read(desk.number, place * CHUNK, chunks * CHUNK)) == desk.part(place, chunks)
    wait_until(lambda: not reader._flights.any, "the end of all writing")
    assert kept(desk, place, chunks)


def kept(desk: Desk, place: int, chunks: int) -> bool:
    try:
        copy = desk.copy().read_bytes()
    except FileNotFoundError:
        return False
    found = [desk.chunk(number) for number in range(place, place + chunks)]
    return b"".join(copy[chunk.offset : chunk.end] for chunk in found) == desk.part(place, chunks)


def whole(desk: Desk, reader: ImageReader) -> bytes:
    return bytes(reader.read(desk.number, 0, len(CONTENT)))


def test_a_copy_is_sparse_and_for_its_owner_alone(desk: Desk) -> None:
    reader = desk.reader()
    fill(desk, reader, 30, 2)
    status = desk.copy().stat()
    assert status.st_mode & 0o777 == 0o600
    assert (desk.cache).stat().st_mode & 0o777 == 0o700
    assert status.st_blocks * 512 < 4 * CHUNK
    assert (
        (desk.cache / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
    )


def test_what_is_cached_needs_no_store_after_a_start(desk: Desk) -> None:
    fill(desk, desk.reader())
    desk.server.fault = servers.answer(503)
    reader = desk.reader()
    assert whole(desk, reader) == CONTENT
    assert reader.counters()["cache_chunks"] == 40
    assert desk.ranges() == []
    assert [line for line in desk.said if "damaged" in line] == []


@pytest.mark.parametrize("live", [False, True], ids=["after a start", "while it is open"])
def test_a_flipped_bit_is_put_aside_said_and_healed(desk: Desk, live: bool) -> None:
    reader = desk.reader()
    fill(desk, reader)
    if not live:
        reader.close()
        desk.opened.remove(reader)
        reader = desk.reader()
    bad = desk.chunk(7)
    flip(desk.copy(), bad.offset + 777)
    damaged = desk.copy().read_bytes()[bad.offset : bad.end]
    desk.server.requests.clear()
    assert whole(desk, reader) == CONTENT
    assert desk.ranges() == [(bad.offset, bad.end - 1)]
    assert (desk.cache / "quarantine-v1" / bad.digest.hex()).read_bytes() == damaged
    assert reader.counters()["quarantined_chunks"] == 1
    said = f"cached chunk is damaged, fetching it again: blake3:{bad.digest.hex()}"
    assert len([line for line in desk.said if line.startswith(said)]) == 1
    wait_until(lambda: kept(desk, 0, 40), "the healed chunk in the cache")


def test_much_damage_is_told_in_few_lines(desk: Desk) -> None:
    fill(desk, desk.reader())
    for number in range(40):
        flip(desk.copy(), desk.chunk(number).offset + 777)
    reader = desk.reader()
    assert whole(desk, reader) == CONTENT
    assert reader.counters()["quarantined_chunks"] == 40
    reader.close()
    desk.opened.remove(reader)
    told = [line for line in desk.said if "damaged" in line]
    assert len([line for line in told if line.startswith("cached chunk is damaged")]) == 5
    place = f"in 1 of the packs of {desk.cache}"
    assert {line for line in told if line.startswith("cached chunks")} == {
        f"cached chunks are damaged, fetching them again: 10 so far, {place}",
        f"cached chunks were damaged: 40, {place}",
    }
    assert len(told) == 7


def test_a_flipped_bit_of_a_compressed_chunk_is_healed_too(tmp_path: Path) -> None:
    text = b"".join(b"%d bottles of water on the wall\n" % number for number in range(40_000))
    with reader_desk(tmp_path, text, compression=Compression()) as desk:
        reader = desk.reader()
        assert bytes(reader.read(desk.number, 0, len(text))) == text
        bad = desk.chunk(3)
        wait_until(lambda: desk.copy().exists() and desk.copy().stat().st_size >= bad.end, "the cache")
        flip(desk.copy(), bad.offset + 100)
        reader = desk.reader()
        assert bytes(reader.read(desk.number, 0, len(text))) == text
        assert desk.ranges() == [(bad.offset, bad.end - 1)]


@pytest.mark.parametrize("size", [0, 1000, 5 * CHUNK + 3, 1 << 40])
@pytest.mark.parametrize("live", [False, True], ids=["after a start", "while it is open"])
def test_a_copy_cut_short_or_stretched_is_healed(desk: Desk, live: bool, size: int) -> None:
    reader = desk.reader()
    fill(desk, reader)
    if not live:
        reader = desk.reader()
    os.truncate(desk.copy(), size)
    assert whole(desk, reader) == CONTENT
    wait_until(lambda: kept(desk, 0, 40) if size < 1 << 40 else True, "the healed chunks in the cache")


def test_zeros_are_no_data_and_no_damage(desk: Desk) -> None:
    """A host that lost power, or a writer that was killed, leaves zeros."""
    reader = desk.reader()
    fill(desk, reader)
    for anyone in (reader, desk.reader()):
        with desk.copy().open("r+b") as stream:
            stream.seek(desk.chunk(3).offset + 40_000)
            stream.write(bytes(2 * CHUNK - 40_000))
        assert anyone.at_hand(desk.number, 4 * CHUNK, 10) is None
        assert whole(desk, anyone) == CONTENT
        fill(desk, anyone)
    assert not (desk.cache / "quarantine-v1").exists()


def test_a_cache_that_was_cleared_is_filled_again(desk: Desk) -> None:
    reader = desk.reader()
    fill(desk, reader)
    shutil.rmtree(desk.cache)
    assert reader.at_hand(desk.number, 0, 10) is None
    fill(desk, reader)


def test_the_files_of_an_older_format_are_neither_read_nor_touched(desk: Desk) -> None:
    desk.reader()
    digest = desk.chunk(0).digest.hex()
    old = desk.cache / "chunks-v1" / digest[:2] / digest
    old.parent.mkdir(parents=True)
    old.write_bytes(bytes(CHUNK))
    reader = desk.reader()
    assert whole(desk, reader) == CONTENT
    assert old.read_bytes() == bytes(CHUNK)


def test_a_full_disk_serves_through_says_so_once_and_goes_on_when_there_is_room(desk: Desk) -> None:
    with small_disk(desk.folder / "small", "3m") as disk:
        reader = desk.reader(cache=disk / "cache", limits=CacheLimits(free_bytes=0))
        for place in range(0, 40, 4):
            assert bytes(reader.read(desk.number, place * CHUNK, 4 * CHUNK)) == desk.part(place, 4)
        wait_until(lambda: reader.counters()["cache_failure"], "the failure")
        said = f"cache cannot keep chunks, serving through it: No space left on device: {disk / 'cache'}"
        assert desk.said.count(said) == 1
        again = desk.reader(cache=disk / "cache", limits=CacheLimits(free_bytes=0))
        assert whole(desk, again) == CONTENT
        assert again.counters()["quarantined_chunks"] == 0
        reader.close()
        again.close()
        desk.opened.clear()


def test_a_cache_that_turns_read_only_serves_what_it_has_and_fetches_the_rest(desk: Desk) -> None:
    with small_disk(desk.folder / "small", "16m") as disk:
        first = desk.reader(cache=disk / "cache")
        assert bytes(first.read(desk.number, 0, 4 * CHUNK)) == desk.part(0, 4)
        wait_until(lambda: first.at_hand(desk.number, 0, 4 * CHUNK) is not None, "the cache")
        first.close()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=60)
        reader = desk.reader(cache=disk / "cache")
        assert whole(desk, reader) == CONTENT
        assert reader.counters()["cache_chunks"] == 4
        assert min(first for first, _ in desk.ranges()) == desk.chunk(4).offset
        reader.close()
        desk.opened.clear()


def test_a_disk_that_hangs_is_gone_around_until_it_answers_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "DISK_SECONDS", 0.3)
    fill(desk, desk.reader(), 0, 4)
    reader = desk.reader()
    answers = threading.Event()
    read = PackFile.read

    def hang(self: PackFile, *arguments: Any) -> bytes:
        answers.wait(120)
        return read(self, *arguments)

    monkeypatch.setattr(PackFile, "read", hang)
    monkeypatch.setattr(PackFile, "read_now", lambda *_: None)
    started = time.monotonic()
    assert bytes(reader.read(desk.number, 0, 4 * CHUNK)) == desk.part(0, 4)
    assert bytes(reader.read(desk.number, 8 * CHUNK, CHUNK)) == desk.part(8)
    assert time.monotonic() - started < 60
    said = f"cache has not answered for 0.3 s, going around it: {desk.cache}"
    assert desk.said.count(said) == 1
    answers.set()
    wait_until(lambda: f"cache answers again: {desk.cache}" in desk.said, "the disk's return")
    fill(desk, reader, 20, 4)


def test_writing_that_hangs_holds_no_reader(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "DISK_SECONDS", 0.3)
    reader = desk.reader()
    answers = threading.Event()
    write = PackFile.write

    def hang(self: PackFile, *arguments: Any) -> int:
        answers.wait(120)
        return write(self, *arguments)

    monkeypatch.setattr(PackFile, "write", hang)
    started = time.monotonic()
    for place in range(40):
        assert bytes(reader.read(desk.number, place * CHUNK, CHUNK)) == desk.part(place)
    assert time.monotonic() - started < 60
    answers.set()


# --- several processes ---


def test_two_processes_that_want_the_same_fetch_it_once(desk: Desk) -> None:
    desk.server.fault = lambda handler: "/packs/" in handler.path and servers.slowly(0.1)(handler)
    with desk.process() as one, desk.process() as two:
        desk.server.requests.clear()
        for place in range(0, 40, 4):
            for other in (one, two):
                other.ask(place * CHUNK, 4 * CHUNK)
            for other in (one, two):
                assert other.answer() == desk.part(place, 4)
        assert desk.fetched_bytes == len(CONTENT)
        counters = [one.counters(), two.counters()]
    assert sum(counter["store_chunks"] for counter in counters) == 40
    assert sum(counter["cache_chunks"] for counter in counters) == 40


def test_overlapping_wishes_of_two_processes_are_fetched_once(desk: Desk) -> None:
    desk.server.fault = lambda handler: "/packs/" in handler.path and servers.slowly(0.2)(handler)
    with desk.process() as one, desk.process() as two:
        desk.server.requests.clear()
        one.ask(0, 24 * CHUNK)
        two.ask(16 * CHUNK, 24 * CHUNK)
        assert one.answer() == desk.part(0, 24)
        assert two.answer() == desk.part(16, 24)
    assert desk.fetched_bytes == len(CONTENT)


def test_a_process_that_is_killed_while_it_fetches_frees_what_it_held(desk: Desk) -> None:
    hold = threading.Event()
    desk.server.fault = lambda handler: "/packs/" in handler.path and not hold.wait(60)
    with desk.process() as killed:
        desk.server.requests.clear()
        killed.ask(0, 8 * CHUNK)
        wait_until(lambda: desk.ranges() != [], "its request")
        reader = desk.reader()
        answered = threading.Event()
        outcomes: list[Any] = []
        reader.read_later(desk.number, 0, 8 * CHUNK, lambda found: (outcomes.append(found), answered.set()))
        assert not answered.wait(0.3)
        assert desk.ranges() == []  # it waits for the other one
        os.kill(killed.process.pid, signal.SIGKILL)
        wait_until(lambda: desk.ranges() != [], "a request of our own")
        hold.set()
        assert answered.wait(60)
    assert bytes(outcomes[0]) == desk.part(0, 8)


def test_a_process_that_hangs_while_it_fetches_costs_a_bounded_wait(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringing_module, "_NEIGHBOUR_SECONDS", 0.5)
    stuck = threading.Event()
    held = [True]
    desk.server.fault = lambda handler: "/packs/" in handler.path and held[0] and not stuck.wait(60)
    with desk.process() as hanging:
        desk.server.requests.clear()
        hanging.ask(0, 4 * CHUNK)
        wait_until(lambda: desk.ranges() != [], "its request")
        os.kill(hanging.process.pid, signal.SIGSTOP)
        held[0] = False
        reader = desk.reader()
        started = time.monotonic()
        assert bytes(reader.read(desk.number, 0, 4 * CHUNK)) == desk.part(0, 4)
        assert 0.4 < time.monotonic() - started < 60
        stuck.set()


def test_a_writer_killed_at_any_moment_leaves_nothing_that_is_served_wrongly(desk: Desk) -> None:
    for moment in range(6):
        with desk.process() as other:
            for place in range(40):
                other.ask(place * CHUNK, CHUNK)
            for _ in range(moment * 6):
                other.answer()
            os.kill(other.process.pid, signal.SIGKILL)
        reader = desk.reader()
        assert whole(desk, reader) == CONTENT
        assert reader.counters()["quarantined_chunks"] == 0
        reader.close()
        desk.opened.remove(reader)
        desk.opened.append(desk.reader())
        desk.copy().unlink()


def test_readers_and_a_vandal_never_make_a_wrong_byte(desk: Desk) -> None:
    readers = [desk.reader(), desk.reader()]
    fill(desk, readers[0])
    choose = random.Random(17)

    def spoil() -> None:
        with desk.copy().open("r+b") as copy:
            for _ in range(4):
                copy.seek(choose.randrange(len(CONTENT)))
                copy.write(choose.randbytes(3))
            if choose.random() < 0.3:
                copy.truncate(choose.randrange(len(CONTENT)))

    def read(reader: ImageReader) -> int:
        wrong = 0
        for _ in range(30):
            place, length = choose.randrange(len(CONTENT)), choose.randrange(1, 6 * CHUNK)
            found = reader.at_hand(desk.number, place, length)
            if found is None:
                found = reader.read(desk.number, place, length)
            wrong += bytes(found) != CONTENT[place : place + length]
        return wrong

    with ThreadPoolExecutor(4) as pool:
        for _ in range(15):
            wait_until(lambda: not any(reader._flights.any for reader in readers), "the end of all writing")
            spoil()
            assert sum(pool.map(read, readers * 2)) == 0


def test_what_another_process_is_filling_is_no_damage(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []
    locked = bringing_module._locked
    monkeypatch.setattr(bringing_module, "_locked", lambda *given: looks.append(True) or locked(*given))
    first, second = desk.reader(), desk.reader()
    fill(desk, first, 0, 1)
    chunk, right = desk.chunk(3), desk.part(3)
    with desk.copy().open("r+b") as other:
        assert lock_range(other.fileno(), chunk.offset, CHUNK)
        looks.clear()
        os.pwrite(other.fileno(), right[CHUNK // 2 :], chunk.offset + CHUNK // 2)
        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(one.read, desk.number, 3 * CHUNK, CHUNK) for one in (first, second)]
            wait_until(lambda: len(looks) > 8, "readers that looked again and again")
            os.pwrite(other.fileno(), right[: CHUNK // 2], chunk.offset)
            unlock_range(other.fileno(), chunk.offset, CHUNK)
            assert [bytes(one.result(60)) for one in readers] == [right, right]
    assert [line for line in desk.said if "damaged" in line] == []
    assert first.cache.damaged_chunks == second.cache.damaged_chunks == 0
    assert (chunk.offset, chunk.end - 1) not in desk.ranges()


# --- what stands where a copy should, and is none of ours ---


@pytest.mark.parametrize("kind", ["link", "dead link", "link to a folder", "fifo", "second name", "other's"])
def test_what_is_no_copy_of_ours_is_not_written_and_reads_go_on(
    desk: Desk, tmp_path: Path, kind: str
) -> None:
    desk.reader()  # to know its chunks
    shutil.rmtree(desk.cache)
    victim = tmp_path / "victims" / desk.copy().name
    victim.parent.mkdir()
    victim.write_bytes(b"secret")
    desk.copy().parent.mkdir(parents=True)
    if kind == "link":
        desk.copy().symlink_to(victim)
    elif kind == "dead link":
        desk.copy().symlink_to(victim.with_name("new"))
    elif kind == "link to a folder":
        desk.copy().parent.rmdir()
        desk.copy().parent.symlink_to(victim.parent)
    elif kind == "fifo":
        os.mkfifo(desk.copy())
    elif kind == "second name":
        desk.copy().hardlink_to(victim)
    elif os.geteuid() == 0:
        desk.copy().write_bytes(b"theirs")
        os.chown(desk.copy(), 65534, -1)
    else:
        pytest.skip("only root can give files away")
    reader = desk.reader()
    assert whole(desk, reader) == CONTENT
    wait_until(lambda: not reader._flights.any, "the end of all writing")
    assert reader.cache.failure is not None
    assert str(desk.copy() if kind != "link to a folder" else desk.copy().parent) in reader.cache.failure
    assert victim.read_bytes() == b"secret"
    assert os.listdir(victim.parent) == [victim.name]
    if kind == "other's":
        assert desk.copy().read_bytes() == b"theirs"


def test_what_is_put_aside_swept_and_scrubbed_is_not_looked_for_behind_links(
    desk: Desk, tmp_path: Path
) -> None:
    victims = tmp_path / "victims"
    (victims / "sub").mkdir(parents=True)
    names = ("a.pack", "a.index", "old", "sub/a.locator", "sub/a.pack")
    for name in names:
        (victims / name).write_bytes(b"secret")
        os.utime(victims / name, (0, 0))
    fill(desk, desk.reader())
    shutil.rmtree(desk.cache / "locators-v1")
    for name in ("quarantine-v1", "locators-v1", "chunks-v1"):
        (desk.cache / name).symlink_to(victims)
    (desk.cache / "packs-v2" / "00").symlink_to(victims)
    scrub_cache(desk.cache, progress=Progress())
    assert all((victims / name).read_bytes() == b"secret" for name in names)
    assert [copy.path for copy in copies_of(desk.cache)] == [desk.copy()]
    flip(desk.copy(), desk.chunk(3).offset + 5)
    assert whole(desk, desk.reader()) == CONTENT
    assert len(os.listdir(victims)) == 4


# --- locks ---


def test_an_open_copy_is_leased(desk: Desk) -> None:
    reader = desk.reader()
    fill(desk, reader, 0, 1)
    descriptor = os.open(desk.copy(), os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        reader.close()
        desk.opened.remove(reader)
        del reader
        wait_until(lambda: _lockable(descriptor), "the end of the lease")
    finally:
        os.close(descriptor)


def _lockable(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_range_locks_exclude_overlaps_of_other_open_files_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    one, two = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    try:
        assert lock_range(one, 100, 50)
        assert lock_range(one, 120, 50)
        assert not lock_range(two, 169, 5)
        assert lock_range(two, 170, 5)
        unlock_range(one, 100, 30)
        assert lock_range(two, 100, 30)
        assert not lock_range(two, 129, 2)
        os.close(one)
        assert lock_range(two, 0, 1000)
    finally:
        os.close(two)
