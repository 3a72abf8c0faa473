"""`coldstart image status` as its users meet it."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from coldstart_cli.process import is_stopped, start_ticks
from coldstart_fs.mounts.kernel_mounts import mount_at
from conftest import Result, wait_until
from image_desk import Desk, as_user, error, kill_all


def document(result: Result, schema: str = "coldstart.image.status") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    assert (found["schema"], found["version"]) == (schema, 1)
    return found


def test_without_mounts_it_says_so(desk: Desk) -> None:
    done = desk.run("image", "status")
    assert (done.status, done.stdout, done.stderr) == (0, "no image is mounted\n", "")
    assert document(desk.run("image", "status", "--json"))["mounts"] == []


def test_it_lists_what_is_mounted_and_what_was_read_from_where(desk: Desk) -> None:
    other = desk.folder / "other"
    other.mkdir()
    desk.mount("--detach")
    alone = ("--detach", "--own-server")
    assert desk.run("image", "mount", desk.digest, other, "--store", desk.store, *alone).status == 0
    assert (desk.point / "large").read_bytes() == (desk.folder / "source" / "large").read_bytes()

    def mounts() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = document(desk.run("image", "status", "--json"))["mounts"]
        return found

    wait_until(
        lambda: [mount["counters"].get("store_chunks") for mount in mounts()] == [6, 0],
        "the counters of what was read",
    )
    first, second = mounts()
    assert (first["mountpoint"], second["mountpoint"]) == (str(desk.point), str(other))
    assert (first["name"], second["name"]) == ("app/server", desk.digest)
    assert first["serving"] is second["serving"] is True
    assert first["counters"]["store_bytes"] == 700_000
    assert second["counters"]["store_chunks"] == first["counters"]["failed_requests"] == 0
    lines = desk.run("image", "status").stdout.splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:5] == [
        str(desk.point),
        "app/server",
        desk.digest[:19],
        "serving",
        str(first["server_pid"]),
    ]
    assert desk.run("image", "unmount", other).status == 0
    assert len(mounts()) == 1


def test_failed_reads_are_a_warning_that_names_the_log(desk: Desk) -> None:
    desk.mount("--detach")
    for pack in desk.store.glob("packs/*/*.pack"):
        pack.unlink()
    with pytest.raises(OSError, match="Input/output error"):
        (desk.point / "large").read_bytes()
    wait_until(lambda: "requests failed" in desk.run("image", "status").stderr, "the failure to be counted")
    warning = desk.run("image", "status").stderr
    log = warning.split("see ", 1)[1].strip()
    assert f"failed at {desk.point}" in warning
    with open(log, encoding="utf-8") as stream:
        assert "read of /large failed, answered EIO: chunk cannot be fetched: blake3:" in stream.read()


@pytest.mark.parametrize("overlay", [[], ["--overlay", "layer"]])
def test_a_dead_server_is_reported_and_its_mount_ended_on_demand(desk: Desk, overlay: list[str]) -> None:
    mounted = json.loads(desk.mount("--detach", "--json", *overlay).stdout)
    assert desk.run("image", "unmount", "--stale").stderr == "every mount has its server\n"
    kill_all(mounted)
    done = desk.run("image", "status", "--json")
    assert done.status == 3
    assert document(done)["mounts"][0]["serving"] is False
    assert f"image server died: {desk.point}" in done.stderr
    rehearsed = desk.run("image", "unmount", "--stale", "--dry-run", "--json")
    assert document(rehearsed, "coldstart.image.unmount")["stale"] == [str(desk.point)]
    assert mount_at(desk.point) is not None
    ended = desk.run("image", "unmount", "--stale", "--json")
    assert document(ended, "coldstart.image.unmount")["stale"] == [str(desk.point)]
    assert mount_at(desk.point) is None
    assert desk.run("image", "status").status == 0
    assert desk.mount("--detach").status == 0


def test_a_mount_without_keeper_is_served_but_unprotected_until_it_is_replaced(desk: Desk) -> None:
    mounted = json.loads(desk.mount("--detach", "--json").stdout)
    os.kill(mounted["keeper_pid"], signal.SIGKILL)
    wait_until(lambda: not start_ticks(mounted["keeper_pid"]), "the end of the keeper")
    done = desk.run("image", "status")
    assert done.status == 0
    assert done.stdout.splitlines()[1].split()[3] == "unprotected"
    assert f"keeper of {desk.point} died" in done.stderr
    assert "coldstart image mount --replace" in done.stderr
    renewed = desk.mount("--replace", "--json")
    assert renewed.status == 0, renewed.stderr
    (mount,) = document(desk.run("image", "status", "--json"))["mounts"]
    assert (mount["serving"], mount["protected"], mount["failure"]) == (True, True, None)
    assert (desk.point / "hello").read_bytes() == b"hello world\n"


def test_a_mount_whose_server_or_keeper_is_stopped_is_told(desk: Desk) -> None:
    mounted = json.loads(desk.mount("--detach", "--json").stdout)
    os.kill(mounted["keeper_pid"], signal.SIGSTOP)
    wait_until(lambda: is_stopped(mounted["keeper_pid"]), "a keeper that stands")
    done = desk.run("image", "status")
    assert (done.status, done.stdout.splitlines()[1].split()[3]) == (0, "unprotected")
    assert f"keeper of {desk.point} is stopped" in done.stderr
    os.kill(mounted["keeper_pid"], signal.SIGCONT)
    os.kill(mounted["server_pid"], signal.SIGSTOP)
    wait_until(lambda: is_stopped(mounted["server_pid"]), "a server that stands")
    done = desk.run("image", "status")
    assert (done.status, done.stdout.splitlines()[1].split()[3]) == (3, "stopped")
    assert f"image server is stopped, and reads wait: {desk.point}" in done.stderr
    (mount,) = document(desk.run("image", "status", "--json"))["mounts"]
    assert (mount["serving"], mount["stopped"]) == (True, True)
    os.kill(mounted["server_pid"], signal.SIGCONT)
    wait_until(lambda: not is_stopped(mounted["server_pid"]), "a server that goes on")
    assert desk.run("image", "status").status == 0


def test_mounts_that_a_user_may_not_see_are_not_called_none(desk: Desk) -> None:
    (desk.folder / "user-RUN" / "mounts").mkdir(parents=True, mode=0o700)
    done = as_user(desk, "", desk.run.program, "image", "status")
    assert done.status == 77
    assert error(done).startswith("cannot read which images are mounted: ")


def test_restarts_and_who_shares_a_server_are_told(desk: Desk) -> None:
    other = desk.folder / "other"
    other.mkdir()
    mounted = json.loads(desk.mount("--detach", "--json").stdout)
    assert desk.run("image", "mount", "app/server", other, "--store", desk.store, "--detach").status == 0
    os.kill(mounted["server_pid"], signal.SIGKILL)

    def mounts() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = document(desk.run("image", "status", "--json"))["mounts"]
        return found

    wait_until(lambda: mounts()[0]["restarts"] == 1, "a successor")
    first, second = mounts()
    assert first["keeper_pid"] == second["keeper_pid"] == mounted["keeper_pid"]
    assert first["server_pid"] == second["server_pid"] != mounted["server_pid"]
    assert (first["sharing"], second["sharing"]) == ([str(other)], [str(desk.point)])
    assert desk.run("image", "unmount", other).status == 0
    assert mounts()[0]["sharing"] == []
