"""The mount table and mount calls with names that hold every separator there is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, ColdstartError, IoFailure, UnavailableError
from coldstart_cli.files import mounts_below
from coldstart_fs.mounts.kernel_mounts import (
    file_system_of,
    mount_at,
    mount_overlay,
    real_mountpoint,
    unmount_now,
)

ODD_NAMES = [
    b"blank tab\t",
    b"line\nfeed",
    b"back\\slash",
    b"a,b:c,upperdir=d",
    b"\xff not utf-8",
    "caf\u00e9\u2028\x0b".encode(),
    b"#hash",
]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    yield tmp_path
    for point in mounts_below(tmp_path):
        with suppress(ColdstartError):
            unmount_now(Path(point), detach=True)


def tmpfs(place: Path) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "test-source", place], check=False, timeout=60)
    if done.returncode:
        pytest.skip("cannot mount a tmpfs")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_overlay_may_have_any_name(folder: Path, name: bytes) -> None:
    top = folder / os.fsdecode(name)
    lower, upper, work, point = (top / os.fsdecode(part + name) for part in (b"l", b"u", b"w", b"p"))
    for path in (lower, upper, work, point):
        path.mkdir(parents=True)
    (lower / "below").write_bytes(b"below")
    mount_overlay(lower, upper, work, point, dev=False, suid=False, source="coldstart:test")
    found = mount_at(point)
    assert found is not None
    assert (found.kind, found.source, found.is_image) == ("overlay", "coldstart:test", True)
    assert found.device == os.stat(point).st_dev
    assert os.statvfs(point).f_flag & (os.ST_NOSUID | os.ST_NODEV) == os.ST_NOSUID | os.ST_NODEV
    (point / "above").write_bytes(b"above")
    assert (upper / "above").read_bytes() == b"above"
    assert (point / "below").read_bytes() == b"below"
    unmount_now(point)
    assert mount_at(point) is None


def test_the_topmost_of_stacked_mounts_is_meant(folder: Path) -> None:
    point = folder / "p"
    point.mkdir()
    assert mount_at(point) is None
    tmpfs(point)
    first = mount_at(point)
    tmpfs(point)
    second = mount_at(point)
    assert first is not None
    assert second is not None
    assert not second.is_image
    assert second.device == os.stat(point).st_dev != first.device
    unmount_now(point)
    assert mount_at(point) == first


def test_a_mount_point_is_found_behind_symlinks_and_dots(folder: Path) -> None:
    real = folder / "real" / "point"
    real.mkdir(parents=True)
    (folder / "way").symlink_to("real")
    (folder / "direct").symlink_to("real/point")
    for mounted in (False, True):
        if mounted:
            tmpfs(real)
        for path in (
            folder / "way" / "point",
            folder / "direct",
            real / "..",
            real / ".." / "point",
            folder / "way" / ".." / "real" / "point",
        ):
            expected = real.parent if path.name == ".." else real
            assert real_mountpoint(path) == expected, path
    assert real_mountpoint(folder / "absent") == folder / "absent"


def test_a_mount_point_is_relative_to_where_we_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "point").mkdir()
    monkeypatch.chdir(folder / "point")
    assert real_mountpoint(Path()) == folder / "point"
    monkeypatch.chdir(folder)
    assert real_mountpoint(Path("point")) == folder / "point"


def test_a_mount_in_use_is_refused_or_detached(folder: Path) -> None:
    point = folder / "p"
    point.mkdir()
    tmpfs(point)
    with (point / "open").open("wb") as stream:
        with pytest.raises(BusyError, match="busy"):
            unmount_now(point)
        unmount_now(point, detach=True)
        assert mount_at(point) is None
        stream.write(b"still here")


def test_what_is_not_mounted_cannot_be_unmounted(folder: Path) -> None:
    with pytest.raises(IoFailure, match="cannot unmount"):
        unmount_now(folder)


def test_an_upper_layer_that_overlayfs_refuses_is_named(folder: Path) -> None:
    for name in ("l", "u", "w", "p", "l2", "p2"):
        (folder / name).mkdir()
    mount_overlay(folder / "l", folder / "u", folder / "w", folder / "p", dev=True)
    (folder / "p" / "upper").mkdir()
    (folder / "p" / "work").mkdir()
    with pytest.raises(UnavailableError) as caught:
        mount_overlay(folder / "l2", folder / "p" / "upper", folder / "p" / "work", folder / "p2", dev=True)
    assert caught.value.hint is not None
    assert str(folder / "p" / "upper") in caught.value.hint


def test_the_file_system_of_a_path_is_told_by_its_device(folder: Path) -> None:
    point = folder / "p"
    point.mkdir()
    tmpfs(point)
    (point / "inside").mkdir()
    assert file_system_of(point / "inside") == "tmpfs"
    assert file_system_of(Path("/proc/self")) == "proc"
