"""Mounts of one image share a server, and with it page cache and fetches; each ends for itself."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coldstart_cli.errors import Terminated
from coldstart_fs.mounts import obtain
from coldstart_fs.mounts.kernel_mounts import mount_at
from coldstart_fs.mounts.mount import MountRecord, find_mount, live_mounts, serve, sweep_stale, unmount
from coldstart_fs.mounts.server_records import server_folders
from conftest import wait_until
from fs.mounts import CHUNK_BYTES, Lab, kill_all
from fs.servers import faulty_server

LARGE = os.urandom(12 * CHUNK_BYTES)


@pytest.fixture
def image(lab: Lab) -> Lab:
    lab.image(file=b"content", large=LARGE)
    return lab


def test_sixteen_mounts_at_once_have_one_server_and_fetch_everything_once(image: Lab) -> None:
    with faulty_server(image.store) as store:
        requests = [
            image.request(
                f"mnt{number}",
                store=store.url,
                overlay=image.folder / f"layer{number}" if number % 2 else None,
            )
            for number in range(16)
        ]

        def mount_and_read(number: int) -> MountRecord:
            record = image.mount_request(requests[number])
            assert (record.mountpoint / "large").read_bytes() == LARGE
            return record

        with ThreadPoolExecutor(16) as starters:
            records = list(starters.map(mount_and_read, range(16)))
        assert len({record.server_folder for record in records}) == 1
        assert len({os.stat(record.fuse_mountpoint / "large").st_ino for record in records}) == 1
        counters = image.counters(records[0], store_chunks=12)
        assert (counters["store_chunks"], counters["store_bytes"]) == (12, len(LARGE))
        for record in records:
            image.unmount(record)
    assert server_folders(image.run) == []


def test_pages_that_one_mount_has_read_are_there_for_all(image: Lab) -> None:
    first, second = image.mount("one"), image.mount("two", overlay=image.folder / "layer")
    assert (first.mountpoint / "large").read_bytes() == LARGE
    before = image.counters(first, store_chunks=12)["requests"]
    assert (second.mountpoint / "large").read_bytes() == LARGE
    assert image.counters(second, store_chunks=12)["requests"] - before < 4


def test_the_server_ends_with_its_last_mount(image: Lab) -> None:
    records = [image.mount("one"), image.mount("two", overlay=image.folder / "layer"), image.mount("three")]
    for number, record in enumerate(records):
        assert record.server_lives()
        report = unmount(record.mountpoint, run_folder=image.run)
        assert report.served_on == (number < 2)
        assert mount_at(record.mountpoint) is None
        for other in records[number + 1 :]:
            assert (other.mountpoint / "file").read_bytes() == b"content"
    assert not records[0].server_folder.exists()
    assert mount_at(records[0].fuse_mountpoint) is None


def test_who_uses_a_mount_that_is_let_go_reads_on_as_long_as_others_have_it(image: Lab) -> None:
    record, other = image.mount("one"), image.mount("two")
    with (record.mountpoint / "large").open("rb") as user:
        report = unmount(record.mountpoint, run_folder=image.run, lazy=True)
        assert (report.in_use, report.served_on) == (True, True)
        os.posix_fadvise(user.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert user.read() == LARGE
    image.unmount(other)
    assert not other.server_folder.exists()


def test_force_on_one_mount_leaves_the_others_alone(image: Lab) -> None:
    record, other = image.mount("one"), image.mount("two")
    with (record.mountpoint / "file").open("rb"):
        assert unmount(record.mountpoint, run_folder=image.run, force=True).served_on
    assert mount_at(record.mountpoint) is None
    assert (other.mountpoint / "large").read_bytes() == LARGE


def test_a_mount_may_have_a_server_of_its_own(image: Lab) -> None:
    shared, alone, again = image.mount("one"), image.mount("two", alone=True), image.mount("three")
    assert shared.server_folder == again.server_folder != alone.server_folder
    kill_all(alone)
    assert sweep_stale(image.run) == [alone.mountpoint]
    assert live_mounts(image.run) == [shared, again]


def test_other_stores_caches_and_images_have_other_servers(image: Lab) -> None:
    image.image("other", file=b"other content")
    records = [
        image.mount("one"),
        image.mount("two", cache=image.folder / "cache-two"),
        image.mount("three", name="other"),
    ]
    assert len({record.server_folder for record in records}) == 3
    assert (records[2].mountpoint / "file").read_bytes() == b"other content"


def test_flags_of_a_mount_are_its_own(image: Lab) -> None:
    plain, special = image.mount("one"), image.mount("two", suid=True, dev=True)
    assert plain.server_folder == special.server_folder
    flags = [os.statvfs(record.mountpoint).f_flag for record in (plain, special)]
    assert [bool(flag & os.ST_NOSUID) for flag in flags] == [True, False]
    assert [bool(flag & os.ST_NODEV) for flag in flags] == [True, False]
    assert all(flag & os.ST_RDONLY for flag in flags)


def test_a_server_whose_mounts_were_all_unmounted_by_hand_ends_by_itself(image: Lab) -> None:
    records = [image.mount("one"), image.mount("two")]
    subprocess.run(["umount", str(records[0].mountpoint)], timeout=60, check=True)
    assert (records[1].mountpoint / "file").read_bytes() == b"content"
    subprocess.run(["umount", str(records[1].mountpoint)], timeout=60, check=True)
    wait_until(lambda: not records[0].server_lives(), "the end of the server")
    wait_until(lambda: mount_at(records[0].fuse_mountpoint) is None, "the end of the mount")
    assert set(sweep_stale(image.run)) == {record.mountpoint for record in records}
    assert server_folders(image.run) == []


def test_after_the_death_of_a_shared_server_new_mounts_get_a_new_one(image: Lab) -> None:
    dead, also_dead = image.mount("one"), image.mount("two")
    kill_all(dead)
    fresh = image.mount("three")
    assert fresh.server_folder != dead.server_folder
    assert set(sweep_stale(image.run)) == {dead.mountpoint, also_dead.mountpoint}
    assert (fresh.mountpoint / "file").read_bytes() == b"content"
    assert find_mount(fresh.mountpoint, image.run) == fresh
    assert not dead.server_folder.exists()


def test_a_server_that_ends_with_its_command_or_service_is_not_shared(
    image: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ready(record: MountRecord) -> None:
        other = image.mount("other")
        assert other.server_folder != record.server_folder
        image.unmount(other)
        raise Terminated

    with pytest.raises(Terminated):
        serve(image.request("foreground"), on_ready=ready)
    monkeypatch.setattr(obtain, "is_in_a_service", lambda: True)
    first, second = image.mount("one"), image.mount("two")
    assert first.server_folder != second.server_folder


@pytest.mark.parametrize(
    ("lines", "in_service"),
    [
        ("0::/system.slice/coldstart-image@app.service", True),
        ("0::/system.slice/coldstart-image@app.service/inner", True),
        ("0::/user.slice/user-0.slice/session-3.scope", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/terminal.scope", False),
        ("12:cpu:/x.service\n1:name=systemd:/\n0::/", False),
        ("1:name=systemd:/system.slice/agent.service\n0::/", True),
        ("0::/", False),
    ],
)
def test_whether_a_service_would_take_a_server_along_is_read_from_its_control_group(
    tmp_path: Path, lines: str, in_service: bool
) -> None:
    (tmp_path / "cgroup").write_text(lines + "\n")
    assert obtain.is_in_a_service(tmp_path / "cgroup") == in_service
