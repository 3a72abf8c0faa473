"""Mounts from their beginning to their end: crashes, hangs, races, and who cleans up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, ColdstartError, NotFoundError, Terminated, UsageError
from coldstart_cli.files import exclusive_lock, mounts_below
from coldstart_fs.mounts.kernel_mounts import mount_at, real_mountpoint
from coldstart_fs.mounts.mount import (
    MountRecord,
    check_request,
    find_mount,
    live_mounts,
    mount_detached,
    serve,
    sweep_stale,
    unmount,
)
from coldstart_fs.mounts.records import all_records, lock_path, record_folder, write_record
from coldstart_fs.mounts.server_records import log_path, servers_folder
from conftest import wait_until
from fs.mounts import CHUNK_BYTES, Lab, kill_all


@pytest.fixture
def image(lab: Lab) -> Lab:
    lab.image(file=b"content", large=os.urandom(4 * CHUNK_BYTES))
    return lab


def is_gone(lab: Lab, record: MountRecord) -> bool:
    """Nothing of a mount is left: server, mounts, records."""
    return (
        not record.server_folder.exists()
        and not record.server_lives()
        and mount_at(record.mountpoint) is None
        and mount_at(record.fuse_mountpoint) is None
        and find_mount(record.mountpoint, lab.run) is None
    )


def test_unmounting_ends_server_mount_and_record(image: Lab) -> None:
    record = image.mount()
    assert live_mounts(image.run) == [record]
    assert record.settings == {"read_ahead_kib": 128, "max_background": 256, "congestion_threshold": 192}
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


def test_a_mount_whose_keeper_and_server_were_killed_is_swept_and_named(image: Lab) -> None:
    record = image.mount()
    alive = image.mount("alive", alone=True)
    kill_all(record)
    with pytest.raises(OSError, match=r".") as refusal:
        os.listdir(record.mountpoint)
    # while the connection ends, what waits for it learns that it was aborted
    assert refusal.value.errno in {errno.ENOTCONN, errno.ECONNABORTED}
    assert sweep_stale(image.run) == [record.mountpoint]
    assert is_gone(image, record)
    assert live_mounts(image.run) == [alive]
    assert sweep_stale(image.run) == []


def test_mounting_over_a_dead_mount_recovers_it(image: Lab) -> None:
    record = image.mount()
    kill_all(record)
    again = image.mount()
    assert again.server_folder != record.server_folder
    assert (again.mountpoint / "file").read_bytes() == b"content"


def test_unmounting_a_dead_mount_cleans_up(image: Lab) -> None:
    record = image.mount()
    kill_all(record)
    assert not unmount(record.mountpoint, run_folder=image.run).in_use
    assert is_gone(image, record)


def test_a_keeper_that_is_told_to_end_unmounts_though_files_are_open(image: Lab) -> None:
    record = image.mount()
    server = record.server()
    assert server is not None
    user = os.open(record.mountpoint / "large", os.O_RDONLY)
    try:
        os.kill(server.keeper.pid, signal.SIGTERM)
        wait_until(lambda: not server.keeper.lives(), "the end of the keeper")
        assert not server.server.lives()
        assert mount_at(record.mountpoint) is None
        with pytest.raises(OSError, match=r"."):
            os.pread(user, 10, 0)
    finally:
        with suppress(OSError):
            os.close(user)
    assert "told to end" in image.log(record)
    assert sweep_stale(image.run) == [record.mountpoint]


def test_a_mount_that_somebody_else_unmounted_is_forgotten(image: Lab) -> None:
    record = image.mount()
    subprocess.run(["umount", str(record.mountpoint)], timeout=60, check=True)
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


def test_no_other_user_can_open_and_so_hold_a_lock_of_a_mount(image: Lab) -> None:
    for name in ("mounts", "servers"):
        (image.run / name).mkdir(parents=True, mode=0o755)  # as earlier releases made them
    image.mount()
    for folder in (image.run / "mounts", image.run / "servers"):
        assert folder.stat().st_mode & 0o077 == 0, folder
        locks = list(folder.glob("*.lock"))
        assert locks
        assert [lock for lock in locks if lock.stat().st_mode & 0o077] == []


def test_a_hung_store_holds_neither_other_files_nor_the_end(image: Lab) -> None:
    record = image.mount()
    (record.mountpoint / "file").read_bytes()
    pack = image.pack(image.places("large")[0][1])
    image.image("backing", pack=pack.read_bytes())
    backing = image.mount("backing", name="backing")
    pack.unlink()
    pack.symlink_to(backing.mountpoint / "pack")
    stopped = backing.server_pid
    os.kill(stopped, signal.SIGSTOP)  # as a file server that went away
    reader = subprocess.Popen(
        [sys.executable, "-c", f"open({str(record.mountpoint / 'large')!r}, 'rb').read()"],
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: _waits_in_the_kernel(reader.pid), "a reader that waits")
        assert (record.mountpoint / "file").read_bytes() == b"content"
        assert len(os.listdir(record.mountpoint)) == 2
        server = record.server()
        assert server is not None
        os.kill(server.keeper.pid, signal.SIGTERM)
        wait_until(lambda: not record.server_lives(), "the end of the server")
        assert mount_at(record.mountpoint) is None
        _, said = reader.communicate(timeout=60)
        assert reader.returncode == 1
        assert b"OSError" in said
    finally:
        reader.kill()
        os.kill(stopped, signal.SIGCONT)
        reader.communicate(timeout=60)


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
            reader.join(60)
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
    unmounting[0].join(60)
    assert is_gone(image, seen[0])


def test_a_foreground_mount_whose_server_dies_is_an_error(image: Lab) -> None:
    seen: list[MountRecord] = []

    def ready(record: MountRecord) -> None:
        seen.append(record)
        kill_all(record)

    with pytest.raises(ColdstartError, match="image server ended"):
        serve(image.request(), on_ready=ready)
    assert is_gone(image, seen[0])


# the moments at which whoever mounts may be killed, from the first process to the last step
_MOMENTS = {
    "before the server is ready": "coldstart_fs.mounts.supervisor.StartedKeeper.wait_ready",
    "before the record": "coldstart_fs.mounts.mount.write_record",
    "before the answer": "coldstart_fs.mounts.obtain.wait_answer",
    "before the mount point": "coldstart_fs.mounts.mount.bind_mount",
}


@pytest.mark.parametrize("moment", _MOMENTS)
def test_a_mounting_that_is_killed_leaves_nothing_that_cannot_be_ended(image: Lab, moment: str) -> None:
    request = image.request()
    program = f"""
import os, signal
from pathlib import Path
from coldstart_fs.mounts import mount, obtain, supervisor
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{_MOMENTS[moment].removeprefix("coldstart_fs.mounts.")} = die
mount.mount_detached(mount.MountRequest(
    {request.name!r}, Path({str(request.mountpoint)!r}), {request.store!r},
    Path({str(request.cache)!r}), Path({str(request.run_folder)!r})))
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    # nobody has heard of the mount: its server ends by itself, whether it had mounted by then or not
    wait_until(lambda: not _processes_of(image), "the end of the server")
    for _, record in all_records(image.run):
        unmount(request.mountpoint, run_folder=image.run)
        assert is_gone(image, record)
    assert mounts_below(image.folder) == []
    record = image.mount()
    assert (record.mountpoint / "file").read_bytes() == b"content"
    server = record.server()
    assert server is not None
    assert _processes_of(image) == sorted([server.keeper.pid, server.server.pid])


def _processes_of(lab: Lab) -> list[int]:
    """Keepers and servers of a lab's mounts."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"coldstart_fs.mounts.keeping" in arguments and os.fsencode(lab.folder) in b"".join(arguments):
            found.append(int(entry.name))
    return sorted(found)


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
    assert record.server_folder.stat().st_mode & 0o777 == 0o700
    assert log_path(record.server_folder).stat().st_mode & 0o777 == 0o600


def test_a_copy_in_another_mount_namespace_does_not_keep_a_server_alive(image: Lab) -> None:
    record = image.mount()
    keeper = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"],
        stdout=subprocess.PIPE,
    )
    try:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"\n"  # from here on it has a copy of the mount
        assert not unmount(record.mountpoint, run_folder=image.run).in_use
        assert is_gone(image, record)
    finally:
        keeper.kill()
        keeper.communicate(timeout=60)


def test_a_mount_whose_record_leads_elsewhere_is_not_called_unmounted(image: Lab) -> None:
    record = image.mount()
    folder = record_folder(image.run, record.mountpoint)
    forged = replace(record, fuse_mountpoint=record.mountpoint, server_folder=image.folder / "nowhere")
    write_record(folder, forged)
    for force in (False, True):
        with pytest.raises(ColdstartError, match=f"mount is still there.*: {record.mountpoint}"):
            unmount(record.mountpoint, run_folder=image.run, force=force)
    assert mount_at(record.mountpoint) is not None
    write_record(folder, record)
    unmount(record.mountpoint, run_folder=image.run)
    assert is_gone(image, record)


def test_mounting_and_unmounting_again_and_again_leaves_nothing(image: Lab) -> None:
    for _ in range(3):
        record = image.mount(overlay=image.folder / "overlay")
        image.unmount(record)
    assert is_gone(image, record)
    assert not list((image.run / "mounts").iterdir())
    assert not list(servers_folder(image.run).iterdir())
    assert _processes_of(image) == []


def test_a_mount_that_is_refused_leaves_no_lock(image: Lab) -> None:
    with pytest.raises(NotFoundError):
        image.mount(name="absent")
    assert not list((image.run / "mounts").iterdir())


def test_many_mounts_live_side_by_side(image: Lab) -> None:
    records = [image.mount(f"mnt{number}", alone=True) for number in range(4)]
    assert {(record.mountpoint / "file").read_bytes() for record in records} == {b"content"}
    assert live_mounts(image.run) == records
    kill_all(records[1])
    assert sweep_stale(image.run) == [records[1].mountpoint]
    assert live_mounts(image.run) == [records[0], *records[2:]]
