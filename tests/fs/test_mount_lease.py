"""Mounts of shared stores hold leases, so that `image gc` elsewhere keeps what they serve."""

from __future__ import annotations

import os
import signal

from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.leases import list_leases
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from conftest import wait_until
from fs.conftest import Bucket
from fs.mounts import Lab


def _index(lab: Lab, bucket: Bucket) -> Store:
    store = open_store(bucket.url, create=True)
    index_image(f"dir:{lab.tree(file=os.urandom(10_000))}", store=store, name="image")
    return store


def test_a_mount_of_a_bucket_leases_its_image_until_it_ends(lab: Lab, bucket: Bucket) -> None:
    store = _index(lab, bucket)
    record = lab.mount(store=bucket.url)
    wait_until(lambda: len(list_leases(store)) == 1, "the lease")
    (lease,) = list_leases(store)
    assert lease.image.hex() in record.image
    assert lease.until is not None
    assert (record.mountpoint / "file").stat().st_size == 10_000
    lab.unmount(record)
    wait_until(lambda: list_leases(store) == [], "the lease is given back")


def test_a_server_that_was_killed_leaves_its_lease_to_its_successor(lab: Lab, bucket: Bucket) -> None:
    store = _index(lab, bucket)
    record = lab.mount(store=bucket.url)
    wait_until(lambda: len(list_leases(store)) == 1, "the lease")
    killed = record.server_pid
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: record.server_pid not in {0, killed}, "the successor")
    assert (record.mountpoint / "file").stat().st_size == 10_000
    assert len(list_leases(store)) == 1
    lab.unmount(record)


def test_mounts_of_a_folder_of_this_host_write_nothing_into_the_store(lab: Lab) -> None:
    lab.image(file=b"content")
    record = lab.mount()
    assert (record.mountpoint / "file").read_bytes() == b"content"
    lab.unmount(record)
    assert not (lab.store / "leases").exists()


def test_a_mount_that_is_told_not_to_lease_does_not(lab: Lab, bucket: Bucket) -> None:
    store = _index(lab, bucket)
    record = lab.mount(store=bucket.url, lease=False)
    assert (record.mountpoint / "file").stat().st_size == 10_000
    lab.unmount(record)
    assert list_leases(store) == []
