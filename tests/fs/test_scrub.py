"""Looking through cache and store: damage is found, in the cache it is mended, in the store it is told."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_fs.content.pull import pull_image
from coldstart_fs.content.scrub import CacheScrub, scrub_cache
from coldstart_fs.format.names import index_key, locator_key
from coldstart_fs.indexing.build import index_image
from coldstart_fs.indexing.progress import Progress
from coldstart_fs.stores.scrub import StoreScrub, scrub_store
from coldstart_fs.stores.store_url import open_store
from fs import servers
from fs.mounts import flip
from fs.readers import CHUNK, Desk, reader_desk

CONTENT = random.Random(41).randbytes(30 * CHUNK + 5)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with reader_desk(tmp_path, CONTENT) as desk:
        yield desk


@pytest.fixture
def pulled(desk: Desk) -> Desk:
    desk.reader().close()
    desk.opened.clear()
    pull_image("image", open_store(desk.server.url), desk.cache)
    return desk


def scrub(desk: Desk, **settings: bool) -> CacheScrub:
    return scrub_cache(desk.cache, progress=Progress(), **settings)


def scrub_of_store(desk: Desk, *names: str) -> StoreScrub:
    return scrub_store(open_store(str(desk.folder / "store")), names, progress=Progress())


def test_a_sound_cache_is_verified_whole(pulled: Desk) -> None:
    found = scrub(pulled)
    assert (found.packs, found.verified_bytes, found.damage) == (1, len(CONTENT), ())


def test_damage_is_put_aside_removed_and_fetched_again(pulled: Desk) -> None:
    bad = pulled.chunk(11)
    flip(pulled.copy(), bad.offset + 99)
    before = pulled.copy().read_bytes()
    rehearsal = scrub(pulled, dry_run=True)
    assert [damage.action for damage in rehearsal.damage] == ["found"]
    assert pulled.copy().read_bytes() == before
    found = scrub(pulled)
    assert [damage.action for damage in found.damage] == ["removed"]
    assert bad.digest.hex() in found.damage[0].what
    assert (pulled.cache / "quarantine-v1" / bad.digest.hex()).read_bytes() == before[bad.offset : bad.end]
    assert scrub(pulled).damage == ()
    assert scrub(pulled).verified_bytes == len(CONTENT) - CHUNK
    reader = pulled.reader()
    assert bytes(reader.read(pulled.number, 0, len(CONTENT))) == CONTENT
    assert pulled.ranges() == [(bad.offset, bad.end - 1)]


def test_damage_under_a_live_mount_is_left_to_it_and_never_becomes_zeros(pulled: Desk) -> None:
    reader = pulled.reader()
    assert bytes(reader.read(pulled.number, 0, len(CONTENT))) == CONTENT
    flip(pulled.copy(), pulled.chunk(3).offset + 4)
    assert [damage.action for damage in scrub(pulled).damage] == ["in_use"]
    assert bytes(reader.read(pulled.number, 3 * CHUNK, CHUNK)) == pulled.part(3)
    reader.settle()
    assert scrub(pulled).damage == ()


def test_a_cache_that_is_being_filled_is_not_damaged(desk: Desk) -> None:
    desk.server.fault = servers.slowly(0.002)
    reader = desk.reader()
    done = threading.Event()

    def fill() -> None:
        for place in random.Random(43).sample(range(30), 30):
            reader.read(desk.number, place * CHUNK, CHUNK)
        done.set()

    filling = threading.Thread(target=fill)
    filling.start()
    found = []
    while not done.is_set():
        found.append(scrub(desk, dry_run=True).damage)
    filling.join()
    assert not any(found)


def test_bytes_that_no_known_image_describes_are_counted_and_kept(pulled: Desk) -> None:
    stranger = pulled.cache / "packs-v2" / "ab" / f"{'ab' * 32}.pack"
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_bytes(b"x" * 5000)
    found = scrub(pulled)
    assert found.unknown_bytes >= 5000
    assert found.damage == ()
    assert stranger.exists()


def test_a_damaged_copy_of_an_index_or_a_locator_is_removed(pulled: Desk) -> None:
    index = next((pulled.cache / "images-v1").glob("*.index"))
    locator = next((pulled.cache / "locators-v1").glob("*/*.locator"))
    for path in (index, locator):
        flip(path, path.stat().st_size - 3)
    found = scrub(pulled)
    assert {damage.file for damage in found.damage} == {str(index), str(locator)}
    assert not index.exists()
    assert not locator.exists()


def test_a_cache_that_is_not_there_has_no_damage(tmp_path: Path) -> None:
    assert scrub_cache(tmp_path / "absent", progress=Progress()) == CacheScrub(0, 0, 0, (), ())


def test_a_sound_store_is_verified_whole(desk: Desk) -> None:
    desk.reader()
    found = scrub_of_store(desk)
    assert (found.images, found.packs, found.damage) == (1, 1, ())
    assert found.verified_bytes > len(CONTENT)
    remote = scrub_store(open_store(desk.server.url), ["image"], progress=Progress())
    assert remote == found


def test_each_damage_of_a_store_is_told_with_who_needs_it_and_what_helps(desk: Desk) -> None:
    desk.reader()
    store = open_store(str(desk.folder / "store"), create=True)
    index_image(f"dir:{desk.folder / 'tree'}", store=store, name="second")
    flip(desk.pack(), desk.chunk(5).offset)
    (damage,) = scrub_of_store(desk).damage
    assert damage.images == ("image", "second")
    assert damage.what.startswith("its digest is blake3:")
    assert damage.hint == f"remove {damage.key} from the store and index the image again"
    flip(desk.pack(), desk.chunk(5).offset)
    assert scrub_of_store(desk).damage == ()
    os.truncate(desk.pack(), desk.chunk(9).offset)
    assert "pack is damaged" in scrub_of_store(desk).damage[0].what
    desk.pack().unlink()
    assert scrub_of_store(desk).damage[0].what == "it is not in the store"


@pytest.mark.parametrize("key", [index_key, locator_key])
def test_damaged_metadata_of_one_image_keeps_no_other_from_being_verified(desk: Desk, key: object) -> None:
    desk.reader()
    tree = desk.folder / "other"
    tree.mkdir()
    (tree / "file").write_bytes(b"other")
    index_image(f"dir:{tree}", store=open_store(str(desk.folder / "store"), create=True), name="other")
    path = desk.folder / "store" / key(desk.digest)  # type: ignore[operator]
    flip(path, path.stat().st_size - 3)
    found = scrub_of_store(desk)
    assert [damage.key for damage in found.damage] == ["refs/image"]
    assert str(path) in found.damage[0].what
    assert found.packs == 1
