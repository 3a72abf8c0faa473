"""Indexing into stores behind a network: interrupted, twice at once, and without room."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coldstart_cli.errors import IoFailure
from coldstart_fs.format.names import digest_text, parse_digest
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.images import list_images
from coldstart_fs.stores.references import resolve_image
from coldstart_fs.stores.store_url import open_store
from conftest import Coldstart, wait_until
from fs.conftest import Bucket
from fs.mounts import small_disk
from image_builder import image_facts

PACK_BYTES = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    for number in range(12):
        (root / f"{number:02}").write_bytes(os.urandom(PACK_BYTES + 50_000 * number))
    return root


# packs are small, so that a small image has many
SCRIPT = """
import pathlib, signal, sys, threading
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.object_store import ObjectStore
from coldstart_fs.format.pack import PackWriter
from coldstart_fs.stores.store_url import open_store

source, url, stop_after, here = sys.argv[1], sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4])
PackWriter.__init__.__kwdefaults__["full_bytes"] = 1 << 20
upload, up, lock = ObjectStore._upload, [], threading.Lock()

def count(self, key, path, **more):
    with lock:
        if len(up) >= stop_after:
            here.touch()
            signal.pause()
    answer = upload(self, key, path, **more)
    up.append(key)
    return answer

ObjectStore._upload = count
report = index_image(f"dir:{source}", store=open_store(url, create=True), name="image")
print(report.packs, report.pack_bytes)
"""


def indexing(root: Path, url: str, stop_after: int, here: Path) -> list[str]:
    return [sys.executable, "-c", SCRIPT, str(root), url, str(stop_after), str(here)]


def test_a_killed_indexing_run_again_sends_only_what_is_missing(
    root: Path, bucket: Bucket, tmp_path: Path
) -> None:
    here = tmp_path / "five packs are up"
    child = subprocess.Popen(indexing(root, bucket.url, 5, here), stdout=subprocess.PIPE)
    try:
        wait_until(here.exists, "the child to stand in the middle of its packs")
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait(60)
    store = open_store(bucket.url)
    up = set(store.list("packs/"))
    assert 5 <= len(up) < 12
    assert store.list("refs/") == store.list("images/") == store.list("locators/") == []
    assert list(tmp_path.glob("coldstart-writing-*"))

    before = len(bucket.requests())
    again = subprocess.run(
        indexing(root, bucket.url, 1000, here), capture_output=True, timeout=60, check=True, text=True
    )
    sent = [
        request.path
        for request in bucket.requests()[before:]
        if request.method == "PUT" and "/packs/" in request.path
    ]
    everything = set(store.list("packs/"))
    assert len(everything) >= 12
    missing = everything - up
    assert sorted(path.partition("/main/")[2] for path in sent) == sorted(missing)
    sizes = {key: store.size(key) or 0 for key in everything}
    assert again.stdout.split() == [str(len(missing)), str(sum(sizes[key] for key in missing))]
    assert not list(tmp_path.glob("coldstart-writing-*"))
    assert image_facts(store, "image")[b"07"].content == (root / "07").read_bytes()


def begin(coldstart: Coldstart, root: Path, store: str, *more: str) -> subprocess.Popen[str]:
    """`image index` as a process of its own."""
    return subprocess.Popen(
        [
            coldstart.program,
            "image",
            "index",
            f"dir:{root}",
            "--name",
            "image",
            "--json",
            "--store",
            store,
            *more,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=coldstart.environment,
    )


def begin_two(coldstart: Coldstart, root: Path, store: str, *more: str) -> list[subprocess.Popen[str]]:
    """Two indexers at once that pack the same image differently."""
    return [begin(coldstart, root, store, "--compression", kind, *more) for kind in ("none", "zstd:1")]


def ended(children: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    try:
        said = [child.communicate(timeout=120) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait(60)
    return [(child.returncode, *texts) for child, texts in zip(children, said, strict=True)]


def test_two_indexers_of_one_bucket_leave_one_whole_image(
    root: Path, bucket: Bucket, coldstart: Coldstart, tmp_path: Path
) -> None:
    results = ended(begin_two(coldstart, root, bucket.url))
    assert [status for status, _, _ in results] == [0, 0], results
    digests = {json.loads(stdout)["digest"] for _, stdout, _ in results}
    assert len(digests) == 1
    store = open_store(bucket.url)
    assert digest_text(resolve_image(store, "image").digest) == digests.pop()
    facts = image_facts(store, "image")
    assert {name: facts[os.fsencode(name)].content for name in os.listdir(root)} == {
        path.name: path.read_bytes() for path in root.iterdir()
    }
    assert len(store.list("locators/")) == len(store.list("images/")) == 1
    # whichever came last, it says of every chunk where it is; nothing of the other is in its way
    assert ended([begin(coldstart, root, bucket.url)])[0][0] == 0
    assert not list(tmp_path.glob("coldstart-writing-*"))


def test_two_images_for_one_name_leave_both_and_the_name_on_one(
    root: Path, bucket: Bucket, coldstart: Coldstart, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a").write_bytes(os.urandom(3_000_000))
    results = ended([begin(coldstart, tree, bucket.url) for tree in (root, other)])
    assert [status for status, _, _ in results] == [0, 0], results
    store = open_store(bucket.url)
    digests = [json.loads(stdout)["digest"] for _, stdout, _ in results]
    assert digest_text(resolve_image(store, "image").digest) in digests
    for digest, content in zip(digests, ((b"03", root / "03"), (b"a", other / "a")), strict=True):
        assert resolve_image(store, digest).digest == parse_digest(digest)
        assert image_facts(store, digest)[content[0]].content == content[1].read_bytes()


def test_two_indexers_of_one_folder_take_turns(root: Path, coldstart: Coldstart, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    results = ended(begin_two(coldstart, root, str(folder), "--lock-wait", "60"))
    assert [status for status, _, _ in results] == [0, 0], results
    store = open_store(str(folder))
    assert image_facts(store, "image")[b"03"].content == (root / "03").read_bytes()
    assert len(list_images(store).images) == 1
    with store.writing():
        ((status, _, stderr),) = ended([begin(coldstart, root, str(folder))])
    assert status == 75
    assert "locked by another process" in stderr


def test_no_room_for_the_scratch_folder_publishes_nothing(
    root: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "small", "4m") as disk:
        monkeypatch.setenv("TMPDIR", str(disk))
        with pytest.raises(IoFailure, match="No space left on device"):
            index_image(f"dir:{root}", store=open_store(bucket.url, create=True), name="image")
        assert not list(disk.iterdir())
    assert open_store(bucket.url).list("") == ["coldstart-store.json"]


def test_a_read_only_store_is_refused_before_anything_is_read(coldstart: Coldstart) -> None:
    result = coldstart("image", "index", "dir:/nowhere", "--name", "x", "--store", "http://127.0.0.1:9/store")
    assert result.status == 69
    assert "store is read-only over HTTP: http://127.0.0.1:9/store" in result.stderr
