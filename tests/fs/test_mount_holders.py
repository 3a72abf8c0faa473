"""Mounts that somebody has elsewhere: in a container, in another mount namespace, behind another mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError
from coldstart_fs.mounts.kernel_mounts import mount_at
from coldstart_fs.mounts.mount import MountRecord, unmount
from conftest import wait_until
from fs.mounts import CHUNK_BYTES, Lab, forget_pages

LARGE = os.urandom(4 * CHUNK_BYTES)
# as a container runtime does it: a namespace of its own, the image at another place in it
_ROOTED = 'mount --bind "$1" /mnt && cd / && echo ready && exec sleep 60'
_STANDING = 'cd "$1" && echo ready && exec sleep 60'
_IDLE = "echo ready && exec sleep 60"


@pytest.fixture
def image(lab: Lab) -> Lab:
    lab.image(file=b"content", large=LARGE)
    return lab


@contextmanager
def namespace(point: Path, script: str) -> Iterator[int]:
    """A process in a mount namespace of its own that has done what the script says; its pid."""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(point)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


def goes_on(record: MountRecord, pid: int, place: str) -> None:
    """Readers on the host and in the namespace still get the right bytes."""
    assert mount_at(record.mountpoint) is not None
    assert record.server_lives()
    forget_pages(record.mountpoint / "large")
    assert (record.mountpoint / "large").read_bytes() == LARGE
    assert Path(f"/proc/{pid}/root{place}/large").read_bytes() == LARGE


@pytest.mark.parametrize("layered", [False, True], ids=["read-only", "overlay"])
@pytest.mark.parametrize("script", [_ROOTED, _STANDING], ids=["a place of its own", "standing in it"])
def test_a_mount_that_another_namespace_uses_is_refused_and_stays_whole(
    image: Lab, script: str, layered: bool
) -> None:
    record = image.mount(overlay=image.folder / "layer" if layered else None)
    with namespace(record.mountpoint, script) as pid:
        with pytest.raises(BusyError, match=rf"cannot unmount: .*: pid {pid} \(sleep\)") as refusal:
            unmount(record.mountpoint, run_folder=image.run, lazy=False)
        assert "--lazy" in str(refusal.value.hint)
        goes_on(record, pid, "/mnt" if script is _ROOTED else str(record.mountpoint))
    assert not unmount(record.mountpoint, run_folder=image.run, lazy=False).in_use
    assert mount_at(record.mountpoint) is None


def test_a_namespace_that_only_came_to_a_copy_keeps_nobody_from_unmounting(image: Lab) -> None:
    record = image.mount()
    with namespace(record.mountpoint, _IDLE):
        assert not unmount(record.mountpoint, run_folder=image.run, lazy=False).in_use
        assert mount_at(record.mountpoint) is None
        assert not record.server_lives()


def test_a_mount_that_a_container_has_is_let_go_on_demand(image: Lab) -> None:
    record = image.mount()
    with namespace(record.mountpoint, _ROOTED):
        assert unmount(record.mountpoint, run_folder=image.run, lazy=True).in_use
        assert mount_at(record.mountpoint) is None


@pytest.mark.parametrize("layered", [False, True], ids=["read-only", "overlay"])
def test_a_container_goes_on_though_somebody_called_umount_on_the_host(image: Lab, layered: bool) -> None:
    record = image.mount(overlay=image.folder / "layer" if layered else None)
    with namespace(record.mountpoint, _ROOTED) as pid:
        subprocess.run(["umount", record.mountpoint], check=True, timeout=60)
        wait_until(lambda: f"no mount point is left, but pid {pid}" in image.log(record), "a look around")
        assert record.server_lives()
        assert Path(f"/proc/{pid}/root/mnt/large").read_bytes() == LARGE
        with pytest.raises(BusyError, match=f"pid {pid}"):
            unmount(record.mountpoint, run_folder=image.run, lazy=False)
    unmount(record.mountpoint, run_folder=image.run, lazy=False)
    assert not record.server_lives()


def test_the_root_of_a_replica_is_refused_with_the_command_that_ends_the_replica(image: Lab) -> None:
    root = image.run / "replicas" / "ocr" / "root"
    root.mkdir(parents=True)
    record = image.mount(root, overlay=image.folder / "layer")
    with namespace(record.mountpoint, _ROOTED) as pid:
        with pytest.raises(BusyError) as refusal:
            unmount(record.mountpoint, run_folder=image.run, lazy=False)
        assert "root of replica ocr: `coldstart launch SPEC --stop`" in str(refusal.value.hint)
        goes_on(record, pid, "/mnt")


def test_one_of_two_mounts_goes_though_a_container_uses_the_server(image: Lab) -> None:
    first, second = image.mount("first"), image.mount("second")
    with namespace(first.mountpoint, _ROOTED) as pid:
        unmount(first.mountpoint, run_folder=image.run, lazy=False)
        goes_on(second, pid, "/mnt")
        with pytest.raises(BusyError, match=f"pid {pid}"):
            unmount(second.mountpoint, run_folder=image.run, lazy=False)
        goes_on(second, pid, "/mnt")


def test_a_mount_that_was_bound_elsewhere_is_refused(image: Lab) -> None:
    record = image.mount()
    elsewhere = image.folder / "elsewhere"
    elsewhere.mkdir()
    subprocess.run(["mount", "--bind", record.mountpoint, elsewhere], check=True, timeout=60)
    try:
        with pytest.raises(BusyError, match=f"it is mounted at {elsewhere}, too"):
            unmount(record.mountpoint, run_folder=image.run, lazy=False)
        assert (elsewhere / "large").read_bytes() == LARGE
    finally:
        subprocess.run(["umount", elsewhere], check=True, timeout=60)
    unmount(record.mountpoint, run_folder=image.run, lazy=False)


def test_a_mount_under_somebody_elses_overlay_is_refused(image: Lab) -> None:
    record = image.mount()
    for name in ("upper", "work", "merged"):
        (image.folder / name).mkdir()
    options = f"lowerdir={record.mountpoint},upperdir={image.folder}/upper,workdir={image.folder}/work"
    merged = image.folder / "merged"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "none", merged], check=True, timeout=60)
    try:
        with pytest.raises(BusyError, match=f"it is mounted at {merged}, too"):
            unmount(record.mountpoint, run_folder=image.run, lazy=False)
        assert (merged / "large").read_bytes() == LARGE
    finally:
        subprocess.run(["umount", merged], check=True, timeout=60)
    unmount(record.mountpoint, run_folder=image.run, lazy=False)


@pytest.mark.parametrize("what", ["the mount point", "the folder above"])
@pytest.mark.parametrize("how", [{"lazy": False}, {"lazy": True}, {"force": True}], ids=["", "lazy", "force"])
def test_a_mount_that_something_else_covers_is_never_called_unmounted(
    image: Lab, what: str, how: dict[str, bool]
) -> None:
    (image.folder / "above").mkdir()
    record = image.mount("above/mnt")
    cover = record.mountpoint if what == "the mount point" else record.mountpoint.parent
    subprocess.run(["mount", "-t", "tmpfs", "none", cover], check=True, timeout=60)
    try:
        with pytest.raises(BusyError, match=f"tmpfs lies over it, mounted at {cover}"):
            unmount(record.mountpoint, run_folder=image.run, **how)
        assert record.server_lives()
    finally:
        subprocess.run(["umount", cover], check=True, timeout=60)
    assert (record.mountpoint / "file").read_bytes() == b"content"
    unmount(record.mountpoint, run_folder=image.run, lazy=False)
    assert mount_at(record.mountpoint) is None
