"""Snapshots in stores: there and back, what is sent twice, what is refused, what an interruption leaves."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, ColdstartError, DataError, NotFoundError, PermissionNeededError
from coldstart_fs.filesets.keys import map_key
from coldstart_fs.format.names import locator_key
from coldstart_snapshot.distribution.distribute import SnapshotReference, digest_text
from coldstart_snapshot.distribution.receive import Incoming, find_offer
from coldstart_snapshot.distribution.trust import TrustRule
from coldstart_snapshot.kept.inventory import load_variant
from coldstart_snapshot.kept.origin import read_origin
from fs.servers import FaultyHandler, S3Server, claimed_range, faulty_server, nginx, reset, s3_server
from snapshot.stores import PAGE, TRUSTED, Host, Memory


@pytest.fixture
def here(tmp_path: Path) -> Host:
    return Host(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Host:
    return Host(tmp_path / "there")


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "origin.json"
    }


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@contextmanager
def addresses(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """Where to write a store, and where to read it."""
    if kind == "s3":
        moto: S3Server = request.getfixturevalue("moto")
        for name, value in moto.environment.items():
            monkeypatch.setenv(name, value)
        bucket = f"bucket{os.urandom(6).hex()}"
        moto.make_bucket(bucket)
        yield (f"s3://{bucket}/main",) * 2
    elif kind == "http":
        (tmp_path / "store").mkdir()
        with nginx(tmp_path / "nginx", tmp_path / "store") as server:
            yield str(tmp_path / "store"), server.url
    else:
        yield (str(tmp_path / "store"),) * 2


@pytest.mark.parametrize("kind", ["folder", "s3", "http"])
def test_a_snapshot_comes_back_from_a_store_as_it_was(
    kind: str,
    here: Host,
    there: Host,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = Memory.random(700)
    for number in range(64, 192):  # what is never written is never stored
        memory.pages[0x7F00_0000_0000 + number * PAGE] = bytes(PAGE)
    manifest = here.capture("web", memory)
    with addresses(kind, tmp_path, request, monkeypatch) as (writable, readable):
        sent = here.send("web", writable)
        assert sent.files.hole_bytes == 128 * PAGE
        brought = there.fetch("web", readable)
        again = there.fetch("web", readable)
    stored = load_variant(there.config.state_folder, "web")
    assert stored.manifest == manifest
    assert files_of(stored.folder) == files_of(here.config.state_folder / "snapshots/web" / manifest.variant)
    pages = os.stat(stored.folder / "images/pages-1.img")
    assert pages.st_blocks * 512 <= pages.st_size - 128 * PAGE
    assert stat.S_IMODE(pages.st_mode) == 0o600
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in (stored.folder, stored.folder.parent)} == {0o700}
    assert brought.report.hole_bytes == 128 * PAGE
    origin = read_origin(stored.folder)
    assert origin is not None
    assert (origin.trust, origin.manifest) == ("trusted", digest_text(sent.version.digest))
    assert again.report.fetched_bytes == 0


def test_a_new_version_sends_the_chunks_that_changed_though_its_pages_moved(
    here: Host, tmp_path: Path
) -> None:
    memory = Memory.random(1600)
    here.capture("web", memory)
    first = here.send("web", tmp_path / "store")
    # a page below all others, and one that changed: in the file every later page has another place
    later = memory.with_page(0x5500_0000_0000, os.urandom(PAGE)).with_page(0x7F00_0001_0000, os.urandom(PAGE))
    here.capture("web", later, created="2026-01-03T00:00:00Z")
    second = here.send("web", tmp_path / "store")
    assert first.files.new_bytes > 1600 * PAGE
    assert second.files.new_bytes < (64 << 10) + 4 * PAGE
    versions = here.store(tmp_path / "store").versions("web")
    assert [one.captured for one in versions] == ["2026-01-02T03:04:05Z", "2026-01-03T00:00:00Z"]


def test_a_host_gets_the_newest_version_or_the_one_that_is_pinned(
    here: Host, there: Host, tmp_path: Path
) -> None:
    here.capture("web", Memory.random(4))
    old = here.send("web", tmp_path / "store").version
    here.capture("web", Memory.random(4), created="2026-01-03T00:00:00Z")
    new = here.send("web", tmp_path / "store").version
    assert there.fetch("web", tmp_path / "store").offer.version.digest == new.digest
    pinned = there.fetch(f"web@{digest_text(old.digest)}", tmp_path / "store", TrustRule())
    assert (pinned.offer.trust.kind, pinned.replaced) == ("pinned", True)
    assert load_variant(there.config.state_folder, "web").manifest.created == "2026-01-02T03:04:05Z"
    assert [path.name for path in (there.config.state_folder / "snapshots/web").iterdir()] == [old.variant]


def test_an_interrupted_fetch_lists_nothing_and_the_next_goes_on_from_it(
    here: Host, there: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.capture("web", Memory.random(6000))
    here.send("web", tmp_path / "store")
    asked = 0

    def after_three(handler: FaultyHandler) -> bool:
        nonlocal asked
        asked += "/packs/" in handler.path
        return asked > 3 and reset(handler)

    monkeypatch.setattr("coldstart_fs.stores.object_clients.RETRIES", 0)
    with faulty_server(tmp_path / "store") as server:
        server.fault = after_three
        with pytest.raises(ColdstartError):
            there.fetch("web", server.url)
        assert there.names() == []
        with pytest.raises(NotFoundError):
            load_variant(there.config.state_folder, "web")
        server.fault = lambda _: False
        report = there.fetch("web", server.url).report
    assert report.kept_bytes > 1 << 20
    assert report.kept_bytes + report.fetched_bytes == sum(
        file.size_bytes for file in load_variant(there.config.state_folder, "web").manifest.files
    )


def test_wrong_bytes_from_a_store_are_refused_and_nothing_is_listed(
    here: Host, there: Host, tmp_path: Path
) -> None:
    here.capture("web", Memory.random(600))
    here.send("web", tmp_path / "store")
    with faulty_server(tmp_path / "store") as server:
        server.fault = lambda handler: "/packs/" in handler.path and claimed_range(handler)
        with pytest.raises(DataError, match="chunk"):
            there.fetch("web", server.url)
    assert there.names() == []


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_manifest_that_was_changed_in_the_store_is_refused(here: Host, there: Host, tmp_path: Path) -> None:
    here.capture("web", Memory.random(8))
    here.send("web", tmp_path / "store")
    (manifest,) = (tmp_path / "store/snapshots/documents").iterdir()
    _flip(manifest, manifest.read_bytes().index(b"runc"))
    with pytest.raises(DataError, match="manifest is damaged"):
        there.fetch("web", tmp_path / "store")
    assert not (there.config.state_folder / "snapshots").exists()


@pytest.mark.parametrize("kind", ["map", "locator"])
@pytest.mark.parametrize("content", [b"", b"nonsense" * 100], ids=["empty", "other"])
def test_a_damaged_table_in_the_store_is_told_in_words_of_snapshots(
    here: Host, there: Host, tmp_path: Path, kind: str, content: bytes
) -> None:
    here.capture("web", Memory.random(4))
    digest = here.send("web", tmp_path / "store").version.digest
    key = (map_key if kind == "map" else locator_key)(digest)
    (tmp_path / "store" / "snapshots" / key).write_bytes(content)
    with pytest.raises(DataError, match=f"snapshot is damaged: web/.*{kind}.* is damaged") as caught:
        there.fetch("web", tmp_path / "store")
    assert caught.value.hint == "copy the snapshot there again"
    assert "unpack" not in caught.value.message


def test_a_map_that_leads_to_other_memory_is_found_out_by_the_manifest(
    here: Host, there: Host, tmp_path: Path
) -> None:
    here.capture("web", Memory.random(40))
    good = here.send("web", tmp_path / "store").version
    here.capture("other", Memory.random(40))
    evil = here.send("other", tmp_path / "store").version
    for kind in ("maps", "locators"):
        folder = tmp_path / "store/snapshots" / kind
        shutil.copy(next(folder.glob(f"{evil.digest.hex()}*")), next(folder.glob(f"{good.digest.hex()}*")))
    with pytest.raises(DataError, match="does not fit its manifest"):
        there.fetch("web", tmp_path / "store")
    assert there.names() == []


def test_an_interrupted_copy_to_a_store_has_no_name_and_can_be_repeated(
    here: Host, there: Host, tmp_path: Path
) -> None:
    here.capture("web", Memory.random(600))
    count = 0

    def interrupt(_: int) -> None:
        nonlocal count
        count += 1
        if count == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        here.send("web", tmp_path / "store", on_bytes=interrupt)
    assert here.store(tmp_path / "store").versions() == ()
    with pytest.raises(NotFoundError, match="snapshot is not in the store"):
        there.fetch("web", tmp_path / "store")
    here.send("web", tmp_path / "store")
    there.fetch("web", tmp_path / "store")
    assert there.names() == ["web"]


def test_a_damaged_snapshot_is_not_sent(here: Host, tmp_path: Path) -> None:
    manifest = here.capture("web", Memory.random(8))
    _flip(here.config.state_folder / "snapshots/web" / manifest.variant / "images/pages-1.img", 5000)
    with pytest.raises(DataError, match="was altered"):
        here.send("web", tmp_path / "store")
    assert here.store(tmp_path / "store").versions() == ()


def test_what_nobody_vouches_for_is_refused_with_the_ways_to_trust_it(
    here: Host, there: Host, tmp_path: Path
) -> None:
    here.capture("web", Memory.random(2))
    sent = here.send("web", tmp_path / "store").version
    with pytest.raises(PermissionNeededError, match="a snapshot is code") as caught:
        there.fetch("web", tmp_path / "store", TrustRule())
    assert digest_text(sent.digest) in str(caught.value.hint)
    assert not (there.config.state_folder / "snapshots").exists()
    with pytest.raises(NotFoundError, match="not in the store"):
        there.fetch(f"web@blake3:{'ab' * 32}", tmp_path / "store", TrustRule())


@pytest.fixture
def keys(tmp_path: Path) -> Callable[[str], tuple[Path, str]]:
    """Makes pairs of keys: the secret one's file, the public one's text."""
    if shutil.which("minisign") is None:
        pytest.skip("program is not installed: minisign")

    def make(name: str) -> tuple[Path, str]:
        secret, public = tmp_path / f"{name}.key", tmp_path / f"{name}.pub"
        command = ["minisign", "-G", "-W", "-s", str(secret), "-p", str(public)]
        subprocess.run(command, check=True, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
        return secret, public.read_text().splitlines()[1]

    return make


def test_a_signature_of_the_configured_key_is_trust_and_a_wrong_one_is_refused_whatever_else_is_given(
    here: Host, there: Host, tmp_path: Path, keys: Callable[[str], tuple[Path, str]]
) -> None:
    secret, public = keys("ours")
    stranger, _ = keys("stranger")
    here.capture("web", Memory.random(2))
    assert here.send("web", tmp_path / "store", key=secret).signed
    rule = TrustRule(public_key=public)
    assert there.fetch("web", tmp_path / "store", rule).offer.trust.kind == "signed"
    origin = read_origin(load_variant(there.config.state_folder, "web").folder)
    assert origin is not None
    assert (origin.trust, origin.key) == ("signed", public)

    here.capture("bad", Memory.random(2))
    here.send("bad", tmp_path / "store", key=stranger)
    with pytest.raises(DataError, match="signature of the snapshot is wrong"):
        there.fetch("bad", tmp_path / "store", TrustRule(public_key=public, given=True))
    here.capture("unsigned", Memory.random(2))
    here.send("unsigned", tmp_path / "store")
    with pytest.raises(PermissionNeededError, match="it has no signature"):
        there.fetch("unsigned", tmp_path / "store", rule)
    assert there.names() == ["web"]


def test_snapshots_have_credentials_of_their_own(
    here: Host, tmp_path: Path, moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in moto.environment:
        monkeypatch.delenv(name, raising=False)
    bucket = f"bucket{os.urandom(6).hex()}"
    moto.make_bucket(bucket)
    credentials = tmp_path / "credentials"
    lines = [f"{name}={value}" for name, value in moto.environment.items() if name.startswith("AWS_")]
    credentials.write_text("# for snapshots\n" + "\n".join(lines) + "\n")
    host = Host(tmp_path / "here", **{"snapshot.credentials": str(credentials)})
    host.capture("web", Memory.random(2))
    with pytest.raises(ColdstartError, match="others can read"):
        host.send("web", f"s3://{bucket}/main")
    credentials.chmod(0o600)
    assert host.send("web", f"s3://{bucket}/main").version.name == "web"


def test_an_image_store_can_begin_where_snapshots_are_and_the_other_way_round(
    here: Host, tmp_path: Path
) -> None:
    from coldstart_fs.stores.store_url import open_store

    here.capture("web", Memory.random(2))
    here.send("web", tmp_path / "one")
    with open_store(str(tmp_path / "one"), create=True).writing():
        pass
    with open_store(str(tmp_path / "two"), create=True).writing():
        pass
    here.send("web", tmp_path / "two")
    for name in ("one", "two"):
        assert json.loads((tmp_path / name / "coldstart-store.json").read_text())["version"] == 1
        assert open_store(str(tmp_path / name)).list("packs/") == []
        assert len(here.store(tmp_path / name).versions()) == 1


def test_who_waits_for_another_fetch_finds_its_result(here: Host, there: Host, tmp_path: Path) -> None:
    here.capture("web", Memory.random(600))
    here.send("web", tmp_path / "store")
    store = there.store(tmp_path / "store")
    offer = find_offer(SnapshotReference("web"), store, TRUSTED)

    def wait() -> bool:
        with Incoming(offer, store, there.config, wait_seconds=60) as second:
            return second.is_here

    with ThreadPoolExecutor(1) as pool:
        with Incoming(offer, store, there.config) as first:
            first.begin()
            with pytest.raises(BusyError), Incoming(offer, store, there.config):
                pass
            waiting = pool.submit(wait)
            first.finish()
        assert waiting.result(90)
