"""Images of stores behind a network: mounted, listed, and served when the store is down."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, PermissionNeededError
from coldstart_fs.format.chunk import Compression
from coldstart_fs.format.index import Index
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import digest_text, index_key, locator_key, ref_key
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores import images, object_clients
from coldstart_fs.stores.images import list_images, open_image
from coldstart_fs.stores.references import resolve_image
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from fs import servers
from fs.conftest import Bucket
from fs.mounts import Lab, flip, forget_pages, small_disk
from fs.servers import FaultyServer, faulty_server, nginx
from image_builder import image_facts


@pytest.fixture
def contents() -> dict[str, bytes]:
    return {"large": os.urandom(3_000_000), "small": b"hello", "sparse": bytes(500_000) + b"end"}


@pytest.fixture
def served(
    lab: Lab, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Lab, FaultyServer]]:
    """The lab's image over HTTP, on a server that can be told to misbehave; nobody waits long for it."""
    monkeypatch.setattr(object_clients, "READ_SECONDS", 1.5)
    monkeypatch.setattr(object_clients, "RETRY_SECONDS", 1.5)
    lab.image(**contents)
    with faulty_server(lab.store) as server:
        yield lab, server


def read_all(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_an_image_of_a_bucket_is_mounted_and_its_bytes_are_right(
    lab: Lab, bucket: Bucket, contents: dict[str, bytes], kind: str
) -> None:
    url = f"{kind}://{bucket.name}/store"
    index_image(f"dir:{lab.tree(**contents)}", store=open_store(url, create=True), name="image")
    record = lab.mount(store=url)
    assert record.store == url
    assert read_all(record.mountpoint) == contents
    assert lab.counters(record, store_chunks=1)["failed_requests"] == 0
    assert "secret" not in Path(f"/proc/{record.server_pid}/cmdline").read_text()
    assert lab.log(record).count("\n") == 0
    assert [request.status for request in bucket.requests() if "packs" in request.path].count(206) >= 1
    lab.unmount(record)


def test_an_image_shown_by_nginx_is_mounted_and_served_from_the_cache_when_it_is_gone(
    lab: Lab, contents: dict[str, bytes], tmp_path: Path
) -> None:
    lab.image(**contents)
    with nginx(tmp_path / "nginx", lab.store) as server:
        record = lab.mount(store=server.url)
        assert (record.mountpoint / "large").read_bytes() == contents["large"]
        lab.counters(record, store_chunks=1)
        lab.unmount(record)
        pinned = f"image@{digest_text(lab.digests['image'])}"
    for name in ("image", pinned, digest_text(lab.digests["image"])):
        record = lab.mount(name=name, store=server.url)
        assert record.image == digest_text(lab.digests["image"])
        assert len(record.notes) == 2
        assert all("going on with what the cache knows" in note for note in record.notes)
        assert (record.mountpoint / "large").read_bytes() == contents["large"]
        with pytest.raises(OSError, match="Input/output error"):
            (record.mountpoint / "small").read_bytes()
        assert "connection is refused" in lab.log(record)
        lab.unmount(record)
    with pytest.raises(IoFailure, match="the connection is refused"):
        lab.mount(name="never-seen", store=server.url)


def test_a_start_asks_a_known_store_two_questions(served: tuple[Lab, FaultyServer]) -> None:
    lab, server = served
    lab.unmount(lab.mount(store=server.url))
    server.requests.clear()
    lab.unmount(lab.mount(store=server.url))
    digest = lab.digests["image"]
    assert [path for _, path, _ in server.requests] == ["/refs/image", f"/{locator_key(digest)}"]


def test_wrong_bytes_from_the_store_never_reach_a_reader(
    served: tuple[Lab, FaultyServer], contents: dict[str, bytes]
) -> None:
    lab, server = served
    record = lab.mount(store=server.url)
    path = record.mountpoint / "large"

    def in_packs(fault: servers.Fault) -> servers.Fault:
        return lambda handler: "/packs/" in handler.path and fault(handler)

    for fault in (
        servers.claimed_range,
        servers.endless,
        servers.short_range,
        servers.page,
        servers.answer(403),
    ):
        server.fault = in_packs(fault)
        with pytest.raises(OSError, match="Input/output error"):
            path.read_bytes()
        forget_pages(path)
    server.fault = lambda _: False
    assert path.read_bytes() == contents["large"]
    lab.unmount(record)


def test_a_server_without_ranges_is_refused_at_the_mount(served: tuple[Lab, FaultyServer]) -> None:
    lab, server = served
    server.fault = servers.whole
    with pytest.raises(Exception, match="server does not serve ranges of objects") as caught:
        lab.mount(store=server.url)
    assert caught.type.__name__ == "UnavailableError"


def test_a_damaged_copy_of_an_index_is_fetched_again(served: tuple[Lab, FaultyServer]) -> None:
    lab, server = served
    store, digest = open_store(server.url), lab.digests["image"]
    for index_or_locator in open_image(store, digest, lab.cache):
        index_or_locator.close()
    copies = [path for path in lab.cache.rglob("*") if path.suffix in {".index", ".locator"}]
    assert len(copies) == 2
    for copy in copies:
        content = copy.read_bytes()
        for damage in (lambda path: flip(path, 250), lambda path: path.write_bytes(b""), os.unlink):
            damage(copy)
            for index_or_locator in open_image(store, digest, lab.cache):
                index_or_locator.close()
            assert copy.read_bytes() == content


def test_a_damaged_index_in_the_store_is_refused_and_not_kept(served: tuple[Lab, FaultyServer]) -> None:
    lab, server = served
    digest = lab.digests["image"]
    flip(lab.store / index_key(digest), 250)
    with pytest.raises(DataError, match=f"index is damaged: {server.url}/{index_key(digest)}"):
        lab.mount(store=server.url)
    assert not list(lab.cache.rglob("*.index"))


def test_a_damaged_locator_in_the_store_is_named_and_an_older_copy_will_do(
    served: tuple[Lab, FaultyServer],
) -> None:
    lab, server = served
    digest = lab.digests["image"]
    path = lab.store / locator_key(digest)
    content = path.read_bytes()
    flip(path, 150)
    with pytest.raises(DataError, match=f"locator is damaged: {server.url}/{locator_key(digest)}"):
        lab.mount(store=server.url)
    path.write_bytes(content)
    lab.unmount(lab.mount(store=server.url))
    flip(path, 150)
    record = lab.mount(store=server.url)
    assert any("locator is damaged" in note for note in record.notes)
    lab.unmount(record)


def test_a_locator_that_the_store_replaced_is_used(
    lab: Lab, bucket: Bucket, contents: dict[str, bytes]
) -> None:
    """The same image, stored anew in other packs: what the cache knows is out of date."""
    store = open_store(bucket.url, create=True)
    tree = f"dir:{lab.tree(**contents)}"
    digest = index_image(tree, store=store, name="image").digest
    first = packs_of(store, digest, lab.cache)
    other = open_store(f"s3://{bucket.name}/other", create=True)
    index_image(tree, store=other, name="image", compression=Compression.parse("zstd:1"))
    for key in (*other.list("packs/"), locator_key(digest)):
        store.put_bytes(key, other.get(key))
    assert packs_of(store, digest, lab.cache).isdisjoint(first)
    # two stores may keep one image differently: neither's copy stands for the other's
    assert packs_of(other, digest, lab.cache) == packs_of(store, digest, lab.cache)
    assert len(list((lab.cache / "locators-v1").iterdir())) == 2


def packs_of(store: Store, digest: bytes, cache: Path) -> set[bytes]:
    index, locator = open_image(store, digest, cache)
    with index, locator:
        return set(locator.packs)


def test_a_cache_without_room_costs_copies_and_no_image(served: tuple[Lab, FaultyServer]) -> None:
    lab, server = served
    store, digest = open_store(server.url), lab.digests["image"]
    with small_disk(lab.folder / "small", "4k") as disk:
        (disk / "filler").write_bytes(bytes(4096))
        index, locator = open_image(store, digest, disk / "cache")
        with index, locator:
            assert index.inode_count == 4
            assert locator.chunk_count > 20
        assert not [path for path in disk.rglob("*.*") if path.is_file()]


def test_credentials_that_expired_do_not_block_a_start(served: tuple[Lab, FaultyServer]) -> None:
    lab, server = served
    record = lab.mount(store=server.url)
    (record.mountpoint / "small").read_bytes()
    lab.counters(record, store_chunks=1)
    lab.unmount(record)
    server.fault = servers.answer(403)
    record = lab.mount(store=server.url)
    assert (record.mountpoint / "small").read_bytes() == b"hello"
    assert any("403 Forbidden" in note for note in record.notes)
    lab.unmount(record)
    with pytest.raises(PermissionNeededError):
        resolve_image(open_store(server.url), "image")


def test_a_name_that_was_removed_is_not_remembered(served: tuple[Lab, FaultyServer]) -> None:
    lab, server = served
    lab.unmount(lab.mount(store=server.url))
    (lab.store / ref_key("image")).unlink()
    with pytest.raises(NotFoundError, match="image is not in the store: image"):
        lab.mount(store=server.url)


def test_a_list_asks_for_headers_only(lab: Lab, bucket: Bucket) -> None:
    store = open_store(bucket.url, create=True)
    for number in range(12):
        tree = lab.tree(f"{number}", **{f"f{other}": b"x" * other for other in range(number + 1)})
        index_image(f"dir:{tree}", store=store, name=f"image-{number:02}")
    local = open_store(str(lab.store), create=True)
    index_image(f"dir:{lab.tree('3')}", store=local, name="image-03")
    before = len(bucket.requests())
    inventory = list_images(store)
    assert [image.name for image in inventory.images] == [f"image-{number:02}" for number in range(12)]
    (expected,) = list_images(local).images
    found = inventory.images[3]
    assert (found.digest, found.entries, found.content_bytes, found.index_bytes) == (
        expected.digest,
        expected.entries,
        expected.content_bytes,
        expected.index_bytes,
    )
    asked = bucket.requests()[before:]
    assert len(asked) == 1 + 2 * 12
    assert {request.status for request in asked if "/images/" in request.path} == {206}


def test_a_damaged_image_does_not_hide_the_others_of_a_bucket(lab: Lab, bucket: Bucket) -> None:
    store = open_store(bucket.url, create=True)
    digests = {
        name: index_image(f"dir:{lab.tree(name, file=name.encode())}", store=store, name=name).digest
        for name in ("good", "bad", "gone")
    }
    store.put_bytes(index_key(digests["bad"]), b"x" * 5000)
    store.put_bytes(ref_key("gone"), b"{}")
    inventory = list_images(store)
    assert [image.name for image in inventory.images] == ["good"]
    assert len(inventory.problems) == 2
    assert image_facts(store, "good")[b"file"].content == b"good"


def test_a_store_that_is_silent_ends_a_read_at_its_deadline(
    served: tuple[Lab, FaultyServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, server = served
    index, locator = open_image(open_store(server.url), lab.digests["image"], lab.cache)
    index.close()
    locator.close()
    server.fault = servers.silence
    began = time.monotonic()
    notes: list[str] = []
    index, locator = open_image(open_store(server.url), lab.digests["image"], lab.cache, notes.append)
    with index, locator:
        assert "no answer in time" in notes[0]
    assert time.monotonic() - began < 30


def test_what_is_wrong_with_the_index_is_said_before_what_is_wrong_with_the_locator(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = lab.image(file=b"content")
    asked = Event()

    def slow_index(*_: object) -> Index:
        assert asked.wait(60)
        raise DataError("index has format 2")

    def no_locator(*_: object) -> Locator:
        asked.set()
        raise NotFoundError("locator does not exist")

    monkeypatch.setattr(images, "index_of", slow_index)
    monkeypatch.setattr(images, "locator_of", no_locator)
    with pytest.raises(DataError, match="index has format 2"):
        open_image(open_store(str(lab.store)), digest, lab.cache)
