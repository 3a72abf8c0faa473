"""Stores: keys, names, locks, and refusals that say what to do."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path

import pytest

from coldstart_cli.errors import (
    BusyError,
    CannotCreateError,
    ColdstartError,
    DataError,
    NotFoundError,
    UsageError,
)
from coldstart_fs.format.names import digest_text, index_key, parse_digest
from coldstart_fs.stores.references import list_names, resolve_image, write_ref
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store

DIGEST = bytes(range(32))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(str(tmp_path / "store"), create=True)
    with store.writing():
        pass
    return store


def test_objects_come_back_whole_and_in_ranges(store: Store) -> None:
    store.put_bytes("packs/00/x.pack", b"0123456789")
    assert store.get("packs/00/x.pack") == b"0123456789"
    assert store.get_range("packs/00/x.pack", 3, 4) == b"3456"
    assert store.exists("packs/00/x.pack")
    assert not store.exists("packs/00")
    with pytest.raises(DataError, match=r"x\.pack: it ends before byte 12, at 10"):
        store.get_range("packs/00/x.pack", 8, 4)
    with pytest.raises(NotFoundError, match=r"object is not in the store: .*packs/00/y"):
        store.get_range("packs/00/y", 0, 1)


def test_files_are_published_from_the_scratch_folder(store: Store, tmp_path: Path) -> None:
    with store.writing() as scratch:
        (scratch / "f").write_bytes(b"content")
        store.put_file("packs/aa/f", scratch / "f")
        assert not (scratch / "f").exists()
    assert store.get("packs/aa/f") == b"content"
    assert not scratch.exists()


def test_lists_hold_keys_and_nothing_of_our_own(store: Store) -> None:
    for key in ("refs/a", "refs/b/c", "images/x.index"):
        store.put_bytes(key, b"")
    with store.writing() as scratch:
        (scratch / "half.pack").write_bytes(b"x")
        assert store.list("refs/") == ["refs/a", "refs/b/c"]
        assert store.list("refs/b") == ["refs/b/c"]
        assert store.list("") == ["coldstart-store.json", "images/x.index", "refs/a", "refs/b/c"]
        assert store.list("nothing/") == []


def test_one_writer_at_a_time(store: Store) -> None:
    with store.writing(), pytest.raises(BusyError, match="locked by another process: pid"), store.writing():
        pass


def test_a_second_writer_may_wait(store: Store) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with store.writing():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert entered.wait(60)
        threading.Timer(0.1, leave.set).start()
        with store.writing(wait_seconds=20):
            assert leave.is_set()
    finally:
        leave.set()
        thread.join()


def test_what_a_killed_writer_left_is_swept_by_the_next(store: Store, tmp_path: Path) -> None:
    stale = tmp_path / "store" / ".writing-abc"
    stale.mkdir()
    (stale / "0.pack").write_bytes(b"half")
    with store.writing():
        assert not stale.exists()


def test_an_absent_store_is_refused_and_opening_never_makes_one(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=re.escape(f"there is no image store: {tmp_path}/none")):
        open_store(str(tmp_path / "none"))
    open_store(str(tmp_path / "none"), create=True)
    assert not (tmp_path / "none").exists()


def test_a_folder_of_other_things_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(CannotCreateError, match="not an image store, and not an empty folder"):
        open_store(str(tmp_path), create=True)
    with pytest.raises(ColdstartError):
        open_store(str(tmp_path / "mine"), create=True)


def test_a_store_that_another_writer_makes_at_this_moment_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listdir, made = os.listdir, open_store(str(tmp_path / "store"), create=True)
    (tmp_path / "store").mkdir()

    def late(path: Path) -> list[str]:
        monkeypatch.setattr(os, "listdir", listdir)
        with made.writing():
            write_ref(made, "app", DIGEST)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", late)
    assert list_names(open_store(str(tmp_path / "store"), create=True)) == ["app"]


def test_file_urls_name_folders(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    os.rename(tmp_path / "store", folder)
    assert open_store(f"file://{tmp_path}/with%20space").url == str(folder)
    with pytest.raises(UsageError, match="not a file URL"):
        open_store("file://host/path")


def test_a_newer_store_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "store/coldstart-store.json").write_text('{"schema": "coldstart.store", "version": 2}')
    with pytest.raises(DataError, match="version 2"):
        open_store(str(tmp_path / "store"))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "other", "version": 1}', "[" * 100_000])
def test_a_damaged_marker_is_named(store: Store, tmp_path: Path, content: str) -> None:
    (tmp_path / "store/coldstart-store.json").write_text(content)
    with pytest.raises(DataError, match="coldstart-store"):
        open_store(str(tmp_path / "store"))


def test_names_resolve_bare_pinned_and_by_digest(store: Store) -> None:
    store.put_bytes(index_key(DIGEST), b"")
    write_ref(store, "team/app:1.0", DIGEST)
    text = digest_text(DIGEST)
    bare = resolve_image(store, "team/app:1.0")
    assert (bare.name, bare.digest, bare.pinned) == ("team/app:1.0", DIGEST, f"team/app:1.0@{text}")
    assert resolve_image(store, f"team/app:1.0@{text}") == bare
    assert resolve_image(store, text).pinned == text
    assert list_names(store) == ["team/app:1.0"]


def test_a_name_that_stands_for_something_else_than_its_pin_is_refused(store: Store) -> None:
    write_ref(store, "app", DIGEST)
    pin = "blake3:" + "0" * 64
    with pytest.raises(DataError, match="image name `app` stands for blake3:0001") as caught:
        resolve_image(store, f"app@{pin}")
    assert caught.value.hint == f"pin it as app@{digest_text(DIGEST)}"
    store.put_bytes(index_key(parse_digest(pin)), b"index")
    with pytest.raises(DataError, match="stands for") as caught:
        resolve_image(store, f"app@{pin}")
    assert caught.value.hint == f"pin it as app@{digest_text(DIGEST)}, or use {pin} alone"


def test_an_unknown_name_brings_near_matches(store: Store) -> None:
    write_ref(store, "server", DIGEST)
    with pytest.raises(NotFoundError, match="image is not in the store: sevrer") as caught:
        resolve_image(store, "sevrer")
    assert caught.value.hint == "did you mean `server`?"
    with pytest.raises(NotFoundError, match="blake3:ffff"):
        resolve_image(store, "blake3:" + "f" * 64)


@pytest.mark.parametrize(
    "name", ["", "/a", "a//b", "a/../b", "..", "a/.", "-a", "a b", "a" * 256, "\u00e4", "a@b", "a\n"]
)
def test_names_that_cannot_be_are_refused(store: Store, name: str) -> None:
    with pytest.raises(UsageError):
        resolve_image(store, name)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[1]",
        '{"schema": "coldstart.ref", "version": 1}',
        '{"schema": "coldstart.ref", "version": 1, "image": 3, "created": ""}',
        '{"schema": "coldstart.ref", "version": 9}',
        "[" * 100_000,
    ],
)
def test_a_damaged_reference_is_named(store: Store, content: str) -> None:
    store.put_bytes("refs/app", content.encode())
    with pytest.raises(DataError, match="refs/app"):
        resolve_image(store, "app")


def test_a_name_below_another_name_is_refused_in_words(store: Store) -> None:
    write_ref(store, "app", DIGEST)
    with pytest.raises(CannotCreateError, match="names collide"):
        write_ref(store, "app/x", DIGEST)
    write_ref(store, "b/x", DIGEST)
    with pytest.raises(CannotCreateError, match="names collide"):
        write_ref(store, "b", DIGEST)


def test_a_reference_says_since_when(store: Store) -> None:
    write_ref(store, "app", DIGEST)
    document = json.loads(store.get("refs/app"))
    assert document["schema"] == "coldstart.ref"
    assert document["created"].endswith("Z")


def test_a_new_store_is_closed_to_other_users(store: Store, tmp_path: Path) -> None:
    assert (tmp_path / "store").stat().st_mode & 0o7777 == 0o700
