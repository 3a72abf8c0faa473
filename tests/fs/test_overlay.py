"""A writable layer over a mounted image."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import time
from contextlib import suppress

import pytest

from coldstart_cli.errors import BusyError, IoFailure, UnavailableError, UsageError
from coldstart_fs.format.names import digest_text
from coldstart_fs.mounts.kernel_mounts import mount_at, mount_overlay, unmount_now
from coldstart_fs.mounts.mount import check_request, find_mount, mount_detached, unmount
from conftest import wait_until
from fs.mounts import Lab, kill_all

ODD_NAME = "a b,c:d\\e\nf"


@pytest.fixture
def image(lab: Lab) -> Lab:
    tree = lab.tree(kept=b"from the image", gone=b"deleted above", changed=b"one")
    (tree / "folder").mkdir()
    (tree / "folder" / "inside").write_bytes(b"inside")
    os.chown(tree, 7, 8)
    tree.chmod(0o751)
    os.setxattr(tree, "user.root", b"of the image")
    os.utime(tree, ns=(0, 123_456_789))
    lab.index(tree)
    return lab


def test_changes_live_in_upper_and_outlive_the_mount(image: Lab) -> None:
    overlay = image.folder / "overlay"
    record = image.mount(overlay=overlay)
    root = record.mountpoint
    (root / "new").write_bytes(b"new")
    (root / "gone").unlink()
    with (root / "changed").open("ab") as stream:
        stream.write(b" two")
    (root / "kept").chmod(0o400)
    shutil.rmtree(root / "folder")
    (root / "folder").mkdir()
    image.unmount(record)
    assert sorted(os.listdir(overlay)) == [".coldstart-image", "upper"]
    assert (overlay / "upper" / "new").read_bytes() == b"new"
    assert stat.S_ISCHR(os.lstat(overlay / "upper" / "gone").st_mode)
    root = image.mount(overlay=overlay).mountpoint
    assert sorted(os.listdir(root)) == ["changed", "folder", "kept", "new"]
    assert (root / "changed").read_bytes() == b"one two"
    assert os.listdir(root / "folder") == []
    assert stat.S_IMODE(os.stat(root / "kept").st_mode) == 0o400
    plain = image.mount("plain").mountpoint
    assert (plain / "gone").read_bytes() == b"deleted above"


def test_a_layer_that_was_written_on_another_image_is_refused_until_told_otherwise(image: Lab) -> None:
    overlay = image.folder / "overlay"
    other = image.image("other", kept=b"of another image")
    record = image.mount(overlay=overlay)
    image.unmount(record)
    image.unmount(image.mount(overlay=overlay, name="other"))  # nothing was written: it is nobody's
    record = image.mount(overlay=overlay)
    (record.mountpoint / "kept").write_bytes(b"changed")
    image.unmount(record)
    with pytest.raises(UsageError, match=f"written on another image: .* on {record.image}, not ") as caught:
        image.mount(overlay=overlay, name="other")
    assert caught.value.hint is not None
    assert caught.value.hint.endswith(f"rm {overlay / '.coldstart-image'}")
    record = image.mount(overlay=overlay)
    assert (record.mountpoint / "kept").read_bytes() == b"changed"
    image.unmount(record)
    (overlay / ".coldstart-image").unlink()
    told = image.mount(overlay=overlay, name="other")
    assert told.image == digest_text(other)
    assert (overlay / ".coldstart-image").read_text() == f"{told.image}\n"


def test_the_root_of_the_overlay_looks_like_the_image(image: Lab) -> None:
    root = image.mount(overlay=image.folder / "overlay").mountpoint
    status = os.stat(root)
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (7, 8, 0o751)
    assert status.st_mtime_ns == 123_456_789
    assert os.getxattr(root, "user.root") == b"of the image"


def test_an_upper_that_was_filled_while_the_server_started_is_used(image: Lab) -> None:
    upper = image.folder / "overlay" / "upper"

    def fill() -> None:
        upper.mkdir(parents=True)
        (upper / "kept").write_bytes(b"from before")

    record = mount_detached(image.request(overlay=image.folder / "overlay"), before_overlay=fill)
    assert (record.mountpoint / "kept").read_bytes() == b"from before"


def test_filling_upper_may_take_longer_than_the_server_may_take_to_start(image: Lab) -> None:
    request = image.request(overlay=image.folder / "overlay")
    begun = time.monotonic()
    record = mount_detached(
        request,
        timeout_seconds=6,
        before_overlay=lambda: wait_until(lambda: time.monotonic() > begun + 6.1, "a long filling"),
    )
    assert (record.mountpoint / "kept").read_bytes() == b"from the image"


def test_a_failure_while_filling_leaves_nothing(image: Lab) -> None:
    def fill() -> None:
        raise IoFailure("no room")

    request = image.request(overlay=image.folder / "overlay")
    with pytest.raises(IoFailure, match="no room"):
        mount_detached(request, before_overlay=fill)
    assert find_mount(request.mountpoint, image.run) is None
    assert mount_at(request.mountpoint) is None
    assert not list((image.run / "mounts").glob("*/"))


@pytest.mark.parametrize("allowed", [False, True])
def test_setuid_and_devices_work_only_when_asked_for(image: Lab, allowed: bool) -> None:
    tree = image.tree()
    os.mknod(tree / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    shutil.copy("/usr/bin/id", tree / "id")
    (tree / "id").chmod(0o4755)
    tree.chmod(0o755)
    image.index(tree)
    root = image.mount(overlay=image.folder / "overlay", suid=allowed, dev=allowed).mountpoint
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        done = subprocess.run(
            ["setpriv", "--reuid", "65534", "--clear-groups", f"/proc/self/fd/{folder}/id", "-u"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            pass_fds=[folder],
        )
    finally:
        os.close(folder)
    assert done.stdout.strip() == ("0" if allowed else "65534")
    if allowed:
        assert (root / "null").read_bytes() == b""
    else:
        with pytest.raises(PermissionError):
            (root / "null").read_bytes()


def test_paths_may_hold_what_mount_options_use_as_separators(image: Lab) -> None:
    place = image.folder / ODD_NAME
    place.mkdir()
    record = mount_detached(
        image.request(
            f"{ODD_NAME}/mnt", overlay=place / "over\\lay", run_folder=place / "run", cache=place / "cache"
        )
    )
    (record.mountpoint / "new").write_bytes(b"new")
    assert (record.mountpoint / "kept").read_bytes() == b"from the image"
    assert find_mount(record.mountpoint, place / "run") == record
    unmount(record.mountpoint, run_folder=place / "run")
    assert (place / "over\\lay" / "upper" / "new").read_bytes() == b"new"


def test_an_overlay_folder_has_one_mount(image: Lab) -> None:
    overlay = image.folder / "overlay"
    first = image.mount("one", overlay=overlay)
    (image.folder / "alias").symlink_to(overlay)
    for again in (overlay, image.folder / "alias"):
        with pytest.raises(BusyError, match=f"overlay folder is in use at {first.mountpoint}"):
            image.mount("two", overlay=again)
    image.unmount(first)
    image.mount("two", overlay=overlay)


def test_an_overlay_cannot_lie_on_an_overlay(image: Lab) -> None:
    for name in ("l", "u", "w", "m"):
        (image.folder / name).mkdir()
    point = image.folder / "m"
    mount_overlay(image.folder / "l", image.folder / "u", image.folder / "w", point, dev=False)
    try:
        with pytest.raises(UnavailableError, match="lies on overlay, which cannot hold a writable layer"):
            check_request(image.request(overlay=point / "deep" / "over"))
    finally:
        unmount_now(point)


def test_an_overlay_folder_and_its_mount_point_do_not_hold_each_other(image: Lab) -> None:
    (image.folder / "over").mkdir()
    with pytest.raises(UsageError, match="mount point lies inside of its own overlay folder"):
        check_request(image.request("over/mnt", overlay=image.folder / "over"))
    with pytest.raises(UsageError, match="overlay folder would lie behind the mount"):
        check_request(image.request("mnt", overlay=image.folder / "mnt" / "over"))
    (image.folder / "file").touch()
    with pytest.raises(UsageError, match="overlay is not a folder"):
        check_request(image.request(overlay=image.folder / "file"))


def test_an_overlay_that_is_in_use_is_left_whole_until_it_is_free(image: Lab) -> None:
    record = image.mount(overlay=image.folder / "overlay")
    with (record.mountpoint / "kept").open("rb") as user:
        with pytest.raises(BusyError, match="cannot unmount") as refusal:
            image.unmount(record)
        assert "fuser -vm" in (refusal.value.hint or "")
        assert record.server_lives()
        assert user.read() == b"from the image"
        (record.mountpoint / "new").write_bytes(b"still writable")
        assert find_mount(record.mountpoint, image.run) == record
    image.unmount(record)
    assert not record.server_lives()
    assert mount_at(record.mountpoint) is None


def test_an_overlay_whose_server_was_killed_is_mounted_again_with_its_changes(image: Lab) -> None:
    overlay = image.folder / "overlay"
    record = image.mount(overlay=overlay)
    (record.mountpoint / "new").write_bytes(b"new")
    kill_all(record)
    with pytest.raises(OSError, match=r".") as refusal:
        (record.mountpoint / "kept").read_bytes()
    assert refusal.value.errno in {errno.ENOTCONN, errno.EIO, errno.ECONNABORTED}
    again = image.mount(overlay=overlay)
    assert again.server_folder != record.server_folder
    assert (again.mountpoint / "new").read_bytes() == b"new"
    assert (again.mountpoint / "kept").read_bytes() == b"from the image"


def test_a_dead_overlay_is_cleaned_up_though_somebody_uses_it(image: Lab) -> None:
    record = image.mount(overlay=image.folder / "overlay")
    user = os.open(record.mountpoint / "kept", os.O_RDONLY)
    kill_all(record)
    image.unmount(record)
    with suppress(OSError):  # the dead server cannot be told about the closing
        os.close(user)
    assert mount_at(record.mountpoint) is None


def test_what_overlayfs_keeps_for_itself_is_removed_also_from_a_folder_of_the_users(image: Lab) -> None:
    overlay = image.folder / "overlay"
    (overlay / "upper").mkdir(parents=True)
    (overlay / "mine").write_bytes(b"mine")
    image.unmount(image.mount(overlay=overlay))
    assert sorted(os.listdir(overlay)) == [".coldstart-image", "mine", "upper"]


def test_the_work_folder_of_an_overlay_is_not_that_of_a_user(image: Lab) -> None:
    overlay = image.folder / "overlay"
    (overlay / "work").mkdir(parents=True)
    (overlay / "work" / "thesis").write_bytes(b"years of work")
    with pytest.raises(UsageError, match="not empty"):
        image.mount(overlay=overlay)
    assert (overlay / "work" / "thesis").read_bytes() == b"years of work"
