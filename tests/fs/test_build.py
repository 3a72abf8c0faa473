"""Publishing: nothing twice, nothing half, the name last."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart_cli.errors import CannotCreateError, DataError, IoFailure, UsageError
from coldstart_fs.format.names import index_key, locator_key, ref_key
from coldstart_fs.indexing import chunk_table
from coldstart_fs.indexing.build import IndexReport, index_image
from coldstart_fs.looking.opened import opened_image
from coldstart_fs.stores.folder_store import FolderStore
from coldstart_fs.stores.references import resolve_image
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from conftest import umount, wait_until
from image_builder import image_facts


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_bytes(os.urandom(300_000))
    (root / "b").write_bytes((root / "a").read_bytes()[:131072] * 2 + bytes(131072) + b"tail")
    return root


def index(root: Path, store: Store, name: str = "image", *, dry_run: bool = False) -> IndexReport:
    return index_image(f"dir:{root}", store=store, name=name, dry_run=dry_run)


def snapshot(store: Store) -> dict[str, bytes]:
    return {key: store.get(key) for key in store.list("")}


def test_the_report_adds_up(root: Path, store: Store) -> None:
    report = index(root, store)
    assert report.entries == 3
    assert report.content_bytes == 300_000 + 3 * 131072 + 4
    assert (report.new_bytes, report.repeated_bytes, report.zero_bytes) == (300_004, 2 * 131072, 131072)
    assert report.reused_bytes == 0
    packs = [store.get(key) for key in store.list("packs/")]
    assert len(packs) == 1
    assert len(packs[0]) == 300_004 + 4 * 56 + 32


def test_indexing_again_changes_not_a_byte(root: Path, store: Store) -> None:
    first = index(root, store)
    before = snapshot(store)
    second = index(root, store)
    assert (second.digest, second.new_bytes, second.reused_bytes) == (first.digest, 0, 300_004)
    assert snapshot(store) == before


def test_another_image_shares_the_chunks_it_can(root: Path, store: Store) -> None:
    index(root, store, "one")
    (root / "b").unlink()
    (root / "c").write_bytes(b"new")
    report = index(root, store, "two")
    assert (report.new_bytes, report.reused_bytes) == (3, 300_000)
    assert image_facts(store, "two")[b"a"].content == (root / "a").read_bytes()


def test_chunks_whose_pack_is_gone_are_stored_anew(root: Path, store: Store) -> None:
    index(root, store, "one")
    for key in store.list("packs/"):
        path = store.local_path(key)
        assert path is not None
        path.unlink()
    assert index(root, store, "two").new_bytes == 300_004
    assert image_facts(store, "two")[b"a"].content == (root / "a").read_bytes()
    assert image_facts(store, "one") == image_facts(store, "two")


def damage_cut_to_nothing(content: bytes) -> bytes:
    return b""


def damage_cut_in_the_middle(content: bytes) -> bytes:
    return content[: len(content) // 2]


def damage_missing_the_last_byte(content: bytes) -> bytes:
    return content[:-1]


def damage_a_byte_too_many(content: bytes) -> bytes:
    return content + b"x"


def damage_a_table_too_short(content: bytes) -> bytes:
    return content[:-88] + content[-32:]


Damage = Callable[[bytes], bytes]
DAMAGES: tuple[Damage, ...] = (
    damage_cut_to_nothing,
    damage_cut_in_the_middle,
    damage_missing_the_last_byte,
    damage_a_byte_too_many,
    damage_a_table_too_short,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_pack_of_the_wrong_length_is_replaced_by_indexing_again(
    root: Path, store: Store, damage: Damage
) -> None:
    first = index(root, store)
    before = snapshot(store)
    (key,) = store.list("packs/")
    store.put_bytes(key, damage(before[key]))
    again = index(root, store)
    assert (again.digest, again.new_bytes, again.reused_bytes) == (first.digest, 300_004, 0)
    assert [note for note in again.notes if f"pack is damaged: {store.url}/{key}" in note]
    assert snapshot(store) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_another_image_does_not_reuse_chunks_of_a_pack_of_the_wrong_length(
    root: Path, store: Store, damage: Damage
) -> None:
    index(root, store, "one")
    (key,) = store.list("packs/")
    store.put_bytes(key, damage(store.get(key)))
    (root / "c").write_bytes(b"new")
    assert index(root, store, "two").new_bytes == 300_007
    assert image_facts(store, "two")[b"a"].content == (root / "a").read_bytes()
    # whose chunks lie elsewhere by now
    (root / "c").unlink()
    assert index(root, store, "one").new_bytes == 0
    assert image_facts(store, "one")[b"a"].content == (root / "a").read_bytes()


@pytest.mark.parametrize("key_of", [index_key, locator_key])
def test_an_index_or_locator_that_is_too_long_is_replaced_by_indexing_again(
    root: Path, store: Store, key_of: Callable[[bytes], str]
) -> None:
    key = key_of(index(root, store).digest)
    before = snapshot(store)
    store.put_bytes(key, before[key] + b"x")
    index(root, store)
    assert snapshot(store) == before


def changed(content: bytes) -> bytes:
    """Another first byte, whatever chance made it."""
    return bytes([content[0] ^ 1]) + content[1:]


def test_a_changed_pack_is_named_with_what_helps(root: Path, tmp_path: Path, store: Store) -> None:
    index(root, store)
    (key,) = store.list("packs/")
    store.put_bytes(key, changed(store.get(key)))
    with opened_image("image", store_url=store.url, cache=tmp_path, tell=print) as image:
        number = image.index.lookup(0, b"a")
        assert number is not None
        with pytest.raises(DataError, match="chunk is damaged") as refusal:
            list(image.contents.blocks(image.index.inode(number)))
    assert refusal.value.hint == f"remove {key} from the store and index the image again"
    path = store.local_path(key)
    assert path is not None
    path.unlink()
    index(root, store)
    assert image_facts(store, "image")[b"a"].content == (root / "a").read_bytes()


def test_a_changed_pack_is_replaced_when_its_bytes_come_again(root: Path, store: Store) -> None:
    report = index(root, store)
    before = snapshot(store)
    (key,) = store.list("packs/")
    store.put_bytes(key, changed(before[key]))
    store.put_bytes(locator_key(report.digest), b"")
    assert index(root, store).packs == 1
    assert snapshot(store) == before


def test_a_damaged_locator_or_index_is_healed_by_indexing_again(root: Path, store: Store) -> None:
    report = index(root, store)
    for key in (locator_key(report.digest), index_key(report.digest), ref_key("image")):
        store.put_bytes(key, b"damaged")
    again = index(root, store)
    assert again.digest == report.digest
    assert any("locator is damaged" in note for note in again.notes)
    assert image_facts(store, "image")[b"a"].content == (root / "a").read_bytes()


def test_a_dry_run_says_the_same_and_writes_nothing(root: Path, tmp_path: Path, store: Store) -> None:
    planned = index(root, store, dry_run=True)
    assert not (tmp_path / "store").exists()
    done = index(root, store)
    assert (planned.digest, planned.new_bytes, planned.entries) == (done.digest, done.new_bytes, done.entries)
    before = snapshot(store)
    assert index(root, store, "other", dry_run=True).reused_bytes == 300_004
    assert snapshot(store) == before


def test_the_name_moves_to_the_newer_image(root: Path, store: Store) -> None:
    first = index(root, store)
    (root / "a").write_bytes(b"changed")
    second = index(root, store)
    assert first.digest != second.digest
    assert resolve_image(store, "image").digest == second.digest
    assert store.exists(index_key(first.digest))


STEPS: dict[str, Callable[[str], bool]] = {
    "pack": lambda key: key.startswith("packs/"),
    "index": lambda key: key.startswith("images/"),
    "locator": lambda key: key.startswith("locators/"),
    "name": lambda key: key.startswith("refs/"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_stop_at_any_step_leaves_the_old_image_under_its_name(
    root: Path, tmp_path: Path, store: Store, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(root, store)
    before = image_facts(store, "image")
    packs = store.list("packs/")
    (root / "c").write_bytes(os.urandom(5000))

    def fail(self: FolderStore, key: str, content: object) -> None:
        if STEPS[step](key):
            raise IoFailure("no space left")
        original[type(content)](self, key, content)

    def fail_to_sync(path: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    original = {type(tmp_path): FolderStore.put_file, bytes: FolderStore.put_bytes}
    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "put_file", fail)
        patch.setattr(FolderStore, "put_bytes", fail)
        if step == "pack":
            patch.setattr("coldstart_fs.stores.folder_store._sync", fail_to_sync)
        with pytest.raises(IoFailure):
            index(root, store)
    assert image_facts(store, "image") == before
    assert step != "pack" or store.list("packs/") == packs
    assert not list((tmp_path / "store").glob(".writing-*"))
    report = index(root, store)
    assert image_facts(store, "image")[b"c"].content == (root / "c").read_bytes()
    assert report.entries == 4


def test_a_killed_indexing_leaves_nothing_that_the_next_one_minds(
    root: Path, tmp_path: Path, store: Store
) -> None:
    script = (
        "import pathlib, signal, sys\n"
        "from coldstart_fs.indexing.build import index_image\n"
        "from coldstart_fs.indexing.progress import Progress\n"
        "from coldstart_fs.stores.store_url import open_store\n"
        "class Stop(Progress):\n"
        "    def __call__(self, text):\n"
        "        if text == 'writing packs':\n"
        "            pathlib.Path(sys.argv[3]).touch()\n"
        "            signal.pause()\n"
        "store = open_store(sys.argv[2], create=True)\n"
        "index_image('dir:' + sys.argv[1], store=store, name='image', progress=Stop())\n"
    )
    here = tmp_path / "everything is read"
    child = subprocess.Popen([sys.executable, "-c", script, root, tmp_path / "store", here])
    try:
        wait_until(here.exists, "the child to stand before publishing")
        child.send_signal(signal.SIGKILL)
        child.wait(60)
    finally:
        child.kill()
        child.wait(60)
    assert list((tmp_path / "store").glob(".writing-*/index"))
    assert store.list("refs/") == store.list("packs/") == []
    index(root, store)
    assert not list((tmp_path / "store").glob(".writing-*"))
    assert image_facts(store, "image")[b"a"].content == (root / "a").read_bytes()


def test_what_a_killed_writer_leaves_before_the_marker_is_still_a_place_for_a_store(
    root: Path, tmp_path: Path, store: Store
) -> None:
    folder = tmp_path / "store"
    (folder / ".writing-1-x").mkdir(parents=True)
    (folder / ".lock").touch()
    (folder / ".coldstart-store.json.abc.tmp").touch()
    (folder / "refs" / "a").mkdir(parents=True)
    with pytest.raises(CannotCreateError, match="not an image store, and not an empty folder"):
        open_store(str(folder), create=True)
    shutil.rmtree(folder / "refs")
    index(root, open_store(str(folder), create=True))
    (folder / "refs" / ".image.abc.tmp").touch()
    index(root, store)
    assert not list(folder.rglob(".*.tmp"))
    assert not list(folder.glob(".writing-*"))


def test_a_full_disk_is_named_and_leaves_nothing(root: Path, tmp_path: Path, store: Store) -> None:
    mount_point = tmp_path / "small"
    mount_point.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "none", mount_point], check=False, timeout=20
    )
    if made.returncode:
        pytest.skip("cannot mount a small tmpfs")
    try:
        small = open_store(str(mount_point / "store"), create=True)
        (root / "c").write_bytes(os.urandom(2_000_000))
        with pytest.raises(IoFailure, match="No space left on device"):
            index(root, small)
        assert small.list("") == ["coldstart-store.json"]
        assert not list((mount_point / "store").glob(".writing-*"))
    finally:
        umount(mount_point)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/some/folder", "source has no kind"),
        ("dri:/x", "unknown kind"),
        ("dir:", "names nothing"),
        ("", "source is empty"),
    ],
)
def test_sources_that_cannot_be_are_refused(store: Store, source: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        index_image(source, store=store, name="n")


def test_the_name_is_checked_before_anything_is_read(store: Store) -> None:
    with pytest.raises(UsageError, match="not an image name"):
        index_image("dir:/nowhere", store=store, name="../x")


def test_a_short_content_is_never_indexed(root: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_table, "split", lambda *_: iter([b"short"]))
    with pytest.raises(DataError, match="5 bytes instead of"):
        index(root, store)
    assert store.list("refs/") == []
