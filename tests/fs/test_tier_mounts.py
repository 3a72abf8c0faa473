"""Tiers and their faults through a real mount: right bytes or EIO, whatever the network does."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldstart_cli.errors import UsageError
from coldstart_fs.mounts.mount import MountRecord, check_request
from conftest import wait_until
from fs import servers
from fs.mounts import Lab, forget_pages
from fs.servers import Fault, FaultyServer, faulty_server
from fs.test_tier_faults import FAULTS

CONTENT = random.Random(11).randbytes(700_000)
OTHER = random.Random(12).randbytes(300_000)

# one of each sort: `test_tier_faults` has them all
SEEN_BY_MOUNTS = (
    *("flipped bit", "short body", "wrong range", "endless 200", "page with 200", "reset", "stall", "drip"),
    *("401", "404", "429", "500"),
)


@dataclass
class Served:
    """An image behind a cache and a store; the cache serves a copy of the store."""

    lab: Lab
    cache: FaultyServer
    store: FaultyServer

    def mount(self, tier: str | None = None) -> MountRecord:
        settings = f"{self.cache.url},read_timeout_seconds=0.3,retries=0"
        return self.lab.mount(store=self.store.url, tiers=(tier or settings,))

    def tiers(self, record: MountRecord, store_requests: int) -> list[dict[str, object]]:
        """What the server says of its tiers, once the store has been asked that often."""
        found: list[dict[str, object]] = []

        def counted() -> bool:
            found[:] = self.lab.counters(record).get("tiers", [])  # type: ignore[arg-type]
            return bool(found) and found[-1]["requests"] == store_requests and not found[0]["in_flight"]

        wait_until(counted, f"{store_requests} requests to the store")
        return found


@pytest.fixture
def served(lab: Lab, tmp_path: Path) -> Iterator[Served]:
    lab.image(data=CONTENT, other=OTHER)
    shutil.copytree(lab.store, tmp_path / "copy")
    with faulty_server(tmp_path / "copy") as cache, faulty_server(lab.store) as store:
        yield Served(lab, cache, store)


def in_packs(fault: Fault) -> Fault:
    return lambda handler: "/packs/" in handler.path and fault(handler)


def test_contents_and_the_index_come_from_the_cache_and_names_from_the_store(served: Served) -> None:
    record = served.mount()
    assert (record.mountpoint / "data").read_bytes() == CONTENT
    asked = {path.split("/")[1] for _, path, _ in served.store.requests}
    assert asked == {"refs", "locators"}
    assert {path.split("/")[1] for _, path, _ in served.cache.requests} == {"images", "packs"}
    assert record.tiers == (f"{served.cache.url},read_timeout_seconds=0.3,retries=0",)


@pytest.mark.parametrize("name", SEEN_BY_MOUNTS)
def test_readers_of_a_mount_do_not_see_faults_of_a_cache(served: Served, name: str) -> None:
    fault, kind, _ = FAULTS[name]
    served.cache.fault = in_packs(fault)
    record = served.mount()
    assert (record.mountpoint / "data").read_bytes() == CONTENT
    served.cache.fault = lambda _: False
    forget_pages(record.mountpoint / "data")
    assert (record.mountpoint / "data").read_bytes() == CONTENT
    assert f"failed ({kind})" in served.lab.log(record)


def test_wrong_bytes_from_everywhere_are_an_error_and_are_not_remembered(served: Served) -> None:
    served.cache.fault = served.store.fault = in_packs(servers.flipped_bit)
    record = served.mount()
    path = record.mountpoint / "data"
    with pytest.raises(OSError, match="Input/output error") as caught:
        path.read_bytes()
    assert caught.value.errno == errno.EIO
    served.store.fault = lambda _: False
    assert path.read_bytes() == CONTENT


def test_a_store_that_goes_and_comes_back_holds_readers_and_fails_none(served: Served) -> None:
    record = served.mount(f"http://127.0.0.1:{servers.free_port()}")
    served.store.fault = in_packs(servers.first(6, servers.reset))
    assert (record.mountpoint / "data").read_bytes() == CONTENT


def test_a_known_image_mounts_and_works_without_any_server(served: Served) -> None:
    record = served.mount()
    for name in ("data", "other"):
        (record.mountpoint / name).read_bytes()
    served.lab.unmount(record)
    served.cache.fault = served.store.fault = servers.reset
    served.store.requests.clear()
    record = served.mount()
    assert (record.mountpoint / "data").read_bytes() == CONTENT
    assert (record.mountpoint / "other").read_bytes() == OTHER
    assert len(served.store.requests) == 1  # for the name; the server of the mount knows by then
    assert len(record.notes) == 2
    assert all("going on with what the cache knows" in note for note in record.notes)


def test_an_outage_of_the_store_fails_reads_of_the_unknown_only(served: Served) -> None:
    record = served.mount()
    (record.mountpoint / "data").read_bytes()
    served.lab.unmount(record)
    served.cache.fault = served.store.fault = servers.reset
    record = served.mount()
    with ThreadPoolExecutor(4) as pool:
        unknown = [pool.submit((record.mountpoint / "other").read_bytes) for _ in range(3)]
        assert (record.mountpoint / "data").read_bytes() == CONTENT
        for reader in unknown:
            with pytest.raises(OSError, match="Input/output error"):
                reader.result(60)
    served.store.fault = lambda _: False
    served.cache.fault = lambda _: False

    def comes_back() -> bool:
        try:
            return (record.mountpoint / "other").read_bytes() == OTHER
        except OSError:
            return False

    wait_until(comes_back, "the end of the outage")


def test_what_is_no_tier_is_refused_before_anything_is_mounted(lab: Lab) -> None:
    lab.image(data=b"x")
    with pytest.raises(UsageError, match="not a tier's URL: s3://bucket"):
        check_request(lab.request(tiers=("s3://bucket",)))
    assert os.listdir(lab.folder / "mnt") == []


def test_the_status_counts_what_each_tier_did(served: Served) -> None:
    served.cache.fault = in_packs(servers.answer(404))
    record = served.mount()
    assert (record.mountpoint / "data").read_bytes() == CONTENT
    packs = sum("/packs/" in path for _, path, _ in served.store.requests)
    cache, store = served.tiers(record, packs)
    assert cache["errors"] == {"missing": packs}
    assert cache["answers"] == 1  # the index
    assert store["received_bytes"] == len(CONTENT)
    assert (cache["breaker"], store["breaker"]) == ("closed", "closed")
