"""`coldstart image verify` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path

from fs.mounts import flip
from fs.servers import faulty_server
from image_desk import Desk


def test_what_is_sound_is_exit_0_and_damage_is_exit_3(desk: Desk, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with faulty_server(desk.store) as server:
        options = ("--store", server.url, "--cache", cache)
        assert desk.run("image", "pull", "app/server", *options).status == 0
        sound = desk.run("image", "verify", "app/server", *options)
        assert sound.status == 0
        cached, stored = sound.stdout.splitlines()
        assert cached == "cache           700.0 kB in 1 pack verified"
        assert stored.startswith("store           701.")
        assert stored.endswith(" kB in 1 pack of 1 image verified")
        (copy,) = (cache / "packs-v2").glob("*/*.pack")
        flip(copy, 1000)
        found = desk.run("image", "verify", *options, "--only", "cache", "--json")
        assert found.status == 3
        document = json.loads(found.stdout)
        assert (document["schema"], document["version"]) == ("coldstart.image.verify", 1)
        assert document["store"] is None
        assert [damage["action"] for damage in document["cache"]["damage"]] == ["removed"]
        assert "damage was found: 1 place" in found.stderr
        assert desk.run("image", "verify", *options, "--only", "cache").status == 0


def test_damage_in_a_store_is_told_with_the_remedy(desk: Desk) -> None:
    (pack,) = (desk.store / "packs").glob("*/*.pack")
    flip(pack, 1000)
    found = desk.run("image", "verify", "--store", desk.store, "--only", "store")
    assert found.status == 3
    key = pack.relative_to(desk.store)
    assert f"store damage    {key}: its digest is blake3:" in found.stdout
    assert "(needed by app/server)" in found.stdout
    assert f"remove {key} from the store and index the image again" in found.stdout


def test_a_store_that_cannot_be_listed_wants_names(desk: Desk, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with faulty_server(desk.store) as server:
        assert desk.run("image", "pull", "app/server", "--store", server.url, "--cache", cache).status == 0
        refused = desk.run("image", "verify", "--store", server.url, "--cache", cache)
    assert refused.status == 69
    assert "cannot be listed" in refused.stderr
    assert refused.stdout == "cache           700.0 kB in 1 pack verified\n"


def test_much_damage_is_told_in_few_lines(desk: Desk, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with faulty_server(desk.store) as server:
        options = ("--store", server.url, "--cache", cache)
        assert desk.run("image", "pull", "app/server", *options).status == 0
        (copy,) = (cache / "packs-v2").glob("*/*.pack")
        for offset in range(0, 700_000, 1000):
            flip(copy, offset)
        found = desk.run("image", "verify", *options, "--only", "cache", "--dry-run")
        lines = [line for line in found.stdout.splitlines() if "damage" in line or "more place" in line]
        every = json.loads(desk.run("image", "verify", *options, "--only", "cache", "--json").stdout)
        assert len(lines) == 4
        assert lines[-1].strip() == f"and {every['damaged'] - 3} more places in it: nothing was changed"


def test_an_image_that_does_not_exist_is_no_damage(desk: Desk) -> None:
    for only in ("cache", "store"):
        refused = desk.run("image", "verify", "no-such-image", "--store", desk.store, "--only", only)
        assert refused.status == 66
