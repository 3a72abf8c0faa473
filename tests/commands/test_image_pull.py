"""`coldstart image pull` as its users meet it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fs.servers import answer, faulty_server
from image_desk import Desk


def test_a_pulled_image_is_mounted_and_read_without_its_store(desk: Desk, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with faulty_server(desk.store) as server:
        done = desk.run("image", "pull", "app/server", "--store", server.url, "--cache", cache)
        assert done.status == 0
        rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
        assert rows["image"] == f"app/server@{desk.digest}"
        assert rows["fetched"] == "700.0 kB of 700.0 kB"
        assert rows["packs"] == "1 pack, 1 of them whole"
        server.fault = answer(503)
        again = desk.run("image", "pull", "app/server", "--store", server.url, "--cache", cache, "--json")
        assert again.status == 0
        document = json.loads(again.stdout)
        assert (document["schema"], document["version"]) == ("coldstart.image.pull", 1)
        assert document["fetched_bytes"] == 0
        assert document["digest"] == desk.digest
        mounted = desk.run(
            "image", "mount", "app/server", desk.point, "--store", server.url, "--cache", cache, "--detach"
        )
        assert mounted.status == 0
        for name in ("hello", "large"):
            assert (desk.point / name).read_bytes() == (desk.folder / "source" / name).read_bytes()
        assert desk.unmount().status == 0


def test_a_dry_run_says_what_it_would_fetch(desk: Desk, tmp_path: Path) -> None:
    with faulty_server(desk.store) as server:
        options = ("--store", server.url, "--cache", tmp_path / "cache", "--dry-run")
        done = desk.run("image", "pull", "app/server", *options)
        assert done.status == 0
        assert "to fetch        700.0 kB of 700.0 kB" in done.stdout
        assert [path for _, path, _ in server.requests if "/packs/" in path] == []


def test_a_folder_is_read_in_place(desk: Desk) -> None:
    done = desk.run("image", "pull", "app/server", "--store", desk.store)
    assert done.status == 0
    assert f"the store is a folder of this host: {desk.store}" in done.stdout


@pytest.mark.parametrize("rate", ["fast", "-1", "0", "1T", ""])
def test_a_rate_that_is_none_is_refused(desk: Desk, rate: str) -> None:
    done = desk.run("image", "pull", "app/server", "--store", desk.store, "--limit-rate", rate)
    assert done.status == 2
    assert "not a rate" in done.stderr


def test_a_store_that_is_down_and_was_never_pulled_from_is_told(desk: Desk, tmp_path: Path) -> None:
    with faulty_server(desk.store) as server:
        url = server.url
    done = desk.run("image", "pull", "app/server", "--store", url, "--cache", tmp_path / "cache")
    assert done.status == 75
    assert "the connection is refused" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused folders that others can change")
def test_a_cache_that_other_users_can_write_to_is_refused_with_the_remedy(desk: Desk, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o1777)
    victim = tmp_path / "victim"
    victim.write_text("secret")
    with faulty_server(desk.store) as server:
        done = desk.run("image", "pull", "app/server", "--store", server.url, "--cache", cache)
        assert done.status == 78
        assert f"{cache}: it may be written to by every user (mode 1777)" in done.stderr
        assert f"hint: chmod o-w {cache}, or choose another `cache_dir`" in done.stderr
        assert os.listdir(cache) == []
        cache.chmod(0o755)
        (cache / "packs-v2").symlink_to(victim.parent)
        done = desk.run("image", "pull", "app/server", "--store", server.url, "--cache", cache)
        assert done.status == 74
        assert f"a link, which is not followed: {cache / 'packs-v2'}" in done.stderr
        assert f"hint: rm {cache / 'packs-v2'}" in done.stderr
    assert victim.read_text() == "secret"
