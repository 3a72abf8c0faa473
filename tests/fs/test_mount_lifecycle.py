"""Mounts from their beginning to their end: crashes, hangs, races, and who cleans up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, ColdstartError, NotFoundError, Terminated, UsageError
from coldstart_cli.files import exclusive_lock
from coldstart_fs.kernel_mounts import mount_at, real_mountpoint
from coldstart_fs.mount import (
    MountRecord,
    check_request,
    find_mount,
    live_mounts,
    mount_detached,
    serve,
    sweep_stale,
    unmount,
)
from coldstart_fs.records import all_records, lock_path, log_path, record_folder
from conftest import wait_until
from fs.mounts import CHUNK_BYTES, Lab, ends


@pytest.fixture
def image(lab: Lab) -> Lab:
    lab.image(file=b"content", large=os.urandom(4 * CHUNK_BYTES))
    return lab


def is_gone(lab: Lab, record: MountRecord) -> bool:
    """Nothing of a mount is left: server, mounts, record."""
    return (
        not record.server_lives()
        and mount_at(record.mountpoint) is None
        and mount_at(record.fuse_mountpoint) is None
        and find_mount(record.mountpoint, lab.run) is None
    )


def test_unmounting_ends_server_mount_and_record(image: Lab) -> None:
    record = image.mount()
    assert live_mounts(image.run) == [record]
    assert record.settings == {"read_ahead_kib": 512, "max_background": 256, "congestion_threshold": 192}
    report = unmount(record.mountpoint, run_folder=image.run)
    assert (report.record, report.in_use) == (record, False)
    assert is_gone(image, record)
    assert not list((image.run / "mounts").glob("*/"))
    with pytest.raises(NotFoundError, match="not a mount of coldstart"):
        unmount(record.mountpoint, run_folder=image.run)


def test_a_mount_in_use_is_left_whole_until_it_is_free(image: Lab) -> None:
    record = image.mount()
    with (record.mountpoint / "file").open("rb") as user:
        with pytest.raises(BusyError, match="cannot unmount"):
            unmount(record.mountpoint, run_folder=image.run, lazy=False)
        assert user.read() == b"content"
        assert live_mounts(image.run) == [record]
    unmount(record.mountpoint, run_folder=image.run, lazy=False)
    assert is_gone(image, record)


def test_a_mount_in_use_can_be_let_go(image: Lab) -> None:
    record = image.mount()
    user = os.open(record.mountpoint / "large", os.O_RDONLY)
    try:
        assert unmount(record.mountpoint, run_folder=image.run, lazy=True).in_use
        assert is_gone(image, record)
        with pytest.raises(OSError, match=r".") as refusal:
            os.pread(user, 10, 0)
        assert refusal.value.errno in {errno.ENOTCONN, errno.EIO, errno.ECONNABORTED}
    finally:
        with suppress(OSError):  # nobody is there to be told
            os.close(user)


def test_a_user_who_leaves_at_the_last_moment_is_waited_for(image: Lab) -> None:
    record = image.mount()
    user = os.open(record.mountpoint / "file", os.O_RDONLY)
    leaving = threading.Timer(0.1, os.close, [user])
    leaving.start()
    assert not unmount(record.mountpoint, run_folder=image.run, lazy=False).in_use
    leaving.join()


def test_a_killed_server_is_swept_and_named(image: Lab) -> None:
    record = image.mount()
    alive = image.mount("alive")
    ends(record)
    with pytest.raises(OSError, match=r".") as refusal:
        os.listdir(record.mountpoint)
    assert refusal.value.errno == errno.ENOTCONN
    assert sweep_stale(image.run) == [record.mountpoint]
    assert is_gone(image, record)
    assert live_mounts(image.run) == [alive]
    assert sweep_stale(image.run) == []


def test_mounting_over_a_dead_mount_recovers_it(image: Lab) -> None:
    record = image.mount()
    ends(record)
    again = image.mount()
    assert again.server_pid != record.server_pid
    assert (again.mountpoint / "file").read_bytes() == b"content"


def test_unmounting_a_dead_mount_cleans_up(image: Lab) -> None:
    record = image.mount()
    ends(record)
    assert not unmount(record.mountpoint, run_folder=image.run).in_use
    assert is_gone(image, record)


def test_a_server_that_is_told_to_end_unmounts(image: Lab) -> None:
    record = image.mount()
    ends(record, signal.SIGTERM)
    assert mount_at(record.mountpoint) is None
    assert f"unmounting {record.mountpoint}" in image.log(record)
    assert sweep_stale(image.run) == [record.mountpoint]


def test_a_mount_that_somebody_else_unmounted_is_forgotten(image: Lab) -> None:
    record = image.mount()
    subprocess.run(["umount", str(record.mountpoint)], timeout=20, check=True)
    wait_until(lambda: not record.server_lives(), "the end of the server")
    again = image.mount()
    assert (again.mountpoint / "file").read_bytes() == b"content"


def test_one_mount_point_has_one_mount_however_many_try(image: Lab) -> None:
    request = image.request()

    def attempt() -> MountRecord | None:
        try:
            return mount_detached(request)
        except BusyError:
            return None

    with ThreadPoolExecutor(4) as starters:
        outcomes = [start.result(60) for start in [starters.submit(attempt) for _ in range(4)]]
    records = [record for record in outcomes if record is not None]
    assert len(records) == 1
    assert live_mounts(image.run) == records


def test_a_lock_that_is_held_is_told_with_its_holder(image: Lab) -> None:
    request = image.request()
    with (
        exclusive_lock(lock_path(record_folder(image.run, request.mountpoint))),
        pytest.raises(BusyError, match=f"pid {os.getpid()}"),
    ):
        mount_detached(request)


def test_a_hung_store_holds_neither_other_files_nor_the_end(image: Lab) -> None:
    record = image.mount()
    (record.mountpoint / "file").read_bytes()
    wait_until(image.cached(image.places("file")[0][0]).exists, "the chunk in the cache")
    image.unmount(record)
    record = image.mount()
    pack = image.pack(image.places("large")[0][1])
    image.image("backing", pack=pack.read_bytes())
    backing = image.mount("backing", name="backing")
    pack.unlink()
    pack.symlink_to(backing.mountpoint / "pack")
    os.kill(backing.server_pid, signal.SIGSTOP)  # as a file server that went away
    reader = subprocess.Popen(
        [sys.executable, "-c", f"open({str(record.mountpoint / 'large')!r}, 'rb').read()"],
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: _waits_in_the_kernel(reader.pid), "a reader that waits")
        assert (record.mountpoint / "file").read_bytes() == b"content"
        assert len(os.listdir(record.mountpoint)) == 2
        started = time.monotonic()
        os.kill(record.server_pid, signal.SIGTERM)
        wait_until(lambda: not record.server_lives(), "the end of the server", timeout_seconds=10)
        assert time.monotonic() - started < 5
        assert mount_at(record.mountpoint) is None
        _, said = reader.communicate(timeout=20)
        assert reader.returncode == 1
        assert b"OSError" in said
    finally:
        reader.kill()
        os.kill(backing.server_pid, signal.SIGCONT)
        reader.communicate(timeout=20)


def _waits_in_the_kernel(pid: int) -> bool:
    try:
        place = Path(f"/proc/{pid}/wchan").read_text()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state == "D" or "fuse" in place or "folio" in place


def test_readers_of_a_mount_that_ends_get_an_error_not_wrong_bytes(image: Lab) -> None:
    content = (image.folder / "trees" / "image" / "large").read_bytes()
    record = image.mount()
    stop = threading.Event()
    wrong: list[bytes] = []

    def read() -> None:
        while not stop.is_set():
            try:
                data = (record.mountpoint / "large").read_bytes()
            except OSError:
                continue
            if data != content:
                wrong.append(data)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        unmount(record.mountpoint, run_folder=image.run, lazy=True)
    finally:
        stop.set()
        for reader in readers:
            reader.join(20)
    assert wrong == []
    assert is_gone(image, record)


def test_a_mount_point_is_found_through_symlinks(image: Lab) -> None:
    request = image.request()
    (image.folder / "way").symlink_to(image.folder)
    (image.folder / "direct").symlink_to(request.mountpoint)
    record = image.mount("way/mnt")
    assert record.mountpoint == real_mountpoint(request.mountpoint)
    for path in ("way/mnt", "direct", "mnt/"):
        assert find_mount(image.folder / path, image.run) == record
    unmount(image.folder / "direct", run_folder=image.run)
    assert is_gone(image, record)


def test_everything_a_mount_needs_must_lie_outside_of_it(image: Lab) -> None:
    for what, changes in {
        "cache": {"cache": image.folder / "mnt" / "cache"},
        "run folder": {"run_folder": image.folder / "mnt" / "run"},
    }.items():
        with pytest.raises(UsageError, match=f"{what} would lie behind the mount"):
            check_request(image.request(**changes))


def test_a_foreground_mount_ends_with_the_exception_that_ends_the_command(image: Lab) -> None:
    seen: list[MountRecord] = []

    def ready(record: MountRecord) -> None:
        seen.append(record)
        assert (record.mountpoint / "file").read_bytes() == b"content"
        raise Terminated

    with pytest.raises(Terminated):
        serve(image.request(overlay=image.folder / "overlay"), on_ready=ready)
    assert is_gone(image, seen[0])


def test_a_foreground_mount_returns_when_somebody_unmounts_it(image: Lab) -> None:
    seen: list[MountRecord] = []
    unmounting: list[threading.Thread] = []

    def ready(record: MountRecord) -> None:
        seen.append(record)
        thread = threading.Thread(target=unmount, args=[record.mountpoint], kwargs={"run_folder": image.run})
        thread.start()
        unmounting.append(thread)

    serve(image.request(), on_ready=ready)
    unmounting[0].join(20)
    assert is_gone(image, seen[0])


def test_a_foreground_mount_whose_server_dies_is_an_error(image: Lab) -> None:
    seen: list[MountRecord] = []

    def ready(record: MountRecord) -> None:
        seen.append(record)
        ends(record)

    with pytest.raises(ColdstartError, match="image server ended"):
        serve(image.request(), on_ready=ready)
    assert is_gone(image, seen[0])


# the moments at which whoever mounts may be killed, from the first process to the last step
_MOMENTS = {
    "before the record": "coldstart_fs.mount.write_record",
    "while it waits for the server": "coldstart_fs.supervisor.StartedServer.wait_mounted",
    "after the answer": "coldstart_fs.supervisor.StartedServer.wait_answer",
    "while it tunes": "coldstart_fs.mount.tune",
}


@pytest.mark.parametrize("moment", _MOMENTS)
def test_a_mounting_that_is_killed_leaves_nothing_that_cannot_be_ended(image: Lab, moment: str) -> None:
    request = image.request()
    program = f"""
import os, signal
from pathlib import Path
from coldstart_fs import mount, supervisor
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{_MOMENTS[moment].removeprefix("coldstart_fs.")} = die
mount.mount_detached(mount.MountRequest(
    {request.name!r}, Path({str(request.mountpoint)!r}), {request.store!r},
    Path({str(request.cache)!r}), Path({str(request.run_folder)!r})))
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    if moment in {"before the record", "while it waits for the server"}:
        # nobody has heard of the mount: its server ends by itself, whether it had mounted by then or not
        wait_until(lambda: not _servers_of(request.mountpoint), "the end of the server", timeout_seconds=10)
        wait_until(lambda: mount_at(request.mountpoint) is None, "the end of the mount")
    else:
        (record,) = [record for _, record in all_records(image.run)]
        unmount(request.mountpoint, run_folder=image.run)
        assert is_gone(image, record)
    record = image.mount()
    assert (record.mountpoint / "file").read_bytes() == b"content"
    assert _servers_of(request.mountpoint) == [record.server_pid]


def _servers_of(mountpoint: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"coldstart_fs.serving" in arguments and os.fsencode(mountpoint) in b"".join(arguments):
            found.append(int(entry.name))
    return found


def test_a_server_that_cannot_start_says_why(image: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    request = image.request()
    with pytest.raises(ColdstartError, match=r"image server ended before it had mounted: .*Python"):
        mount_detached(request)
    assert find_mount(request.mountpoint, image.run) is None


def test_the_log_of_a_mount_is_closed_to_others(image: Lab) -> None:
    record = image.mount()
    folder = record_folder(image.run, record.mountpoint)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert log_path(folder).stat().st_mode & 0o777 == 0o600


def test_a_copy_in_another_mount_namespace_does_not_keep_a_server_alive(image: Lab) -> None:
    record = image.mount()
    keeper = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"],
        stdout=subprocess.PIPE,
    )
    try:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"\n"  # from here on it has a copy of the mount
        assert unmount(record.mountpoint, run_folder=image.run).in_use
        assert is_gone(image, record)
    finally:
        keeper.kill()
        keeper.communicate(timeout=20)


def test_mounting_and_unmounting_again_and_again_leaves_nothing(image: Lab) -> None:
    for _ in range(3):
        record = image.mount(overlay=image.folder / "overlay")
        image.unmount(record)
    assert is_gone(image, record)
    assert not list((image.run / "mounts").iterdir())
    assert _servers_of(record.mountpoint) == []


def test_a_mount_that_is_refused_leaves_no_lock(image: Lab) -> None:
    with pytest.raises(NotFoundError):
        image.mount(name="absent")
    assert not list((image.run / "mounts").iterdir())


def test_many_mounts_live_side_by_side(image: Lab) -> None:
    records = [image.mount(f"mnt{number}") for number in range(4)]
    assert {(record.mountpoint / "file").read_bytes() for record in records} == {b"content"}
    assert live_mounts(image.run) == records
    ends(records[1])
    assert sweep_stale(image.run) == [records[1].mountpoint]
    assert live_mounts(image.run) == [records[0], *records[2:]]
