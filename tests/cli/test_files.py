"""Files replaced whole, locks that name their holder, mounts with odd names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from coldstart_cli.errors import (
    BusyError,
    CannotCreateError,
    ColdstartError,
    IoFailure,
    PermissionNeededError,
)
from coldstart_cli.files import (
    atomic_write,
    atomic_writer,
    exclusive_lock,
    make_directory,
    make_private,
    mounts_below,
    remove_tree,
)
from conftest import wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


# --- atomic writes ---


def test_a_file_appears_whole_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    atomic_write(path, b"content", mode=0o600)
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_failure_while_writing_leaves_the_old_content_and_no_litter(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    expected = IoFailure if failure is OSError else failure

    def write() -> None:
        with atomic_writer(path) as stream:
            stream.write(b"half")
            raise failure

    with pytest.raises(expected):
        write()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@needs_root
def test_a_full_disk_leaves_the_old_content_and_names_the_file(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True, timeout=60)
    try:
        path = disk / "file"
        atomic_write(path, b"old")
        with pytest.raises(IoFailure, match=r"cannot write `.*/disk/file`: No space left"):
            atomic_write(path, bytes(1 << 20))
        assert path.read_bytes() == b"old"
        assert list(disk.iterdir()) == [path]
    finally:
        subprocess.run(["umount", disk], check=True, timeout=60)


@needs_root
def test_a_read_only_place_is_refused_by_name(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", disk], check=True, timeout=60)
    try:
        with pytest.raises(CannotCreateError, match=r"cannot write .*/disk/file.*Read-only"):
            atomic_write(disk / "file", b"x")
        with pytest.raises(CannotCreateError, match=r"cannot create folder: .*/disk/a.*Read-only"):
            make_directory(disk / "a")
        with (
            pytest.raises(CannotCreateError, match=r"cannot create lock .*/disk/lock.*Read-only"),
            exclusive_lock(disk / "lock"),
        ):
            pass
    finally:
        subprocess.run(["umount", disk], check=True, timeout=60)


def test_a_folder_below_a_file_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotCreateError, match="cannot create folder"):
        make_directory(tmp_path / "file" / "below")


@needs_root
def test_without_permission_the_error_says_so() -> None:
    script = (
        "from pathlib import Path\n"
        "from coldstart_cli import files\n"
        "try:\n"
        "    files.atomic_write(Path('/coldstart-of-nobody'), b'')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], user=65534, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == f"{PermissionNeededError.__name__}\n", done.stderr


def test_the_longest_name_a_file_system_takes_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    atomic_write(path, b"x")
    assert path.read_bytes() == b"x"


def test_two_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([number]) * 100_000 for number in range(4)]
    threads = [threading.Thread(target=atomic_write, args=(path, content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


# --- locks ---

_HOLDER = """
import sys
from pathlib import Path
from coldstart_cli.files import exclusive_lock
sys.argv = ["coldstart", "image", "mount"]
with exclusive_lock(Path({path!r}), shared={shared}):
    print("held", flush=True)
    sys.stdin.read()
"""


def _hold(path: Path, *, shared: bool = False) -> subprocess.Popen[str]:
    script = _HOLDER.format(path=str(path), shared=shared)
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def _end(holder: subprocess.Popen[str]) -> None:
    holder.communicate(timeout=60)


def test_a_lock_that_another_process_holds_names_it(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "one"
    holder = _hold(path)
    try:
        with pytest.raises(BusyError) as caught, exclusive_lock(path):
            pass
        assert caught.value.message == f"locked by another process: pid {holder.pid}: coldstart image mount"
        assert caught.value.hint is not None
        assert "--lock-wait" in caught.value.hint
    finally:
        _end(holder)
    with exclusive_lock(path):
        pass


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "one"
    holder = _hold(path)
    holder.kill()
    _end(holder)
    with exclusive_lock(path):
        pass


def test_waiting_gets_the_lock_when_it_becomes_free(tmp_path: Path) -> None:
    path = tmp_path / "one"
    holder = _hold(path)
    timer = threading.Timer(0.3, _end, [holder])
    timer.start()
    with exclusive_lock(path, wait_seconds=30):
        pass
    timer.join()


def test_readers_share_and_a_writer_is_kept_out_without_blaming_an_old_holder(tmp_path: Path) -> None:
    path = tmp_path / "one"
    with exclusive_lock(path):
        pass
    reader = _hold(path, shared=True)
    try:
        with exclusive_lock(path, shared=True):
            pass
        with pytest.raises(BusyError) as caught, exclusive_lock(path):
            pass
        assert caught.value.message.startswith(f"locked by another process: pid {reader.pid}: ")
    finally:
        _end(reader)


def test_another_user_cannot_hold_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.touch(mode=0o644)  # as earlier releases made it
    with exclusive_lock(path):
        assert path.stat().st_mode & 0o777 == 0o600
    with exclusive_lock(tmp_path / "new"):
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_a_private_folder_is_closed_to_others_also_where_it_was_open(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "mounts"
    folder.mkdir(parents=True, mode=0o755)
    assert make_private(folder).stat().st_mode & 0o777 == 0o700
    assert make_private(tmp_path / "run" / "servers").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "second name", "another user's"])
def test_what_is_no_lock_of_ours_is_neither_followed_nor_written(tmp_path: Path, kind: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "lock"
    victim.write_text("content")
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "second name":
        path.hardlink_to(victim)
    elif os.geteuid() == 0:
        path.write_text("content")
        os.chown(path, 65534, -1)
    else:
        pytest.skip("only root can give files away")
    with pytest.raises(CannotCreateError, match="cannot create lock"), exclusive_lock(path):
        pass
    assert victim.read_text() == "content"


def test_a_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "one"
    with exclusive_lock(path):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with exclusive_lock(path):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_copy_of_its_descriptor_does_not_keep_the_lock(tmp_path: Path) -> None:
    # as a child has one between fork and exec, which may take long on a busy machine
    path = tmp_path / "one"
    with exclusive_lock(path):
        own = next(fd for fd in os.listdir("/proc/self/fd") if _leads_to(fd, path))
        copy = os.dup(int(own))
    try:
        with exclusive_lock(path):
            pass
    finally:
        os.close(copy)


def _leads_to(descriptor: str, path: Path) -> bool:
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")) == path
    except OSError:  # the one that lists them
        return False


def test_the_lock_is_free_again_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), exclusive_lock(tmp_path / "one"):
        raise RuntimeError
    with exclusive_lock(tmp_path / "one"):
        pass


# --- mounts and removal ---

ODD_NAMES = [
    "plain",
    "a b",
    "tab\there",
    "line\nbreak",
    "back\\slash",
    "\\040",
    "h\u00e9",
    "\u2028x",
    "v\x0bt",
    "\x1c",
    "cr\r",
    "\udcff",
]


@needs_root
@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_mount_is_found_whatever_its_name(tmp_path: Path, name: str) -> None:
    point = tmp_path / name
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True, timeout=60)
    try:
        assert mounts_below(tmp_path) == [str(point)]
        assert mounts_below(point) == [str(point)]
        with pytest.raises(BusyError, match="something is mounted below it"):
            remove_tree(tmp_path)
    finally:
        subprocess.run(["umount", point], check=True, timeout=60)
    assert mounts_below(tmp_path) == []


@needs_root
def test_nothing_is_removed_behind_a_mount_though_a_symlink_leads_there(tmp_path: Path) -> None:
    point = tmp_path / "real" / "tree" / "point"
    point.mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True, timeout=60)
    try:
        (point / "precious").touch()
        with pytest.raises(BusyError, match="something is mounted below it"):
            remove_tree(tmp_path / "link" / "tree")
        assert (point / "precious").exists()
    finally:
        subprocess.run(["umount", point], check=True, timeout=60)
    remove_tree(tmp_path / "link" / "tree")
    assert not point.exists()


@needs_root
def test_mounts_come_deepest_first_and_neighbours_with_the_same_beginning_are_not_ours(
    tmp_path: Path,
) -> None:
    for name in ("m", "m/inner", "mm"):
        point = tmp_path / name
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True, timeout=60)
    try:
        assert mounts_below(tmp_path / "m") == [f"{tmp_path}/m/inner", f"{tmp_path}/m"]
    finally:
        for name in ("m/inner", "m", "mm"):
            subprocess.run(["umount", tmp_path / name], check=True, timeout=60)


@needs_root
def test_a_lock_on_a_full_disk_is_held_all_the_same(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True, timeout=60)
    try:
        (disk / "lock").touch()
        with pytest.raises(OSError, match="No space"):
            (disk / "filler").write_bytes(b"x" * 100_000)
        with (
            exclusive_lock(disk / "lock"),
            pytest.raises(BusyError, match=f"pid {os.getpid()}"),  # as the kernel knows
            exclusive_lock(disk / "lock"),
        ):
            pass
    finally:
        subprocess.run(["umount", disk], check=True, timeout=60)


def test_removing_what_is_gone_is_fine(tmp_path: Path) -> None:
    remove_tree(tmp_path / "absent")
    (tmp_path / "tree" / "below").mkdir(parents=True)
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_removal_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "tree")
    assert (tmp_path / "kept").is_dir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with pytest.raises(ColdstartError, match="cannot remove"):
        remove_tree(tmp_path / "link")
    assert (tmp_path / "kept").is_dir()


def test_waiting_for_nothing_fails_with_what_was_waited_for() -> None:
    with pytest.raises(pytest.fail.Exception, match="the moon"):
        wait_until(lambda: False, "the moon", timeout_seconds=0.1)


def test_what_is_not_there_yet_is_waited_for_and_said_when_it_does_not_come(tmp_path: Path) -> None:
    texts = iter(["", "{", "{}", '{"count": 0}', '{"count": 1}'])
    wait_until(lambda: json.loads(next(texts))["count"], "a document with a count")
    with pytest.raises(pytest.fail.Exception, match="a file: FileNotFoundError"):
        wait_until((tmp_path / "absent").read_bytes, "a file", timeout_seconds=0.1)
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, "a mistake")


def test_who_waits_for_a_lock_that_its_holder_removes_takes_the_new_one(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    holding, leave = threading.Event(), threading.Event()

    def wait_and_hold() -> None:
        with exclusive_lock(lock, wait_seconds=20):
            holding.set()
            leave.wait(60)

    thread = threading.Thread(target=wait_and_hold)
    with exclusive_lock(lock):
        thread.start()
        wait_until(lambda: _opened(lock) == 2, "both have the file open")
        lock.unlink()
    try:
        assert holding.wait(60)
        with pytest.raises(BusyError), exclusive_lock(lock):
            pass
    finally:
        leave.set()
        thread.join()


def _opened(path: Path) -> int:
    folder = Path("/proc/self/fd")
    return sum(os.path.realpath(folder / name) == str(path) for name in os.listdir(folder))
