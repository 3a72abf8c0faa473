"""Stores behind a network: objects in and out of real servers, and every wrong answer refused in words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart_cli.errors import (
    CannotCreateError,
    ColdstartError,
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UnavailableError,
    UnreachableError,
)
from coldstart_fs.stores.references import list_names, resolve_image, write_ref
from coldstart_fs.stores.store import MARKER, MARKER_CONTENT, Store
from coldstart_fs.stores.store_url import open_store
from conftest import wait_until
from fs import servers
from fs.conftest import Bucket
from fs.servers import Fault, FaultyServer, nginx

CONTENT = bytes(range(256)) * 40
SECRET = "a-secret-that-nobody-may-see"


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest, bucket: Bucket) -> Store:
    """A new store in a bucket; moto understands what Google's XML interface has in common with S3."""
    store = open_store(f"{request.param}://{bucket.name}/some/prefix", create=True)
    with store.writing():
        pass
    return store


@pytest.fixture
def served(faulty: FaultyServer, hasty: None) -> Store:
    """A store over HTTP with one object, on a server that can be told to misbehave."""
    (faulty.root / MARKER).write_bytes(MARKER_CONTENT)
    (faulty.root / "object").write_bytes(CONTENT)
    return open_store(faulty.url)


def test_objects_come_back_whole_and_in_ranges(store: Store) -> None:
    store.put_bytes("packs/00/x.pack", CONTENT)
    assert store.get("packs/00/x.pack") == CONTENT
    assert store.get_range("packs/00/x.pack", 300, 1000) == CONTENT[300:1300]
    assert store.get_range("packs/00/x.pack", 5, 0) == b""
    assert store.size("packs/00/x.pack") == len(CONTENT)
    assert store.exists("packs/00/x.pack")
    assert not store.exists("packs/00")
    assert store.local_path("packs/00/x.pack") is None
    with pytest.raises(DataError, match=r"object is cut short: .*packs/00/x\.pack"):
        store.get_range("packs/00/x.pack", len(CONTENT) - 8, 12)
    with pytest.raises(DataError, match=r"object is cut short: .*packs/00/x\.pack"):
        store.get_range("packs/00/x.pack", len(CONTENT) + 8, 12)
    with pytest.raises(NotFoundError, match=r"object is not in the store: .*://.*/some/prefix/packs/00/y"):
        store.get_range("packs/00/y", 0, 1)


def test_names_keys_and_lists_are_as_in_a_folder(store: Store) -> None:
    for key in ("refs/a", "refs/team/app:1.0-x_y", "images/x.index"):
        store.put_bytes(key, b"x")
    assert store.list("refs/") == ["refs/a", "refs/team/app:1.0-x_y"]
    assert store.list("refs/te") == ["refs/team/app:1.0-x_y"]
    assert store.list("") == [MARKER, "images/x.index", "refs/a", "refs/team/app:1.0-x_y"]
    assert store.list("nothing/") == []
    write_ref(store, "b", bytes(range(32)))
    assert resolve_image(store, "b").digest == bytes(range(32))
    with pytest.raises(NotFoundError, match="image is not in the store: aa"):
        resolve_image(store, "aa")


def test_large_files_go_up_in_parts_and_many_at_a_time(store: Store, bucket: Bucket, tmp_path: Path) -> None:
    contents = {f"packs/{number:02}/p.pack": os.urandom(size) for number, size in enumerate(SIZES)}
    told: list[int] = []
    with store.writing() as scratch:
        report = store.put_files(
            (
                (key, written(scratch / str(number), content))
                for number, (key, content) in enumerate(contents.items())
            ),
            on_put=told.append,
        )
        assert not list(scratch.iterdir())
    assert (report.sent_files, report.sent_bytes) == (len(SIZES), sum(SIZES))
    assert sorted(told) == sorted(SIZES)
    assert {key: store.get(key) for key in contents} == contents
    parts = [request for request in bucket.requests() if "partNumber=" in request.path]
    assert len(parts) == 3
    assert not list(tmp_path.glob("coldstart-writing-*"))


SIZES = (1, 20 << 20, 100_000, 0, 300_000, 7)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_what_is_there_with_the_right_size_is_not_sent_again(store: Store, bucket: Bucket) -> None:
    store.put_bytes("packs/aa/held.pack", b"held")
    store.put_bytes("packs/aa/half.pack", b"ha")
    before = len(bucket.requests())
    with store.writing() as scratch:
        items = [
            (f"packs/aa/{name}.pack", written(scratch / name, name.encode())) for name in ("held", "half")
        ]
        report = store.put_files(items)
    assert (report.sent_files, report.held_files, report.held_bytes) == (1, 1, 4)
    assert store.get("packs/aa/half.pack") == b"half"
    assert [request.method for request in bucket.requests()[before:]].count("PUT") == 1


def test_what_is_there_with_another_end_is_sent_again(store: Store) -> None:
    store.put_bytes("packs/aa/held.pack", b"damaged!")
    with store.writing() as scratch:
        report = store.put_files([("packs/aa/held.pack", written(scratch / "held", b"as it is"))])
    assert (report.sent_files, report.held_files) == (1, 0)
    assert store.get("packs/aa/held.pack") == b"as it is"


def test_items_are_asked_for_as_there_is_room(store: Store) -> None:
    ahead = []
    done: list[int] = []
    with store.writing() as scratch:

        def items() -> object:
            for number in range(20):
                ahead.append(number - len(done))
                yield f"packs/aa/{number}.pack", written(scratch / str(number), b"x" * 1000)

        store.put_files(items(), on_put=done.append)  # type: ignore[arg-type]
    assert max(ahead) <= 8


def test_an_object_that_changed_is_told_by_its_tag(store: Store) -> None:
    store.put_bytes("locators/x", b"one")
    first = store.get_if_changed("locators/x", None)
    assert first.content == b"one"
    assert first.tag
    assert store.get_if_changed("locators/x", first.tag).content is None
    store.put_bytes("locators/x", b"two")
    assert store.get_if_changed("locators/x", first.tag).content == b"two"


def test_what_is_no_store_is_said_so(bucket: Bucket) -> None:
    absent = open_store(bucket.url)
    with pytest.raises(NotFoundError, match=f"there is no image store: {bucket.url}"):
        list_names(absent)
    with pytest.raises(NotFoundError, match=f"there is no image store: {bucket.url}"):
        resolve_image(absent, "app")
    with pytest.raises(NotFoundError, match="bucket does not exist: s3://no-such-bucket-here"):
        open_store("s3://no-such-bucket-here", create=True)


def test_a_prefix_of_other_things_is_not_made_a_store(bucket: Bucket) -> None:
    other = open_store(f"s3://{bucket.name}", create=True)
    other.put_bytes("stores/main/photo.jpg", b"x")
    with pytest.raises(CannotCreateError, match="not an image store, and not empty"):
        open_store(bucket.url, create=True)


def test_a_newer_or_damaged_store_is_refused_before_it_is_written(bucket: Bucket) -> None:
    store = open_store(bucket.url, create=True)
    for content, message in (
        (b'{"schema": "coldstart.store", "version": 2}', "version 2"),
        (b"{", "not JSON"),
    ):
        store.put_bytes(MARKER, content)
        with pytest.raises(DataError, match=message):
            open_store(bucket.url, create=True)


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (servers.short_range, DataError, "object is cut short: .*95 bytes came instead of 100"),
        (servers.other_range, DataError, "server sent another range than was asked for"),
        (servers.whole, UnavailableError, "server does not serve ranges of objects"),
        (servers.page, DataError, "server sent a web page instead of an object"),
        (servers.answer(200, b"<html>", {"Content-Type": "text/html"}), DataError, "server sent a web page"),
        (servers.answer(401), PermissionNeededError, "access is refused: .*: 401 Unauthorized"),
        (servers.answer(403, SECRET.encode()), PermissionNeededError, "access is refused: .*: 403 Forbidden"),
        (servers.answer(404), NotFoundError, "object is not in the store"),
        (servers.answer(429), UnreachableError, "the server answers 429 Too Many Requests"),
        (servers.answer(503), UnreachableError, "the server answers 503 Service Unavailable"),
        (servers.short_body, UnreachableError, "the connection ended in the middle of an answer"),
        (servers.reset, UnreachableError, "cannot reach `http://127.0.0.1:.*/object`"),
        (servers.silence, UnreachableError, "cannot reach `http://127.0.0.1:.*/object`: no answer in time"),
    ],
)
def test_wrong_answers_are_refused_with_the_url(
    served: Store, faulty: FaultyServer, fault: Fault, kind: type[ColdstartError], message: str
) -> None:
    faulty.fault = fault
    with pytest.raises(kind, match=message) as caught:
        served.get_range("object", 10, 100)
    assert type(caught.value) is kind
    assert f"{faulty.url}/object" in caught.value.message
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "fault",
    [servers.answer(500), servers.answer(429), servers.reset, servers.short_body],
    ids=["500", "429", "reset", "short body"],
)
def test_a_fault_that_goes_away_is_not_seen(served: Store, faulty: FaultyServer, fault: Fault) -> None:
    faulty.fault = servers.first(2, fault)
    assert served.get_range("object", 10, 100) == CONTENT[10:110]
    assert len(faulty.requests) == 3


def test_a_whole_answer_will_do_for_a_range_that_is_the_whole_object(
    served: Store, faulty: FaultyServer
) -> None:
    faulty.fault = servers.whole
    assert served.get_range("object", 0, len(CONTENT)) == CONTENT
    with pytest.raises(UnavailableError, match="does not serve ranges") as caught:
        served.get_if_changed("object", None)
    assert caught.value.hint == "serve the store with a server that does, such as nginx"


def test_requests_end_at_their_deadline(served: Store, faulty: FaultyServer) -> None:
    faulty.fault = servers.silence
    began = time.monotonic()
    with pytest.raises(IoFailure):
        served.get_range("object", 0, 10)
    assert time.monotonic() - began < 60


def test_a_server_that_is_not_there_is_named(hasty: None) -> None:
    url = f"http://127.0.0.1:{servers.free_port()}/store"
    with pytest.raises(
        UnreachableError, match=f"cannot reach `{url}/refs/app`: the connection is refused"
    ) as caught:
        resolve_image(open_store(url), "app")
    assert caught.value.exit_code == 75
    assert caught.value.hint == "check the address and the network, or try again later"
    with pytest.raises(UnreachableError, match=r"cannot reach `http://nowhere\.invalid/refs/app`"):
        resolve_image(open_store("http://nowhere.invalid"), "app")


def test_an_upload_that_arrives_short_is_found(
    faulty: FaultyServer, bucket: Bucket, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty.url)

    def takes_less(handler: servers.FaultyHandler) -> bool:
        if handler.command == "PUT":
            handler.say(200, b"", {"ETag": '"x"'})
        else:
            handler.say(200, b"abc", {"Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT", "ETag": '"x"'})
        return True

    faulty.fault = takes_less
    with pytest.raises(DataError, match="object has 3 bytes after its upload, not 5"):
        open_store("s3://bucket/x").put_bytes("refs/a", b"12345")


def test_nginx_shows_a_store_that_cannot_be_listed_or_written(store: Store, tmp_path: Path) -> None:
    folder = open_store(str(tmp_path / "folder"), create=True)
    with folder.writing():
        write_ref(folder, "team/app:1.0", bytes(range(32)))
        folder.put_bytes("images/x", CONTENT)
    with nginx(tmp_path / "nginx", tmp_path / "folder") as server:
        shown = open_store(server.url)
        assert resolve_image(shown, "team/app:1.0").digest == bytes(range(32))
        assert shown.get_range("images/x", 100, 500) == CONTENT[100:600]
        assert shown.size("images/x") == len(CONTENT)
        fetched = shown.get_if_changed("images/x", None)
        assert fetched.content == CONTENT
        assert shown.get_if_changed("images/x", fetched.tag).content is None
        with pytest.raises(NotFoundError, match="image is not in the store: other"):
            resolve_image(shown, "other")
        with pytest.raises(UnavailableError, match="store cannot be listed over HTTP"):
            list_names(shown)
        with pytest.raises(UnavailableError, match="store is read-only over HTTP"):
            open_store(server.url, create=True)
        with pytest.raises(NotFoundError, match=f"there is no image store: {server.url}/other"):
            resolve_image(open_store(f"{server.url}/other"), "app")


def test_scratch_of_a_killed_writer_is_swept_and_that_of_a_live_one_kept(
    bucket: Bucket, tmp_path: Path
) -> None:
    script = (
        "import signal, sys\nfrom coldstart_fs.stores.scratch import scratch_folder\n"
        "with scratch_folder() as folder:\n    (folder / 'x').touch()\n"
        "    print(folder, flush=True)\n    signal.pause()\n"
    )
    store = open_store(bucket.url, create=True)
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        left = Path(child.stdout.readline().strip())
        with store.writing():
            assert (left / "x").exists()
        child.kill()
        child.wait(60)
        with store.writing() as scratch:
            assert not left.exists()
            assert scratch.parent == tmp_path
    finally:
        child.kill()
        child.wait(60)
        assert child.stdout is not None
        child.stdout.close()


@pytest.mark.parametrize("act", ["get", "put"])
def test_a_signal_is_heard_while_a_server_is_silent(
    faulty: FaultyServer, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty.url)
    faulty.fault = servers.silence
    call = {"get": "store.get('refs/a')", "put": "store.put_bytes('refs/a', b'x')"}[str(act)]
    script = (
        f"from coldstart_fs.stores.store_url import open_store\nstore = open_store('s3://bucket/x')\n{call}\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: bool(faulty.requests), "the request")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait(60)
    assert child.returncode == -signal.SIGINT, said.decode()


def test_a_reference_is_the_same_document_in_every_store(store: Store) -> None:
    write_ref(store, "app", bytes(32))
    assert json.loads(store.get("refs/app"))["schema"] == "coldstart.ref"
