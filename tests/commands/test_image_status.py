"""`coldstart image status` as its users meet it."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from coldstart_fs.kernel_mounts import mount_at
from coldstart_fs.records import start_ticks
from conftest import Result, wait_until
from image_desk import Desk


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
    assert desk.run("image", "mount", desk.digest, other, "--store", desk.store, "--detach").status == 0
    assert (desk.point / "large").read_bytes() == (desk.folder / "source" / "large").read_bytes()

    def mounts() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = document(desk.run("image", "status", "--json"))["mounts"]
        return found

    wait_until(lambda: mounts()[0]["counters"].get("store_chunks") == 6, "the counters of what was read")
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
        assert "read failed, answered EIO: chunk cannot be fetched: blake3:" in stream.read()


@pytest.mark.parametrize("overlay", [[], ["--overlay", "layer"]])
def test_a_dead_server_is_reported_and_its_mount_ended_on_demand(desk: Desk, overlay: list[str]) -> None:
    pid = json.loads(desk.mount("--detach", "--json", *overlay).stdout)["server_pid"]
    assert desk.run("image", "unmount", "--stale").stderr == "every mount has its server\n"
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: start_ticks(pid) == 0, "the server's end")
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
