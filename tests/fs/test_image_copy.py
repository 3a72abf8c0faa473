"""Copies between stores: only what is missing, nothing damaged, the name last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart_cli.errors import CannotCreateError, DataError, IoFailure, NotFoundError, UsageError
from coldstart_fs.format.names import digest_text, index_key, locator_key
from coldstart_fs.format.pack import PackWriter
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.image_copy import CopyReport, Packs, copy_image
from coldstart_fs.stores.references import list_names, resolve_image, write_ref
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from conftest import wait_until
from fs.conftest import Bucket
from fs.mounts import flip, small_disk
from fs.servers import nginx
from image_builder import image_facts

PACK_BYTES = 300_000


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PackWriter.__init__.__kwdefaults__, "full_bytes", PACK_BYTES)  # type: ignore[attr-defined]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    for number in range(6):
        (root / str(number)).write_bytes(os.urandom(310_000 + number))
    return root


@pytest.fixture
def source(root: Path, tmp_path: Path) -> Store:
    """A folder store with an image of six packs."""
    store = open_store(str(tmp_path / "source"), create=True)
    index_image(f"dir:{root}", store=store, name="image")
    assert len(store.list("packs/")) == 6
    return store


def objects(store: Store) -> dict[str, bytes]:
    return {key: store.get(key) for key in store.list("") if not key.startswith("refs/")}


def pack_bytes(store: Store, *keys: str) -> int:
    return sum(len(store.get(key)) for key in keys or store.list("packs/"))


def fresh_folder(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "copy"), create=True)


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_a_copy_is_the_same_image_and_a_second_one_sends_nothing(
    source: Store, bucket: Bucket, tmp_path: Path, kind: str
) -> None:
    destination = fresh_folder(tmp_path) if kind == "folder" else open_store(bucket.url, create=True)
    report = copy_image("image", source, destination)
    assert report.sent == Packs(6, pack_bytes(source))
    assert (report.held, report.not_needed) == (Packs(), Packs())
    assert objects(destination) == objects(source)
    assert resolve_image(destination, "image").digest == report.digest
    again = copy_image("image", source, destination)
    assert (again.sent, again.held) == (Packs(), report.sent)
    assert not list(tmp_path.rglob("*writing-*"))


def test_images_move_from_bucket_to_bucket_and_from_http(
    source: Store, bucket: Bucket, root: Path, tmp_path: Path
) -> None:
    first = open_store(bucket.url, create=True)
    copy_image("image", source, first)
    second = open_store(f"s3://{bucket.name}/other", create=True)
    copy_image("image", first, second, new_name="team/moved:1")
    assert list_names(second) == ["team/moved:1"]
    assert image_facts(second, "team/moved:1")[b"3"].content == (root / "3").read_bytes()
    with nginx(tmp_path / "nginx", tmp_path / "source") as server:
        third = fresh_folder(tmp_path)
        report = copy_image("image", open_store(server.url), third)
    assert report.source == server.url
    assert objects(third) == objects(source)


def test_packs_that_are_there_are_skipped(source: Store, tmp_path: Path) -> None:
    destination = fresh_folder(tmp_path)
    here, half, ends_wrong = source.list("packs/")[:3]
    with destination.writing():
        destination.put_bytes(here, source.get(here))
        destination.put_bytes(half, source.get(half)[:1000])  # as a dying disk may
        destination.put_bytes(ends_wrong, source.get(ends_wrong)[:-32] + bytes(32))
    report = copy_image("image", source, destination)
    assert report.held == Packs(1, pack_bytes(source, here))
    assert report.sent.count == 5
    assert objects(destination) == objects(source)


def test_a_pack_that_is_whole_there_need_not_be_whole_here(source: Store, tmp_path: Path) -> None:
    destination = fresh_folder(tmp_path)
    copy_image("image", source, destination)
    whole = objects(destination)
    cut, gone = source.list("packs/")[:2]
    source.put_bytes(cut, b"")
    (tmp_path / "source" / gone).unlink()
    assert copy_image("image", source, destination).sent == Packs()
    assert objects(destination) == whole


def test_a_pack_that_is_cut_there_and_gone_here_is_told(source: Store, tmp_path: Path) -> None:
    destination = fresh_folder(tmp_path)
    copy_image("image", source, destination)
    key = source.list("packs/")[0]
    destination.put_bytes(key, destination.get(key)[:-1])
    (tmp_path / "source" / key).unlink()
    with pytest.raises(DataError, match=f"pack is not in the store: {source.url}/{key}"):
        copy_image("image", source, destination)


def test_chunks_that_lie_in_other_packs_are_not_sent_again(
    source: Store, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = fresh_folder(tmp_path)
    (root / "5").rename(tmp_path / "5")
    monkeypatch.setitem(PackWriter.__init__.__kwdefaults__, "full_bytes", 10 * PACK_BYTES)  # type: ignore[attr-defined]
    index_image(f"dir:{root}", store=destination, name="other")
    assert len(destination.list("packs/")) == 1
    report = copy_image("image", source, destination)
    assert (report.sent.count, report.not_needed.count, report.held.count) == (1, 5, 0)
    (tmp_path / "5").rename(root / "5")
    facts = image_facts(destination, "image")
    assert {path.name: path.read_bytes() for path in root.iterdir()} == {
        os.fsdecode(name): fact.content for name, fact in facts.items() if name
    }
    assert copy_image("image", source, destination).sent == Packs()


def test_a_dry_run_says_the_same_and_writes_nothing(source: Store, tmp_path: Path) -> None:
    planned = copy_image("image", source, fresh_folder(tmp_path), dry_run=True)
    assert not (tmp_path / "copy").exists()
    done = copy_image("image", source, fresh_folder(tmp_path))
    assert (planned.sent, planned.digest, planned.dry_run) == (done.sent, done.digest, True)


def test_a_copy_onto_itself_sends_nothing_and_may_give_another_name(source: Store) -> None:
    before = objects(source)
    assert copy_image("image", source, source).sent == Packs()
    report = copy_image("image", source, source, new_name="again")
    assert (report.sent, report.held.count) == (Packs(), 6)
    assert list_names(source) == ["again", "image"]
    assert objects(source) == before


def test_pinned_images_and_bare_digests_are_copied(source: Store, tmp_path: Path) -> None:
    digest = resolve_image(source, "image").digest
    assert copy_image(f"image@{digest_text(digest)}", source, fresh_folder(tmp_path)).name == "image"
    with pytest.raises(UsageError, match=r"the copy of blake3:\w+ needs a name"):
        copy_image(digest_text(digest), source, fresh_folder(tmp_path))
    assert copy_image(digest_text(digest), source, fresh_folder(tmp_path), new_name="n").digest == digest
    with pytest.raises(DataError, match="image name `image` stands for"):
        copy_image("image@blake3:" + "0" * 64, source, fresh_folder(tmp_path))
    with pytest.raises(NotFoundError, match="image is not in the store: imago"):
        copy_image("imago", source, fresh_folder(tmp_path))


def damage_pack(store: Store) -> str:
    key = store.list("packs/")[3]
    path = store.local_path(key)
    assert path is not None
    flip(path, 1234)
    return key


def damage_index(store: Store) -> str:
    (key,) = store.list("images/")
    path = store.local_path(key)
    assert path is not None
    flip(path, 300)
    return key


def stretch(store: Store, prefix: str) -> str:
    """To more than any memory holds."""
    (key,) = store.list(prefix)
    path = store.local_path(key)
    assert path is not None
    os.truncate(path, 3 << 40)
    return key


def stretch_index(store: Store) -> str:
    return stretch(store, "images/")


def stretch_locator(store: Store) -> str:
    return stretch(store, "locators/")


def remove_pack(store: Store) -> str:
    key = store.list("packs/")[2]
    path = store.local_path(key)
    assert path is not None
    path.unlink()
    return key


@pytest.mark.parametrize("damage", [damage_pack, damage_index, stretch_index, stretch_locator, remove_pack])
def test_damage_in_the_source_is_named_and_never_published(
    source: Store, tmp_path: Path, damage: Callable[[Store], str]
) -> None:
    key = damage(source)
    destination = fresh_folder(tmp_path)
    with pytest.raises(DataError, match=f"damaged.*{key}"):
        copy_image("image", source, destination)
    assert not destination.exists(key)
    assert not [
        found for found in destination.list("") if found.startswith(("refs/", "images/", "locators/"))
    ]
    assert not list((tmp_path / "copy").glob(".writing-*"))


def test_a_locator_that_is_damaged_is_refused(source: Store, tmp_path: Path) -> None:
    digest = resolve_image(source, "image").digest
    path = source.local_path(locator_key(digest))
    assert path is not None
    flip(path, 200)
    with pytest.raises(DataError, match="locator is damaged"):
        copy_image("image", source, fresh_folder(tmp_path))


def test_names_that_collide_are_refused_before_anything_is_sent(source: Store, tmp_path: Path) -> None:
    destination = fresh_folder(tmp_path)
    with destination.writing():
        write_ref(destination, "image/x", bytes(32))
        write_ref(destination, "app", bytes(32))
    for name in ("image", "app/y"):
        with pytest.raises(CannotCreateError, match="names collide in the store"):
            copy_image("image", source, destination, new_name=name)
    assert destination.list("packs/") == []


@pytest.mark.parametrize("where", ["destination", "scratch"])
def test_a_full_disk_is_named_and_leaves_no_image(
    source: Store, bucket: Bucket, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "small", "1m") as disk:
        if where == "scratch":
            # four packs at a time go through it
            monkeypatch.setenv("TMPDIR", str(disk))
            destination = open_store(bucket.url, create=True)
        else:
            destination = open_store(str(disk / "store"), create=True)
        with pytest.raises(IoFailure, match="No space left on device"):
            copy_image("image", source, destination)
        assert not [found for found in destination.list("") if found.startswith(("refs/", "images/"))]
        assert not list(disk.rglob("*writing-*"))


SCRIPT = """
import pathlib, signal, sys, threading
from coldstart_fs.stores import image_copy
from coldstart_fs.stores.store_url import open_store

fetch, lock, begun = image_copy._fetch, threading.Lock(), []

def stop(*arguments):
    with lock:
        begun.append(arguments)
        if len(begun) > 3:
            pathlib.Path(sys.argv[3]).touch()
            signal.pause()
    fetch(*arguments)

image_copy._fetch = stop
image_copy.copy_image("image", open_store(sys.argv[1]), open_store(sys.argv[2], create=True))
"""


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_a_killed_copy_goes_on_where_it_was(source: Store, bucket: Bucket, tmp_path: Path, kind: str) -> None:
    url = str(tmp_path / "copy") if kind == "folder" else bucket.url
    here = tmp_path / "three packs are on their way"
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, source.url, url, here])
    destination = open_store(url, create=True)
    try:
        wait_until(lambda: here.exists() and len(destination.list("packs/")) == 3, "three packs to be there")
        child.send_signal(signal.SIGKILL)
        child.wait(60)
    finally:
        child.kill()
        child.wait(60)
    assert destination.list("refs/") == []
    report: CopyReport = copy_image("image", source, destination)
    assert (report.held.count, report.sent.count) == (3, 3)
    assert objects(destination) == objects(source)
    assert destination.exists(index_key(report.digest))
    assert not list(tmp_path.rglob("*writing-*"))
