"""`coldstart image gc` as an operator and a timer see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from image_desk import Desk


def _gc(desk: Desk, *options: str) -> dict[str, object]:
    done = desk.run("image", "gc", "--store", desk.store, "--json", *options)
    assert done.status == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["version"]) == ("coldstart.image.gc", 1)
    assert isinstance(document, dict)
    return document


def test_a_mounted_image_without_a_name_is_in_use_and_goes_when_it_is_unmounted(desk: Desk) -> None:
    assert desk.mount("--detach").status == 0
    (desk.store / "refs" / "app" / "server").unlink()
    assert _gc(desk, "--grace-days", "0")["removed"] == []
    assert (desk.point / "hello").read_bytes() == b"hello world\n"
    assert desk.unmount().status == 0
    rehearsed = _gc(desk, "--grace-days", "0", "--dry-run")["removed"]
    assert _gc(desk, "--grace-days", "0")["removed"] == rehearsed != []
    assert list(Path(desk.store).rglob("*.pack")) == []


def test_people_read_what_is_in_use_and_what_went(desk: Desk) -> None:
    done = desk.run("image", "gc", "--store", desk.store)
    assert done.status == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("in use: 1 images, 7")
    assert second == "removed: 0 images, 0 packs, 0 B"


def test_a_store_that_is_not_there_is_66(desk: Desk) -> None:
    assert desk.run("image", "gc", "--store", desk.folder / "nowhere").status == 66


@pytest.mark.parametrize("days", ["nan", "inf", "1e308", "-1"])
def test_a_grace_time_that_is_none_is_refused(desk: Desk, days: str) -> None:
    done = desk.run("image", "gc", "--store", desk.store, "--grace-days", days)
    assert done.status == 2
    assert "--grace-days" in done.stderr
