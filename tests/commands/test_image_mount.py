"""`coldstart image mount` as its users meet it: detached, in the foreground, refused, on hosts with gaps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldstart_cli.process import start_ticks
from coldstart_fs.format.names import index_key, locator_key
from coldstart_fs.mounts.kernel_mounts import mount_at
from coldstart_fs.stores.references import write_ref
from coldstart_fs.stores.store_url import open_store
from conftest import REPOSITORY, Coldstart, Result, wait_until
from image_desk import Desk, as_user, error, in_namespace, kill_all

_SITE_PACKAGES = Path(pytest.__file__).parent.parent


def test_detached_it_returns_with_the_image_in_place(desk: Desk) -> None:
    done = desk.mount("--detach")
    assert (done.status, done.stderr) == (0, "")
    pid = int(done.stdout.rsplit(" ", 1)[1])
    assert done.stdout == f"{desk.point}: app/server ({desk.digest[:19]}), served by pid {pid}\n"
    assert (desk.point / "hello").read_bytes() == b"hello world\n"
    assert (desk.point / "large").read_bytes() == (desk.folder / "source" / "large").read_bytes()
    done = desk.unmount()
    assert (done.status, done.stdout, done.stderr) == (0, "", f"unmounted: {desk.point}\n")
    assert os.listdir(desk.point) == []
    assert start_ticks(pid) == 0, "the server lives on"


def test_the_document_tells_what_was_mounted_and_how_it_is_tuned(desk: Desk) -> None:
    done = desk.mount("--detach", "--json")
    document = json.loads(done.stdout)
    assert document.pop("server_pid") > document.pop("keeper_pid") > 0
    assert {"async_read", "no_open_support", "cache_symlinks"} <= set(document.pop("fuse_flags"))
    assert document == {
        "schema": "coldstart.image.mount",
        "version": 1,
        "mountpoint": str(desk.point),
        "name": "app/server",
        "image": desk.digest,
        "store": str(desk.store),
        "tiers": [],
        "cache": str(desk.folder / "coldstart" / "cache"),
        "overlay": None,
        "fetch": "auto",
        "shared": True,
        "restarts": 0,
        "settings": {"read_ahead_kib": 128, "max_background": 256, "congestion_threshold": 192},
    }


@pytest.mark.parametrize("form", ["app/server@{}", "{}"])
def test_an_image_may_be_pinned(desk: Desk, form: str) -> None:
    assert desk.mount("--detach", name=form.format(desk.digest)).status == 0
    assert (desk.point / "hello").exists()


def test_a_relative_mount_point_and_store_are_those_of_the_caller(desk: Desk) -> None:
    done = desk.run("image", "mount", "app/server", "mnt", "--store", "store", "--cache", "here", "--detach")
    assert done.status == 0
    assert (desk.point / "hello").exists()
    assert (desk.folder / "here" / "chunks-v1").parent.is_dir()
    assert desk.run("image", "unmount", "mnt/").status == 0


def test_every_place_may_have_an_odd_name(desk: Desk) -> None:
    place = desk.folder / "a b,c:d\\e'f"
    place.mkdir()
    desk.store.rename(place / "st,ore")
    point = place / "m:nt"
    point.mkdir()
    options = ["--store", place / "st,ore", "--cache", place / "ca\\che", "--overlay", place / "lay er"]
    done = desk.run("image", "mount", "app/server", point, *options, "--detach")
    assert done.status == 0, done.stderr
    (point / "hello").write_bytes(b"changed")
    (mount,) = json.loads(desk.run("image", "status", "--json").stdout)["mounts"]
    assert (mount["mountpoint"], mount["serving"]) == (str(point), True)
    assert desk.run("image", "unmount", point).status == 0
    assert (place / "lay er" / "upper" / "hello").read_bytes() == b"changed"


def test_an_overlay_is_writable_and_keeps_what_was_written(desk: Desk) -> None:
    for expected in (b"hello world\n", b"changed"):
        assert desk.mount("--detach", "--overlay", "layer").status == 0
        assert (desk.point / "hello").read_bytes() == expected
        (desk.point / "hello").write_bytes(b"changed")
        assert desk.unmount().status == 0
    assert (desk.folder / "layer" / "upper" / "hello").read_bytes() == b"changed"
    assert not (desk.folder / "layer" / "work").exists()


def test_a_dry_run_checks_and_changes_nothing(desk: Desk) -> None:
    before = sorted(path for path in desk.folder.rglob("*") if "coldstart" not in path.parts)
    done = desk.mount("--dry-run", "--overlay", "layer")
    assert done.status == 0
    assert done.stdout == f"would mount app/server ({desk.digest[:19]}) at {desk.point}\n"
    assert mount_at(desk.point) is None
    assert sorted(path for path in desk.folder.rglob("*") if "coldstart" not in path.parts) == before
    assert not (desk.folder / "coldstart" / "run" / "mounts").exists()
    (desk.point / "file").touch()
    assert desk.mount("--dry-run").status == 2


# --- in the foreground ---


@dataclass(frozen=True)
class Foreground:
    process: subprocess.Popen[bytes]
    manager: socket.socket

    def told(self) -> dict[str, str]:
        lines = self.manager.recv(4096).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def foreground(desk: Desk) -> Iterator[Foreground]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(desk.folder / "notify"))
        manager.settimeout(60)
        process = subprocess.Popen(
            [desk.run.program, "image", "mount", "app/server", desk.point, "--store", desk.store],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=desk.folder,
            env=desk.run.environment | {"NOTIFY_SOCKET": str(desk.folder / "notify")},
        )
        try:
            yield Foreground(process, manager)
        finally:
            process.terminate()
            process.communicate(timeout=60)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_in_the_foreground_it_serves_until_it_is_told_to_end(
    desk: Desk, foreground: Foreground, number: signal.Signals, status: int
) -> None:
    ready = foreground.told()
    assert (ready["READY"], ready["MAINPID"]) == ("1", str(foreground.process.pid))
    assert ready["STATUS"] == f"serving app/server at {desk.point}"
    assert (desk.point / "hello").read_bytes() == b"hello world\n"
    foreground.process.send_signal(number)
    assert foreground.told() == {"STOPPING": "1"}
    stdout, stderr = foreground.process.communicate(timeout=60)
    assert foreground.process.returncode == status
    assert stdout == b""
    assert f"is mounted at {desk.point}".encode() in stderr
    assert mount_at(desk.point) is None
    assert desk.run("image", "status").stdout == "no image is mounted\n"


@pytest.mark.parametrize("after_seconds", [0.1, 0.2, 0.3])
def test_told_to_end_while_it_starts_it_leaves_nothing(
    desk: Desk, foreground: Foreground, after_seconds: float
) -> None:
    with suppress(TimeoutError):
        foreground.manager.settimeout(after_seconds)
        foreground.told()
    foreground.process.terminate()
    foreground.process.communicate(timeout=60)
    assert foreground.process.returncode in {143, -signal.SIGTERM}  # before or after its handlers were there
    wait_until(lambda: mount_at(desk.point) is None, "the end of the mount")
    assert desk.run("image", "status").stdout == "no image is mounted\n"


def test_what_a_killed_command_leaves_is_served_until_it_is_unmounted(
    desk: Desk, foreground: Foreground
) -> None:
    foreground.told()
    foreground.process.kill()
    foreground.process.wait(timeout=60)
    assert (desk.point / "large").read_bytes() == (desk.folder / "source" / "large").read_bytes()
    (mount,) = json.loads(desk.run("image", "status", "--json").stdout)["mounts"]
    assert desk.unmount().status == 0
    assert mount_at(desk.point) is None
    assert start_ticks(mount["server_pid"]) == 0, "the server lives on"


def test_in_the_foreground_the_servers_messages_are_on_stderr(desk: Desk, foreground: Foreground) -> None:
    foreground.told()
    for pack in desk.store.glob("packs/*/*.pack"):
        pack.unlink()
    with pytest.raises(OSError, match="Input/output error"):
        (desk.point / "large").read_bytes()
    foreground.process.terminate()
    _, stderr = foreground.process.communicate(timeout=60)
    assert b"read of /large failed, answered EIO: chunk cannot be fetched: blake3:" in stderr


def test_in_the_foreground_an_unmount_by_somebody_else_is_a_good_end(
    desk: Desk, foreground: Foreground
) -> None:
    foreground.told()
    assert desk.unmount().status == 0
    assert foreground.process.wait(timeout=60) == 0


def test_in_the_foreground_a_server_that_dies_is_an_error_and_is_cleaned_up(
    desk: Desk, foreground: Foreground
) -> None:
    foreground.told()
    kill_all(json.loads(desk.run("image", "status", "--json").stdout)["mounts"][0])
    _, stderr = foreground.process.communicate(timeout=60)
    assert foreground.process.returncode == 1
    assert f"image server ended: {desk.point}".encode() in stderr
    assert mount_at(desk.point) is None


# --- refusals ---


def test_a_mount_point_must_be_an_empty_folder(desk: Desk) -> None:
    def mount(point: Path) -> Result:
        return desk.run("image", "mount", "app/server", point, "--store", desk.store, "--detach")

    done = mount(desk.folder / "absent")
    assert (done.status, error(done)) == (66, f"mount point does not exist: {desk.folder / 'absent'}")
    assert f"hint: mkdir -p {desk.folder / 'absent'}" in done.stderr
    (desk.folder / "file").touch()
    done = mount(desk.folder / "file")
    assert (done.status, error(done)) == (2, f"mount point is not a folder: {desk.folder / 'file'}")
    (desk.point / "something").touch()
    done = mount(desk.point)
    assert (done.status, error(done)) == (2, f"mount point is not empty: {desk.point}")
    assert "hint: " in done.stderr


def test_a_mount_point_is_mounted_once(desk: Desk) -> None:
    assert desk.mount("--detach").status == 0
    done = desk.mount("--detach")
    assert (done.status, error(done)) == (75, f"an image is already mounted there: {desk.point}")
    assert f"hint: coldstart image unmount {desk.point}" in done.stderr
    assert (desk.point / "hello").exists()


def test_an_unknown_image_is_named_with_its_likes(desk: Desk) -> None:
    done = desk.mount("--detach", name="app/sever")
    assert (done.status, error(done)) == (66, "image is not in the store: app/sever")
    assert "hint: did you mean `app/server`?" in done.stderr
    assert desk.mount("--detach", name=f"app/server@blake3:{'0' * 64}").status == 65
    assert desk.mount("--detach", name="../x").status == 2
    done = desk.run("image", "mount", "x", desk.point, "--store", desk.folder / "nowhere", "--detach")
    assert (done.status, error(done)) == (66, f"there is no image store: {desk.folder / 'nowhere'}")


def nothing_is_left(desk: Desk) -> bool:
    mounts = desk.folder / "coldstart" / "run" / "mounts"
    return mount_at(desk.point) is None and not [path for path in mounts.iterdir() if path.is_dir()]


def test_a_damaged_image_is_refused_and_nothing_stays(desk: Desk) -> None:
    index = desk.store / index_key(bytes.fromhex(desk.digest[7:]))
    content = index.read_bytes()
    index.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = desk.mount("--detach", "--overlay", "layer")
    assert done.status == 65
    assert error(done).startswith(f"index is damaged: {index}: its digest is blake3:")
    assert nothing_is_left(desk)
    index.write_bytes(content)
    locator = desk.store / locator_key(bytes.fromhex(desk.digest[7:]))
    locator.write_bytes(locator.read_bytes()[:-1])
    done = desk.mount("--detach")
    assert done.status == 65
    assert error(done).startswith(f"locator is damaged: {locator}")
    assert nothing_is_left(desk)


def test_an_index_of_a_later_version_is_refused_by_name(desk: Desk) -> None:
    from blake3 import blake3

    content = bytearray((desk.store / index_key(bytes.fromhex(desk.digest[7:]))).read_bytes())
    content[8:12] = (2).to_bytes(4, "little")
    digest = blake3(content).digest()
    store = open_store(str(desk.store))
    store.put_bytes(index_key(digest), bytes(content))
    write_ref(store, "later", digest)
    done = desk.mount("--detach", name="later")
    assert done.status == 65
    assert "index has format 2" in error(done)
    assert "hint: install a newer coldstart" in done.stderr


@pytest.mark.parametrize("option", ["--cache", "--overlay"])
def test_nothing_that_a_mount_needs_may_lie_behind_it(desk: Desk, option: str) -> None:
    done = desk.mount("--detach", option, desk.point / "inside")
    assert done.status == 2
    assert error(done).endswith(f"would lie behind the mount: {desk.point / 'inside'}")
    assert os.listdir(desk.point) == []


# --- hosts with gaps, made by hiding things in a mount namespace ---


def mount_command(desk: Desk) -> list[str | Path]:
    return [desk.run.program, "image", "mount", "app/server", desk.point, "--store", desk.store, "--detach"]


def test_a_host_without_fuse_is_told_so(desk: Desk) -> None:
    done = in_namespace(desk, "mount -t tmpfs none /dev", *mount_command(desk))
    assert (done.status, error(done)) == (69, "this host has no FUSE: /dev/fuse is absent")
    assert "hint: modprobe fuse" in done.stderr


def test_a_broken_package_is_told_with_what_installs_it(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "zstandard.py").write_text(
        "raise ImportError('libzstd.so.1: cannot open', name='zstandard')\n"
    )
    done = desk.run(*map(str, mount_command(desk)[1:]), environment={"PYTHONPATH": str(tmp_path / "broken")})
    assert done.status == 69
    assert error(done) == "Python package cannot be used: zstandard: libzstd.so.1: cannot open"
    assert "pip install 'coldstart[image]'" in done.stderr
    assert nothing_is_left(desk)


def test_an_absent_package_is_told_with_what_installs_it(desk: Desk, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in _SITE_PACKAGES.iterdir():
        if not path.name.startswith("zstandard") and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    folders = [REPOSITORY, *(REPOSITORY / name for name in ("commands", "fs", "host")), packages]
    script = (
        f"import sys; sys.path[:0] = {[str(path) for path in folders]!r}\n"
        "from coldstart_cli.app import main; main(sys.argv[1:])"
    )
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    command = [base, "-I", "-S", "-c", script, *mount_command(desk)[1:]]
    done = in_namespace(desk, "true", *command)
    assert (done.status, error(done)) == (69, "Python package is not installed: zstandard")
    assert "pip install 'coldstart[image]'" in done.stderr


def test_a_user_without_fusermount3_needs_root(desk: Desk) -> None:
    hide = "for p in /usr/bin/fusermount3 /bin/fusermount3; do ! [ -e $p ] || mount --bind /dev/null $p; done"
    command = [desk.run.program, "image", "mount", "app/server", "/mnt/mnt", "--detach"]
    done = as_user(desk, hide, *command)
    assert (done.status, error(done)) == (77, "mounting needs root, or the program fusermount3")


@pytest.mark.parametrize("option", [["--overlay", "/mnt/layer"], ["--suid"], ["--dev"]])
def test_what_only_root_can_have_is_refused_to_users(desk: Desk, option: list[str]) -> None:
    done = as_user(desk, "true", desk.run.program, "image", "mount", "app/server", "/mnt/mnt", *option)
    assert done.status == 77
    assert "root" in error(done)


@pytest.mark.parametrize("ending", ["true", "kill -9 $pid"])
def test_a_user_can_mount_with_fusermount3_where_the_device_is_open(desk: Desk, ending: str) -> None:
    if not shutil.which("fusermount3"):
        pytest.skip("fusermount3 is not installed")
    if not os.path.exists("/etc/mtab"):
        pytest.skip("this root has no /etc/mtab, which fusermount3 reads to unmount")
    device = (
        "mount -t tmpfs none /dev; mknod -m 666 /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3\n"
        "mknod -m 666 /dev/urandom c 1 9"
    )
    script = (
        'set -e; "$0" image mount app/server /mnt/mnt --detach; cat /mnt/mnt/hello\n'
        'pid=$("$0" image status | sed -n "s/.* serving *\\([0-9]*\\) .*/\\1/p")\n'
        f'{ending}; "$0" image unmount /mnt/mnt; "$0" image status; grep -c " /mnt/mnt " /proc/mounts || true'
    )
    done = as_user(desk, device, "sh", "-c", script, desk.run.program)
    lines = done.stdout.splitlines()
    assert (done.status, lines[1:]) == (0, ["hello world", "no image is mounted", "0"]), done.stderr
    assert "instead of" not in done.stderr  # what INIT asks for is kept for users too


def test_a_mount_is_up_before_the_command_that_detaches_ends_and_holds_nothing_of_it(desk: Desk) -> None:
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [*map(str, mount_command(desk)), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=writing,
            timeout=60,
            env=desk.run.environment,
            cwd=desk.folder,
            pass_fds=[writing],
            check=True,
        )
        os.close(writing)
        writing = -1
        assert os.read(reading, 1) == b"", "the server holds a descriptor of its caller"
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    document = json.loads(done.stdout)
    for pid in (document["keeper_pid"], document["server_pid"]):
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
        assert os.getsid(pid) not in {os.getsid(0), 0}
    wait_until((desk.point / "hello").exists, "the mount to answer")


def test_a_missing_image_is_said_before_an_unusable_mount_point(coldstart: Coldstart, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    assert coldstart("image", "index", "dir:root", "--name", "app").status == 0
    for place in ("root", "absent"):
        result = coldstart("image", "mount", "nope", place)
        assert result.status == 66
        assert "image is not in the store: nope" in result.stderr
    (tmp_path / "root/file").touch()
    assert "mount point is not empty" in coldstart("image", "mount", "app", "root").stderr
