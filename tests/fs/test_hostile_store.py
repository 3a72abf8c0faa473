"""Folder stores that hold what no writer of ours made: refused by name, never waited for or passed over."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coldstart_cli.errors import (
    CannotCreateError,
    ColdstartError,
    DataError,
    PermissionNeededError,
)
from coldstart_fs.format.names import index_key, locator_key
from coldstart_fs.indexing.build import index_image
from coldstart_fs.mounts.kernel_mounts import unmount_now
from coldstart_fs.stores.images import list_images, open_image
from coldstart_fs.stores.references import list_names, resolve_image
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from image_builder import image_facts

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, makes devices, takes another user's place")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_bytes(b"content")
    return root


@pytest.fixture
def store(folder: Path, root: Path) -> Store:
    store = open_store(str(folder), create=True)
    index_image(f"dir:{root}", store=store, name="image")
    return store


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_device(path: Path) -> None:
    os.mknod(path, 0o020666, os.makedev(1, 5))


def put_socket(path: Path) -> None:
    os.mknod(path, 0o140666)


SPECIAL = [
    put_fifo,
    put_link_to_device,
    pytest.param(put_device, marks=needs_root),
    put_socket,
]


@pytest.mark.parametrize("put", SPECIAL)
def test_a_special_file_for_a_name_hides_no_other(
    folder: Path, store: Store, put: Callable[[Path], None]
) -> None:
    put(folder / "refs/x")
    with pytest.raises(DataError, match=rf"not a regular file: {folder}/refs/x"):
        resolve_image(store, "x")
    inventory = list_images(store)
    assert [image.name for image in inventory.images] == ["image"]
    assert inventory.problems == (f"image `x` cannot be read: not a regular file: {folder}/refs/x",)


@pytest.mark.parametrize("put", SPECIAL)
def test_a_special_file_for_a_name_is_replaced_by_indexing(
    folder: Path, root: Path, store: Store, put: Callable[[Path], None]
) -> None:
    put(folder / "refs/x")
    index_image(f"dir:{root}", store=store, name="x")
    assert resolve_image(store, "x").digest == resolve_image(store, "image").digest


@pytest.mark.parametrize("put", SPECIAL)
def test_a_special_file_for_the_marker_is_refused(
    folder: Path, store: Store, put: Callable[[Path], None]
) -> None:
    (folder / "coldstart-store.json").unlink()
    put(folder / "coldstart-store.json")
    for create in (False, True):
        with pytest.raises(DataError, match="not a regular file"):
            open_store(str(folder), create=create)


@pytest.mark.parametrize("put", SPECIAL)
@pytest.mark.parametrize("key_of", [index_key, locator_key])
def test_a_special_file_for_an_index_or_locator_is_refused_and_replaced_by_indexing(
    tmp_path: Path,
    folder: Path,
    root: Path,
    store: Store,
    key_of: Callable[[bytes], str],
    put: Callable[[Path], None],
) -> None:
    digest = resolve_image(store, "image").digest
    place = folder / key_of(digest)
    place.unlink()
    put(place)
    with pytest.raises(DataError, match=f"not a regular file: {place}"):
        open_image(store, digest, tmp_path / "cache")
    for read in (lambda: store.get(key_of(digest)), lambda: store.get_range(key_of(digest), 0, 10)):
        with pytest.raises(DataError, match=f"not a regular file: {place}"):
            read()
    index_image(f"dir:{root}", store=store, name="image")
    assert image_facts(store, "image")[b"a"].content == b"content"


@pytest.mark.parametrize("put", SPECIAL)
def test_a_special_file_for_a_pack_is_replaced_by_indexing(
    folder: Path, root: Path, store: Store, put: Callable[[Path], None]
) -> None:
    (pack,) = folder.glob("packs/*/*")
    pack.unlink()
    put(pack)
    index_image(f"dir:{root}", store=store, name="image")
    assert image_facts(store, "image")[b"a"].content == b"content"


@pytest.mark.parametrize("key", ["refs/x", "coldstart-store.json"])
def test_a_small_document_of_terabytes_is_refused_unread(folder: Path, store: Store, key: str) -> None:
    with (folder / key).open("wb") as stream:
        stream.truncate(3 << 40)
    with pytest.raises(DataError, match=f"at most 1048576 can be right: {folder}/{key}"):
        store.get(key)
    with pytest.raises(DataError):
        resolve_image(open_store(str(folder)), "x")


@needs_root
def test_a_lock_that_is_a_link_makes_nothing_elsewhere(folder: Path, store: Store, tmp_path: Path) -> None:
    (folder / ".lock").unlink()
    (folder / ".lock").symlink_to(tmp_path / "made")
    with pytest.raises(ColdstartError, match=re.escape(f"{folder}/.lock")), store.writing():
        pass
    assert not (tmp_path / "made").exists()


def test_a_part_of_a_store_may_lie_on_another_file_system(folder: Path, root: Path, store: Store) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(folder).st_dev:
        pytest.skip("/dev/shm is no file system of its own")
    away = Path(f"/dev/shm/coldstart-test-{os.getpid()}")
    try:
        away.mkdir()
        (folder / "packs").rename(folder / "old")
        (folder / "packs").symlink_to(away)
        (away / "aa").mkdir()
        (away / "aa" / ".killed.tmp").touch()
        index_image(f"dir:{root}", store=store, name="image")
        assert image_facts(store, "image")[b"a"].content == b"content"
        assert [path.suffix for path in away.rglob("*") if path.is_file()] == [".pack"]
        assert not list(folder.glob(".writing-*"))
    finally:
        subprocess.run(["rm", "-r", away], check=True, timeout=60)


@pytest.fixture
def read_only(folder: Path, store: Store) -> Iterator[Path]:
    for options in ("bind", "remount,bind,ro"):
        subprocess.run(["mount", "-o", options, folder, folder], check=True, timeout=60)
    yield folder
    unmount_now(folder)


@needs_root
def test_a_read_only_file_system_is_named_as_what_it_is(read_only: Path, store: Store) -> None:
    refusal = f"{read_only}: its file system is read-only"
    with pytest.raises(CannotCreateError, match=refusal) as caught, store.writing():
        pass
    assert caught.value.hint == "choose another `--store`"


@contextmanager
def nobody(tmp_path: Path) -> Iterator[None]:
    above = [path for path in (tmp_path, *tmp_path.parents) if path.stat().st_mode & 0o777 == 0o700]
    for path in above:
        path.chmod(0o711)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for path in above:
            path.chmod(0o700)


@needs_root
def test_a_folder_of_names_that_cannot_be_read_is_not_empty(
    tmp_path: Path, folder: Path, store: Store
) -> None:
    folder.chmod(0o755)
    (folder / "refs/team").mkdir()
    (folder / "refs/team").chmod(0o700)
    refusal = re.escape(f"cannot read image store: {folder}/refs/team")
    with nobody(tmp_path), pytest.raises(PermissionNeededError, match=refusal) as caught:
        list_names(store)
    assert caught.value.hint == "run as root"


@needs_root
def test_a_name_that_cannot_be_read_hides_no_other(tmp_path: Path, folder: Path, store: Store) -> None:
    folder.chmod(0o755)
    (folder / "refs/mine").touch(0o600)
    with nobody(tmp_path):
        inventory = list_images(store)
    assert [image.name for image in inventory.images] == ["image"]
    assert inventory.problems == (f"image `mine` cannot be read: cannot read `{folder}/refs/mine`",)


@needs_root
def test_a_place_for_a_store_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0o711)
    refusal = re.escape(f"cannot read image store: {tmp_path}/closed")
    with nobody(tmp_path), pytest.raises(PermissionNeededError, match=refusal):
        open_store(str(tmp_path / "closed"), create=True)


def doubts(folder: Path) -> list[str]:
    told: list[str] = []
    open_store(str(folder), tell=told.append)
    return told


@pytest.mark.parametrize("part", [".", "refs", "packs", "images", "locators"])
def test_a_store_that_everybody_can_change_is_told(folder: Path, store: Store, part: str) -> None:
    assert doubts(folder) == []
    (folder / part).chmod(0o1777)
    assert doubts(folder) == [f"every user of this host can change the image store: {folder / part}"]


def test_an_empty_folder_that_others_can_read_is_told_when_it_becomes_a_store(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o755)
    told: list[str] = []
    open_store(str(place), create=True, tell=told.append)
    assert [line for line in told if "0755" in line and str(place) in line] == told != []
    place.chmod(0o700)
    told.clear()
    open_store(str(place), create=True, tell=told.append)
    assert told == []


@needs_root
def test_a_store_of_another_user_is_told_to_root(folder: Path, store: Store) -> None:
    os.chown(folder, 65534, -1)
    assert doubts(folder) == [f"image store belongs to uid 65534, who can change what root mounts: {folder}"]
