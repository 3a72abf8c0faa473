"""What `image gc` removes from a store, and above all what it does not."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart_cli.errors import ColdstartError, DataError, UnavailableError, UsageError
from coldstart_fs.format.names import digest_text, index_key, locator_key, ref_key
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores import collect as collecting
from coldstart_fs.stores.collect import Collection, collect
from coldstart_fs.stores.condemned import KEY, load_condemned
from coldstart_fs.stores.image_copy import copy_image
from coldstart_fs.stores.leases import lease, lease_key, list_leases, release
from coldstart_fs.stores.references import resolve_image
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from fs.conftest import Bucket
from fs.mounts import flip
from fs.servers import nginx
from image_builder import image_facts

DAY = 86400.0


class Shop:
    """A store with images, and a clock that tests can put forward for `collect`."""

    def __init__(self, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._ahead_seconds = 0.0

    def later(self, seconds: float) -> None:
        self._ahead_seconds += seconds
        ahead = self._ahead_seconds
        real = time.time
        self._monkeypatch.setattr(collecting.time, "time", lambda: real() + ahead)

    def add(self, name: str, *contents: bytes) -> bytes:
        root = self._folder / f"root-{name}-{len(contents)}-{os.urandom(4).hex()}"
        root.mkdir()
        for number, content in enumerate(contents):
            (root / str(number)).write_bytes(content)
        for path in (*root.iterdir(), root):  # the same contents are the same image
            os.utime(path, (0, 0))
        index_image(f"dir:{root}", store=self.store, name=name)
        return resolve_image(self.store, name).digest

    def forget(self, name: str) -> None:
        self.store.delete(ref_key(name))

    def collect(self, grace_days: float = 7, **options: object) -> Collection:
        return collect(self.store, grace_seconds=grace_days * DAY, **options)  # type: ignore[arg-type]

    def keys(self, *prefixes: str) -> list[str]:
        return [
            key
            for prefix in prefixes or ("images/", "locators/", "packs/")
            for key in self.store.list(prefix)
        ]


@pytest.fixture(params=["folder", "s3"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    if request.param == "folder":
        return Shop(open_store(str(tmp_path / "store"), create=True), tmp_path, monkeypatch)
    bucket: Bucket = request.getfixturevalue("bucket")
    return Shop(open_store(bucket.url, create=True), tmp_path, monkeypatch)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(open_store(str(tmp_path / "store"), create=True), tmp_path, monkeypatch)


def content() -> bytes:
    return os.urandom(200_000)


def test_what_lost_its_name_goes_after_two_grace_times_and_the_rest_stays_whole(shop: Shop) -> None:
    shared = content()
    kept = shop.add("kept", shared, content())
    facts = image_facts(shop.store, "kept")
    shop.add("gone", shared, content())
    shop.forget("gone")
    before = shop.keys()
    assert shop.collect().removed == []
    shop.later(8 * DAY)
    report = shop.collect()
    assert report.removed == []
    assert len(report.condemned) == 3  # index, locator, and the pack with what `kept` does not share
    assert shop.keys() == before
    shop.later(8 * DAY)
    report = shop.collect()
    assert sorted(one.key for one in report.removed) == sorted(set(before) - set(shop.keys()))
    assert shop.keys("images/") == [index_key(kept)]
    assert image_facts(shop.store, "kept") == facts
    assert load_condemned(shop.store).since == {}


def test_an_image_that_got_its_name_back_is_kept(shop: Shop) -> None:
    data = content()
    shop.add("image", data)
    before = shop.keys()
    shop.forget("image")
    shop.later(8 * DAY)
    assert len(shop.collect().condemned) == 3
    shop.add("image", data)
    shop.later(8 * DAY)
    assert shop.collect().removed == []
    assert set(before) <= set(shop.keys())
    image_facts(shop.store, "image")


def test_a_new_image_does_not_build_on_a_pack_that_is_condemned(folder: Shop) -> None:
    data = content()
    folder.add("old", data)
    (pack,) = folder.keys("packs/")
    folder.forget("old")
    folder.later(8 * DAY)
    folder.collect()
    folder.add("new", data, content())
    packs = set(folder.keys("packs/"))
    folder.later(8 * DAY)
    assert pack in [one.key for one in folder.collect().removed]
    assert packs - {pack} <= set(folder.keys("packs/"))
    image_facts(folder.store, "new")


def test_a_copy_sends_a_condemned_pack_again(folder: Shop, tmp_path: Path) -> None:
    data = content()
    source = Shop(open_store(str(tmp_path / "source"), create=True), tmp_path, pytest.MonkeyPatch())
    source.add("image", data)
    copy_image("image", source.store, folder.store)
    folder.forget("image")
    folder.later(8 * DAY)
    folder.collect()
    assert copy_image("image", source.store, folder.store).sent.count == 1


def test_a_lease_holds_an_image_that_has_no_name_until_it_ends(shop: Shop) -> None:
    image = shop.add("image", content())
    shop.forget("image")
    lease(shop.store, image, "host-1", days=365)
    for _ in range(3):
        shop.later(8 * DAY)
        report = shop.collect()
        assert (report.removed, report.condemned) == ([], [])
    lease(shop.store, image, "host-1", days=-1)
    report = shop.collect()
    assert report.ended_leases == 1
    assert list_leases(shop.store) == []
    shop.later(8 * DAY)
    assert len(shop.collect().removed) == 3


def test_a_lease_that_cannot_be_read_holds_for_ever(folder: Shop) -> None:
    image = folder.add("image", content())
    folder.forget("image")
    folder.store.put_bytes(lease_key(image, "somebody"), b"{")
    for _ in range(2):
        folder.later(8 * DAY)
        assert folder.collect().removed == []
    release(folder.store, image, "somebody")
    folder.collect()
    folder.later(8 * DAY)
    assert len(folder.collect().removed) == 3


def test_an_image_that_this_host_uses_is_in_use(folder: Shop) -> None:
    image = folder.add("image", content())
    folder.forget("image")
    folder.later(20 * DAY)
    assert folder.collect(grace_days=0, in_use=[image]).removed == []
    assert len(folder.collect(grace_days=0).removed) == 3


def test_what_was_written_within_the_grace_time_is_in_use(shop: Shop) -> None:
    shop.add("image", content())
    shop.forget("image")
    report = shop.collect(grace_days=1)
    assert (report.removed, report.condemned, report.images_in_use) == ([], [], 1)


def test_a_name_that_cannot_be_read_ends_the_run_with_nothing_removed(folder: Shop) -> None:
    folder.add("good", content())
    folder.add("gone", content())
    folder.forget("gone")
    folder.store.put_bytes(ref_key("damaged"), b"{")
    before = folder.keys()
    with pytest.raises(DataError, match="nothing is removed while it is not known which image that is"):
        folder.collect(grace_days=0)
    assert folder.keys() == before


@pytest.mark.parametrize("damage", [lambda path: flip(path, 150), lambda path: path.write_bytes(b"")])
def test_a_locator_that_cannot_be_read_ends_the_run_with_nothing_removed(
    folder: Shop, damage: Callable[[Path], None]
) -> None:
    image = folder.add("good", content())
    folder.add("gone", content())
    folder.forget("gone")
    path = folder.store.local_path(locator_key(image))
    assert path is not None
    damage(path)
    before = folder.keys()
    with pytest.raises(ColdstartError, match="which packs that image needs"):
        folder.collect(grace_days=0)
    assert folder.keys() == before


def test_a_damaged_list_of_the_condemned_is_refused(folder: Shop) -> None:
    folder.add("good", content())
    folder.store.put_bytes(KEY, b"[]")
    with pytest.raises(DataError, match=r"damaged: .*condemned\.json"):
        folder.collect()


def test_objects_that_are_none_of_ours_are_left_alone(folder: Shop) -> None:
    folder.add("image", content())
    mine = {"packs/00/notes.pack", "images/readme.index", "notes.txt", "locators/x"}
    for key in mine:
        folder.store.put_bytes(key, b"mine")
    folder.later(30 * DAY)
    folder.collect(grace_days=0)
    assert {"packs/00/notes.pack", "images/readme.index", "notes.txt", "locators/x"} <= set(
        folder.store.list("")
    )


def test_a_rehearsal_changes_nothing_and_says_the_same(folder: Shop) -> None:
    folder.add("gone", content())
    folder.forget("gone")
    before = folder.store.list("")
    rehearsed = folder.collect(grace_days=0, dry_run=True)
    assert folder.store.list("") == before
    assert rehearsed.removed == folder.collect(grace_days=0).removed


def test_a_bucket_has_no_lock_so_its_grace_time_is_not_short(bucket: Bucket) -> None:
    store = open_store(bucket.url, create=True)
    with pytest.raises(UsageError, match="too short for a store without a lock"):
        collect(store, grace_seconds=60)


def test_a_name_that_comes_while_it_sweeps_saves_its_image(
    folder: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = folder.add("image", content())
    folder.forget("image")
    folder.later(8 * DAY)
    folder.collect()
    folder.later(8 * DAY)
    save = collecting.save_condemned

    def meanwhile(store: Store, condemned: object) -> None:
        save(store, condemned)  # type: ignore[arg-type]
        document = {"schema": "coldstart.ref", "version": 1, "image": digest_text(image), "created": "now"}
        store.put_bytes(ref_key("again"), json.dumps(document).encode())

    monkeypatch.setattr(collecting, "save_condemned", meanwhile)
    assert folder.collect().removed == []
    image_facts(folder.store, "again")


def test_a_store_over_http_cannot_be_cleaned(folder: Shop, tmp_path: Path) -> None:
    folder.add("image", content())
    path = folder.store.local_path("")
    assert path is not None
    with nginx(tmp_path / "nginx", path) as server, pytest.raises(UnavailableError):
        collect(open_store(server.url))
