"""The shipped cache of a region, nginx and all, between readers and a store."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldstart_fs.format.chunk import chunk_digest
from coldstart_fs.format.names import index_key
from coldstart_fs.stores.store_url import open_store
from coldstart_fs.tiers.packs import open_tiers
from coldstart_fs.tiers.settings import TierSettings
from conftest import REPOSITORY
from fs import servers
from fs.servers import FaultyServer, faulty_server, free_port, running
from fs.tier_lab import CONTENT, KEY, LENGTH, PACK, TierLab, asked, read, serve_pack

EXAMPLE = REPOSITORY / "examples" / "region-cache"
SLICE_BYTES = 1 << 20
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@dataclass
class Region:
    """The cache, its files, and the store behind it."""

    url: str
    files: Path
    store: FaultyServer

    def get(self, key: str, span: tuple[int, int] | None = None, **headers: str) -> tuple[bytes, str | None]:
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        request = urllib.request.Request(f"{self.url}/{key}", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read(), answer.headers.get("X-Cache-Status")

    def status(self, key: str, method: str = "GET") -> int:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(f"{self.url}/{key}", method=method), timeout=20
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    """The shipped configuration, with ports and folders of the test's own."""
    root = tmp_path / "store"
    root.mkdir()
    with faulty_server(root) as store:
        serve_pack(root)
        port = free_port()
        text = (EXAMPLE / "nginx.conf").read_text()
        for old, new in (
            ("listen 8080", f"listen 127.0.0.1:{port}"),
            ("127.0.0.1:9000", f"127.0.0.1:{store.port}"),
            ("/run/coldstart-region-cache/", f"{tmp_path}/"),
            ("/var/cache/coldstart-region-cache", f"{tmp_path}/slices"),
            ("max_size=500g min_free=20g", "max_size=1g"),
            ("worker_processes auto;", "worker_processes 1; user root;"),
            ("/dev/stdout region buffer=64k flush=5s", f"{tmp_path}/access.log region"),
        ):
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "nginx.conf").write_text(text)
        assert NGINX is not None
        command = [NGINX, "-p", str(tmp_path), "-e", f"{tmp_path}/error.log", "-c", f"{tmp_path}/nginx.conf"]
        with running(command, port, tmp_path / "out.log"):
            store.requests.clear()
            yield Region(f"http://127.0.0.1:{port}", tmp_path / "slices", store)


@pytest.fixture
def lab(region: Region) -> Iterator[TierLab]:
    """Readers that ask the cache first; its log is theirs."""
    lab = TierLab(cache=region.store, store=region.store)
    yield lab
    for packs in lab.opened:
        packs.close()


def tier(region: Region) -> TierSettings:
    return TierSettings(region.url, read_timeout_seconds=5.0)


def test_a_range_is_fetched_once_and_then_a_hit(region: Region) -> None:
    assert region.get(KEY, (1000, 5000)) == (CONTENT[1000:5000], "MISS")
    assert region.get(KEY, (2000, 300_000)) == (CONTENT[2000:300_000], "HIT")
    assert region.get(KEY, (0, len(CONTENT)))[0] == CONTENT
    assert [wanted for _, _, wanted in region.store.requests] == [f"bytes=0-{SLICE_BYTES - 1}"]


def test_many_readers_at_once_cost_the_store_one_request(region: Region, lab: TierLab) -> None:
    region.store.fault = servers.slowly(0.3)
    readers = [lab.open(tier(region)) for _ in range(8)]
    gate = threading.Barrier(len(readers))

    def start(packs: object) -> None:
        gate.wait(60)
        read(packs)  # type: ignore[arg-type]

    with ThreadPoolExecutor(len(readers)) as pool:
        list(pool.map(start, readers))
    assert asked(region.store) == 1
    assert sum(packs.counters()[1].requests for packs in readers) == 0


def test_what_is_cached_is_served_while_the_store_is_down(region: Region, lab: TierLab) -> None:
    packs = lab.open(tier(region))
    read(packs)
    region.store.fault = servers.reset
    read(packs)
    cache, store = packs.counters()
    assert (cache.answers, store.requests) == (2, 0)


def slices(region: Region) -> list[Path]:
    return [path for path in region.files.rglob("*") if path.is_file()]


def damage(region: Region) -> None:
    """Change bytes of the contents in every slice that is kept."""
    for path in slices(region):
        data = bytearray(path.read_bytes())
        data[-400_000] ^= 1
        path.write_bytes(data)


def test_a_damaged_slice_is_replaced_and_nobody_sees_it(region: Region, lab: TierLab) -> None:
    packs = lab.open(tier(region))
    read(packs, 0, len(CONTENT))
    damage(region)
    assert region.get(KEY, (0, len(CONTENT)))[0] != CONTENT
    read(packs, 0, len(CONTENT))
    cache, store = packs.counters()
    assert (cache.errors, store.requests) == ({"damaged": 1}, 0)
    assert region.get(KEY, (0, len(CONTENT))) == (CONTENT, "HIT")


def test_a_damaged_slice_costs_one_way_round_while_it_cannot_be_replaced(
    region: Region, lab: TierLab
) -> None:
    packs = lab.open(tier(region))
    read(packs, 0, len(CONTENT))
    damage(region)

    def no_answer_to_the_cache(handler: servers.FaultyHandler) -> bool:
        through_cache = handler.headers.get("Range") == f"bytes=0-{SLICE_BYTES - 1}"
        return through_cache and servers.answer(503)(handler)

    region.store.fault = no_answer_to_the_cache
    read(packs, 0, len(CONTENT))
    cache, store = packs.counters()
    assert cache.errors["damaged"] >= 1
    assert store.answers == 1


@pytest.mark.parametrize(
    "fault",
    [
        servers.answer(200, b"<html>log in</html>", {"Content-Type": "text/html"}),
        servers.page,
        servers.answer(403),
        servers.answer(404),
        servers.answer(500),
        servers.reset,
    ],
    ids=["page", "page as a range", "403", "404", "500", "reset"],
)
def test_no_error_and_no_page_is_kept(region: Region, lab: TierLab, fault: servers.Fault) -> None:
    region.store.fault = servers.first(1, fault)
    packs = lab.open(tier(region))
    read(packs)
    region.store.fault = lambda _: False
    read(packs)
    read(packs)
    assert packs.counters()[0].answers >= 2
    assert all(path.read_bytes().find(b"<html") == -1 for path in slices(region))


def test_only_what_is_named_by_its_content_is_kept(region: Region) -> None:
    for name in ("refs/app", "locators/x.locator", "traces/x", "coldstart-store.json"):
        path = region.store.root / name
        path.parent.mkdir(exist_ok=True)
        for content in (b"one", b"two"):
            path.write_bytes(content)
            assert region.get(name) == (content, None)
    assert not slices(region)


@pytest.mark.parametrize(
    "key", ["snapshots/app/manifest.json", "packs/../snapshots/x", "other", "packs/x", ""]
)
def test_snapshots_and_all_else_are_not_there(region: Region, key: str) -> None:
    (region.store.root / "snapshots/app").mkdir(parents=True)
    (region.store.root / "snapshots/app/manifest.json").write_bytes(b"secret")
    (region.store.root / "snapshots/x").write_bytes(b"secret")
    assert region.status(key) == 404
    assert region.store.requests == []


def test_nothing_is_written_through_the_cache(region: Region) -> None:
    for method in ("PUT", "POST", "DELETE"):
        assert region.status(KEY, method) == 405
    assert region.store.requests == []


def test_an_index_comes_through_the_cache_whole(region: Region, lab: TierLab) -> None:
    content = CONTENT * 5  # several slices
    digest = chunk_digest(content)
    (region.store.root / "images").mkdir()
    (region.store.root / index_key(digest)).write_bytes(content)
    packs = lab.open(tier(region))
    for _ in range(2):
        assert packs.index(digest, timeout_seconds=20) == content
    assert packs.counters()[0].answers == 2
    assert len(region.store.requests) == 3


def test_an_object_that_was_uploaded_again_is_still_served(region: Region, lab: TierLab) -> None:
    """The store's tags of one pack differ from upload to upload; its bytes do not."""
    large = CONTENT * 4
    digest = chunk_digest(large)
    key = f"packs/{digest.hex()[:2]}/{digest.hex()}.pack"
    (region.store.root / key).parent.mkdir(exist_ok=True)
    (region.store.root / key).write_bytes(large)
    tags = iter(range(10))

    def tagged(handler: servers.FaultyHandler) -> bool:
        content = handler.content()
        assert content is not None
        start, end = handler.wanted(content)
        span = f"bytes {start}-{end - 1}/{len(content)}"
        handler.say(206, content[start:end], {"Content-Range": span, "ETag": f'"{next(tags)}"'})
        return True

    region.store.fault = tagged
    assert region.get(key, (0, len(large)))[0] == large
    assert region.get(key, (500_000, 1_500_000)) == (large[500_000:1_500_000], "HIT")


def test_the_store_of_the_hosts_may_be_the_cache(region: Region) -> None:
    store = open_store(region.url)
    packs = open_tiers(store)
    read(packs)
    packs.close()
    assert store.get_range(KEY, 5, LENGTH) == CONTENT[5 : 5 + LENGTH]
    assert PACK.hex() in region.store.requests[0][1]


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = EXAMPLE / "coldstart-region-cache.service"
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if "region-cache" in line] == []
    assert done.returncode == 0, done.stderr
    folder = re.search(r"^CacheDirectory=(.*)$", unit.read_text(), re.MULTILINE)
    assert folder is not None
    assert f"/var/cache/{folder[1]} " in (EXAMPLE / "nginx.conf").read_text()
