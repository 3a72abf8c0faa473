"""What a mount knows of its image is its own: what becomes of index and locator files reaches no reader."""

from __future__ import annotations

import os
import random
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldstart_cli.errors import UnreachableError
from coldstart_fs.format.index import Index
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import index_key, locator_key
from coldstart_fs.mounts.mount import MountRecord
from coldstart_fs.stores.images import open_image
from coldstart_fs.stores.store_url import open_store
from conftest import wait_until
from fs import servers
from fs.mounts import Lab, flip, forget_pages
from fs.servers import FaultyServer, faulty_server

_MAKE = random.Random(7)
CONTENTS = {f"file-{number:03}": _MAKE.randbytes(500 + number) for number in range(120)}
Damage = Callable[[Path], None]


def zero(path: Path) -> None:
    """Pages that a disk has lost: all but the first."""
    with path.open("r+b") as stream:
        size = stream.seek(0, 2)
        stream.seek(4096)
        stream.write(bytes(size - 4096))


def scramble(path: Path) -> None:
    for offset in range(200, path.stat().st_size, 300):
        flip(path, offset)


def cut(path: Path) -> None:
    os.truncate(path, 4096)


def other_file(path: Path) -> None:
    """`cp` of another file over it."""
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


DAMAGES = (zero, scramble, cut, other_file)


@pytest.fixture
def image(lab: Lab) -> Lab:
    lab.image(**CONTENTS)
    return lab


@pytest.fixture(params=["folder", "http"])
def files(request: pytest.FixtureRequest, image: Lab) -> Iterator[Callable[[], list[Path]]]:
    """The index and the locator that a mount opens: those of the store, or their copies in the cache."""
    keys = [index_key(image.digests["image"]), locator_key(image.digests["image"])]
    if request.param == "folder":
        yield lambda: [image.store / key for key in keys]
        return
    with faulty_server(image.store) as server:
        image.url = server.url
        yield lambda: [next(image.cache.rglob(Path(key).name)) for key in keys]


def is_right(record: MountRecord) -> bool:
    root = record.mountpoint
    assert sorted(os.listdir(root)) == sorted(CONTENTS)
    for name, content in CONTENTS.items():
        found = (root / name).stat()
        assert (found.st_size, found.st_uid, stat.S_IMODE(found.st_mode)) == (len(content), 0, 0o644)
        forget_pages(root / name)
        assert (root / name).read_bytes() == content
    return True


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_under_a_mount_reaches_no_reader_and_no_successor(
    image: Lab, files: Callable[[], list[Path]], damage: Damage
) -> None:
    record = image.mount()
    for path in files():
        damage(path)
    assert is_right(record)
    before = record.server()
    assert before is not None
    os.kill(before.server.pid, signal.SIGKILL)
    wait_until(lambda: getattr(record.server(), "restarts", 0) > before.restarts, "a successor")
    assert is_right(record)
    assert image.counters(record)["failed_requests"] == 0


def test_a_store_that_is_gone_does_not_keep_a_successor_from_serving_what_is_known(image: Lab) -> None:
    record = image.mount()
    (image.store / "coldstart-store.json").write_bytes(b"")
    for key in (index_key(image.digests["image"]), locator_key(image.digests["image"])):
        (image.store / key).unlink()
    before = record.server()
    assert before is not None
    os.kill(before.server.pid, signal.SIGKILL)
    wait_until(lambda: getattr(record.server(), "restarts", 0) > before.restarts, "a successor")
    assert is_right(record)


@pytest.fixture
def remote(image: Lab) -> Iterator[FaultyServer]:
    """The image behind HTTP, its index and locator in the cache."""
    with faulty_server(image.store) as server:
        image.url = server.url
        for one in open_image(open_store(server.url), image.digests["image"], image.cache):
            one.close()
        yield server


@pytest.mark.parametrize("suffix", [".index", ".locator"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_is_replaced_from_the_store_and_named_when_there_is_none(
    image: Lab, remote: FaultyServer, damage: Damage, suffix: str
) -> None:
    (copy,) = image.cache.rglob(f"*{suffix}")
    content = copy.read_bytes()
    damage(copy)
    remote.fault = servers.answer(503)
    store = open_store(remote.url)
    with pytest.raises(UnreachableError, match=f"cannot stand in: {suffix[1:]} is damaged: {copy}"):
        open_image(store, image.digests["image"], image.cache)
    remote.fault = lambda _: False
    assert is_right(image.mount())
    assert copy.read_bytes() == content


def test_a_verified_index_is_in_memory_that_nobody_can_change(image: Lab) -> None:
    digest = image.digests["image"]
    index_path, locator_path = image.store / index_key(digest), image.store / locator_key(digest)
    with Index.open(index_path, expected_digest=digest) as index, Locator.open(locator_path) as locator:
        for opened in (index, locator):
            with pytest.raises(PermissionError):
                os.pwrite(opened.descriptor, b"x", 0)
            with pytest.raises(PermissionError):
                os.ftruncate(opened.descriptor, 0)
        with Index.inherited(index.descriptor, "heir") as heir:
            assert heir.digest() == digest
        with Locator.inherited(locator.descriptor, "heir") as other:
            assert other.packs == locator.packs
