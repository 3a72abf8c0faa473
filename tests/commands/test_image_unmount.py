"""`coldstart image unmount` as its users meet it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from coldstart_cli.files import mounts_below
from coldstart_cli.process import start_ticks
from coldstart_fs.mounts.kernel_mounts import mount_at
from image_desk import Desk, error, kill_all


def test_nothing_of_a_mount_is_left(desk: Desk) -> None:
    assert desk.mount("--detach", "--overlay", "layer").status == 0
    assert desk.unmount().status == 0
    assert mount_at(desk.point) is None
    mounts = desk.folder / "coldstart" / "run" / "mounts"
    assert not [path for path in mounts.iterdir() if path.is_dir()]
    assert desk.run("image", "status").stdout == "no image is mounted\n"


def test_the_document_names_the_mount(desk: Desk) -> None:
    desk.mount("--detach")
    done = desk.run("image", "unmount", desk.point, "--json", "--quiet")
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document.pop("trace")["workload"] == "default"
    assert document == {
        "schema": "coldstart.image.unmount",
        "version": 1,
        "mountpoint": str(desk.point),
        "image": desk.digest,
        "in_use": False,
    }


def test_a_dry_run_only_says_what_it_would_do(desk: Desk) -> None:
    desk.mount("--detach")
    done = desk.run("image", "unmount", desk.point, "--dry-run")
    assert (done.status, done.stdout) == (0, f"would unmount app/server at {desk.point}\n")
    assert (desk.point / "hello").exists()


@pytest.mark.parametrize("kind", ["absent", "plain folder", "foreign mount"])
def test_what_is_no_mount_of_ours_is_refused(desk: Desk, kind: str) -> None:
    point = desk.folder / "absent" if kind == "absent" else desk.point
    if kind == "foreign mount":
        subprocess.run(["mount", "-t", "tmpfs", "none", point], check=True, timeout=60)
    try:
        done = desk.run("image", "unmount", point)
        assert (done.status, error(done)) == (66, f"not a mount of coldstart: {point}")
        assert "coldstart image status" in done.stderr
        assert (mount_at(point) is not None) == (kind == "foreign mount")
    finally:
        if kind == "foreign mount":
            subprocess.run(["umount", point], check=True, timeout=60)


def test_a_mount_of_another_run_folder_is_not_ours_to_end(desk: Desk, tmp_path: Path) -> None:
    desk.mount("--detach")
    other = {"COLDSTART_RUN_DIR": str(tmp_path / "other-run")}
    done = desk.run("image", "unmount", desk.point, environment=other)
    assert done.status == 66
    assert error(done) == f"mount has no record in {tmp_path / 'other-run'}: {desk.point}"
    assert "run_dir" in done.stderr
    assert (desk.point / "hello").exists()
    done = desk.run(
        "image", "mount", "app/server", desk.point, "--store", desk.store, "--detach", environment=other
    )
    assert (done.status, error(done)) == (75, f"an image is already mounted there: {desk.point}")


def test_a_mount_in_use_is_let_go_only_on_demand(desk: Desk) -> None:
    desk.mount("--detach", "--overlay", "layer")
    with (desk.point / "hello").open("rb") as user:
        done = desk.unmount()
        assert done.status == 75
        assert error(done).startswith(f"cannot unmount: {desk.point}")
        assert user.read() == b"hello world\n"
        done = desk.run("image", "unmount", desk.point, "--lazy")
        assert done.status == 0
        assert f"mount was still in use and was let go: {desk.point}" in done.stderr
    assert mount_at(desk.point) is None
    assert desk.run("image", "status").status == 0


@pytest.mark.parametrize("overlay", [[], ["--overlay", "layer"]])
def test_what_a_dead_server_left_is_cleaned_up(desk: Desk, overlay: list[str]) -> None:
    document = json.loads(desk.mount("--detach", "--json", *overlay).stdout)
    if overlay:
        (desk.point / "new").write_bytes(b"written")
    kill_all(document)
    done = desk.unmount()
    assert (done.status, done.stderr) == (0, f"unmounted: {desk.point}\n")
    assert os.listdir(desk.point) == []
    if overlay:
        assert (desk.folder / "layer" / "upper" / "new").read_bytes() == b"written"


def test_force_ends_a_mount_that_hangs(desk: Desk) -> None:
    document = json.loads(desk.mount("--detach", "--json").stdout)
    for pid in (document["keeper_pid"], document["server_pid"]):
        os.kill(pid, signal.SIGSTOP)
    reader = subprocess.Popen(["cat", desk.point / "large"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    done = desk.run("image", "unmount", desk.point, "--force")
    assert done.status == 0, done.stderr
    assert f"unmounted: {desk.point}" in done.stderr
    reader.communicate(timeout=60)
    assert reader.returncode == 1
    assert mount_at(desk.point) is None
    assert not any(start_ticks(document[key]) for key in ("keeper_pid", "server_pid"))
    assert desk.run("image", "status").stdout == "no image is mounted\n"


def test_a_run_folder_may_be_reached_through_a_symlink(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to(tmp_path / "real")  # as /var/run is one to /run
    run = {"COLDSTART_RUN_DIR": str(tmp_path / "var" / "run" / "coldstart")}
    command = ("image", "mount", "app/server", desk.point, "--store", desk.store, "--detach")
    mounted = desk.run(*command, environment=run)
    assert (mounted.status, mounted.stderr) == (0, "")  # nothing of the kernel's settings is lost
    done = desk.run("image", "unmount", desk.point, environment=run)
    assert (done.status, done.stderr) == (0, f"unmounted: {desk.point}\n")
    assert mount_at(desk.point) is None
    assert mounts_below(tmp_path / "real") == []
    assert not list((tmp_path / "real" / "coldstart" / "servers").iterdir())


def test_one_of_two_mounts_of_an_image_ends_alone(desk: Desk) -> None:
    other = desk.folder / "other"
    other.mkdir()
    desk.mount("--detach")
    assert desk.run("image", "mount", "app/server", other, "--store", desk.store, "--detach").status == 0
    with (desk.point / "large").open("rb") as user:
        done = desk.run("image", "unmount", desk.point, "--lazy")
        assert "was let go" in done.stderr
        assert "its users go on reading" in done.stderr
        assert len(user.read()) == 700_000
    assert (other / "hello").read_bytes() == b"hello world\n"
    assert desk.run("image", "unmount", other).status == 0
