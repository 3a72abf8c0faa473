"""Tiers of mounts as operators see them: given as options and variables, counted, and their troubles told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from conftest import wait_until
from fs import servers
from fs.servers import FaultyServer, faulty_server
from image_desk import Desk, error


@pytest.fixture
def cache(desk: Desk) -> Iterator[FaultyServer]:
    """A cache with a copy of the store."""
    shutil.copytree(desk.store, desk.folder / "copy")
    with faulty_server(desk.folder / "copy") as cache, faulty_server(desk.store) as store:
        cache.root.with_name("store-url").write_text(store.url)
        yield cache


def store_url(cache: FaultyServer) -> str:
    return cache.root.with_name("store-url").read_text()


def test_a_mount_reads_through_its_tiers_and_the_status_tells_what_they_did(
    desk: Desk, cache: FaultyServer
) -> None:
    cache.fault = lambda handler: "/packs/" in handler.path and servers.flipped_bit(handler)
    options = ("--detach", "--store", store_url(cache), "--tier", f"{cache.url},retries=0")
    done = desk.run("image", "mount", "app/server", desk.point, *options)
    assert done.status == 0, done.stderr
    assert (desk.point / "hello").read_bytes() == b"hello world\n"

    def told() -> bool:
        return "sent wrong bytes" in desk.run("image", "status").stderr

    wait_until(told, "the counters")
    status = desk.run("image", "status")
    assert f"tier {cache.url} sent wrong bytes to {desk.point} 2 times; no reader saw them" in status.stderr
    assert "95 % WITHIN" in status.stdout
    assert "damaged 2" in status.stdout
    document = json.loads(desk.run("image", "status", "--json").stdout)
    (mount,) = document["mounts"]
    assert mount["tiers"] == [f"{cache.url},retries=0"]
    tier, store = mount["counters"]["tiers"]
    assert (tier["tier"], tier["errors"], store["tier"]) == (cache.url, {"damaged": 2}, store_url(cache))
    assert store["answers"] == 1


def test_tiers_of_the_environment_are_used(desk: Desk, cache: FaultyServer) -> None:
    variables = {"COLDSTART_TIERS": cache.url, "COLDSTART_STORE": store_url(cache)}
    done = desk.run("image", "mount", "app/server", desk.point, "--detach", "--json", environment=variables)
    assert json.loads(done.stdout)["tiers"] == [cache.url]
    assert any(path.startswith("/images/") for _, path, _ in cache.requests)


def test_what_is_no_tier_is_refused_with_an_edit(desk: Desk) -> None:
    done = desk.mount("--detach", "--tier", "s3://bucket/x")
    assert (done.status, error(done)) == (2, "not a tier's URL: s3://bucket/x")
    assert "write http://HOST:PORT/PATH" in done.stderr
    done = desk.mount("--detach", "--tier", "http://a", "--tier", "http://b,concurency=3")
    assert error(done) == "unknown setting of tier http://b: concurency"
    assert "did you mean `concurrency`?" in done.stderr
