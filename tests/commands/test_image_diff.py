"""`coldstart image diff` as it is typed."""

from __future__ import annotations

import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.store_url import open_store
from conftest import Coldstart
from image_builder import Layer, write_layout

STORE = "coldstart/state/store"


def add(
    coldstart: Coldstart, name: str, layer: Layer, config: dict[str, Any] | None = None, store: str = STORE
) -> None:
    layout = write_layout(coldstart.folder / f"layout-{name}", [layer], config=config)
    result = coldstart(
        *("image", "index", f"oci:{layout.folder}", "--name", name, "--store", coldstart.folder / store)
    )
    assert result.status == 0, result.stderr


def base() -> Layer:
    layer = Layer().folder("etc").file("etc/passwd", b"root\n").folder("usr").file("usr/tool", b"t" * 50)
    return layer.symlink("usr/link", "tool").add("null", tarfile.CHRTYPE, devmajor=1, devminor=3)


def test_equal_images_have_no_differences(coldstart: Coldstart) -> None:
    add(coldstart, "one", base())
    add(coldstart, "two", base())
    result = coldstart("image", "diff", "one", "two")
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "no differences",
        "to fetch for the second with the first at hand: 0 B of 55 B, stored as 0 B; "
        "index and locator " + result.stdout.rsplit("locator ", 1)[1].strip(),
    ]
    document = json.loads(coldstart("image", "diff", "one", "two", "--json").stdout)
    assert (document["schema"], document["version"], document["same"]) == ("coldstart.image.diff", 1, True)


def test_every_kind_of_change_is_named(coldstart: Coldstart) -> None:
    one = base().file("mode", mode=0o644).file("owner", uid=1, gid=2).file("time", mtime=1.5)
    one.file("content", b"abc").file("size", b"ab").symlink("target", "a").file(
        "xattr", xattrs={"user.a": b"1"}
    )
    one.file("type", b"x").add("device", tarfile.BLKTYPE, devmajor=1, devminor=1)
    one.file("group/a", b"g").link("group/b", "group/a").file("group/c", b"g")
    two = base().file("mode", mode=0o755).file("owner", uid=3, gid=4).file("time", mtime=2)
    two.file("content", b"xyz").file("size", b"abc").symlink("target", "b").file(
        "xattr", xattrs={"user.a": b"2"}
    )
    two.symlink("type", "x").add("device", tarfile.BLKTYPE, devmajor=1, devminor=2)
    two.file("group/a", b"g").file("group/b", b"g").link("group/c", "group/a")
    add(coldstart, "one", one)
    add(coldstart, "two", two)
    result = coldstart("image", "diff", "one", "two")
    assert result.status == 3
    lines = result.stdout.splitlines()
    assert lines[:-2] == [
        "~ /content: content",
        "~ /device: device 1, 1 -> 1, 2",
        "~ /group/a: links 2 -> 2",
        "~ /group/b: links 2 -> 1",
        "~ /group/c: links 1 -> 2",
        "~ /mode: mode 0644 -> 0755",
        "~ /owner: owner 1:2 -> 3:4",
        "~ /size: size 2 -> 3, content",
        "~ /target: target a -> b",
        "~ /time: mtime 1970-01-01T00:00:01.500000000Z -> 1970-01-01T00:00:02Z",
        "~ /type: type file -> symlink",
        "~ /xattr: xattrs",
    ]
    assert lines[-2] == "12 changed"
    assert "images differ: 12 changed" in result.stderr


def test_folders_that_came_or_went_whole_are_one_line(coldstart: Coldstart) -> None:
    add(coldstart, "one", base().folder("old").file("old/a", b"12").file("old/b/c", b"3456").file("old-x"))
    add(coldstart, "two", base().folder("new").symlink("new/s", "x").file("single", b"1" * 1500))
    result = coldstart("image", "diff", "one", "two")
    assert result.stdout.splitlines()[:-1] == [
        "+ /new/ (2 entries, 0 B)",
        "- /old/ (4 entries, 6 B)",
        "- /old-x (0 B)",
        "+ /single (1.5 kB)",
        "3 added, 5 removed",
    ]
    document = json.loads(coldstart("image", "diff", "one", "two", "--json").stdout)
    assert [change["path"] for change in document["changes"]] == [
        *("/new", "/new/s", "/old", "/old/a", "/old/b", "/old/b/c", "/old-x", "/single")
    ]
    assert document["changes"][0]["before"] is None
    assert document["changes"][1]["after"]["target"] == "x"


def test_a_folder_that_became_a_file_says_what_went_with_it(coldstart: Coldstart) -> None:
    add(coldstart, "one", base().folder("x").file("x/a").file("x/b/c"))
    add(coldstart, "two", base().file("x", b"", mode=0o755))
    lines = coldstart("image", "diff", "one", "two").stdout.splitlines()
    assert lines[:-2] == ["~ /x: type directory -> file", "- /x/a (0 B)", "- /x/b/ (2 entries, 0 B)"]
    lines = coldstart("image", "diff", "two", "one").stdout.splitlines()
    assert lines[:-2] == ["~ /x: type file -> directory", "+ /x/a (0 B)", "+ /x/b/ (2 entries, 0 B)"]


def test_ignored_differences_do_not_count(coldstart: Coldstart) -> None:
    add(coldstart, "one", base().file("a", b"1", mtime=1).file("b", mode=0o600))
    add(coldstart, "two", base().file("a", b"1", mtime=2).file("b", mode=0o644))
    assert coldstart("image", "diff", "one", "two", "--ignore", "mtime").status == 3
    result = coldstart("image", "diff", "one", "two", "--ignore", "mtime", "--ignore", "mode", "--json")
    assert result.status == 0
    document = json.loads(result.stdout)
    assert (document["same"], document["ignored"]) == (True, ["mode", "mtime"])


def test_a_new_hard_link_is_a_change_of_its_group(coldstart: Coldstart) -> None:
    add(coldstart, "one", base().file("a", b"1").link("b", "a"))
    add(coldstart, "two", base().file("a", b"1").link("b", "a").link("c", "a"))
    result = coldstart("image", "diff", "one", "two")
    assert result.stdout.splitlines()[:3] == ["~ /a: links 2 -> 3", "~ /b: links 2 -> 3", "+ /c (1 B)"]
    assert coldstart("image", "diff", "one", "one").status == 0


def test_the_runtime_configuration_is_compared_variable_by_variable(coldstart: Coldstart) -> None:
    add(coldstart, "one", base(), {"Entrypoint": ["/a"], "Env": ["A=1", "B=2"], "User": "app"})
    add(coldstart, "two", base(), {"Entrypoint": ["/a", "b"], "Env": ["B=3", "C=x y"], "WorkingDir": "/srv"})
    result = coldstart("image", "diff", "one", "two")
    assert result.status == 3
    assert result.stdout.splitlines()[:-1] == [
        '~ configuration entrypoint: ["/a"] -> ["/a", "b"]',
        '~ configuration user: "app" -> null',
        '~ configuration working_directory: null -> "/srv"',
        '~ configuration environment.A: "1" -> null',
        '~ configuration environment.B: "2" -> "3"',
        '~ configuration environment.C: null -> "x y"',
        "6 differences of the configuration",
    ]
    document = json.loads(coldstart("image", "diff", "one", "two", "--json").stdout)
    assert document["configuration_changes"][1] == {"key": "user", "before": "app", "after": None}
    assert (document["same"], document["changes"]) == (False, [])


def test_images_of_two_stores_are_compared_and_only_what_is_missing_is_counted(coldstart: Coldstart) -> None:
    big, more = (random.Random(number).randbytes(200_000) for number in (1, 2))
    add(coldstart, "here", base().file("big", big))
    add(
        coldstart,
        "there",
        base().file("copy", big).file("more", more).file("zeros", bytes(500_000)),
        store="far",
    )
    result = coldstart("image", "diff", "here", "there", "--other-store", coldstart.folder / "far", "--json")
    assert result.status == 3
    fetch = json.loads(result.stdout)["fetch"]
    assert (fetch["unique_bytes"], fetch["missing_bytes"]) == (400_055, 200_000)
    assert fetch["missing_stored_bytes"] == 200_000
    assert fetch["metadata_bytes"] > 0
    assert coldstart("image", "diff", "here", "there").status == 66


def test_images_cut_into_chunks_of_different_sizes_are_compared_by_reading(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    add(coldstart, "one", base().file("big", b"ab" * 100_000))
    store = open_store(str(tmp_path / STORE))
    index_image(f"oci:{tmp_path / 'layout-one'}", store=store, name="fine", chunk_bytes=4096)
    add(coldstart, "two", base().file("big", b"ab" * 99_999 + b"xx"))
    same = coldstart("image", "diff", "one", "fine")
    assert (same.status, same.stdout.splitlines()[0]) == (0, "no differences")
    assert "contents are read" in same.stderr
    different = coldstart("image", "diff", "fine", "two")
    assert (different.status, different.stdout.splitlines()[0]) == (3, "~ /big: content")


def test_names_of_any_bytes_stay_on_their_line(coldstart: Coldstart) -> None:
    add(coldstart, "one", base())
    add(coldstart, "two", base().file(b"odd\n\xff\x1b[31m", b"1"))
    assert coldstart("image", "diff", "one", "two").stdout.splitlines()[0] == "+ /odd\\n\\xff\\x1b[31m (1 B)"
    (change,) = json.loads(coldstart("image", "diff", "one", "two", "--json").stdout)["changes"]
    assert (change["path"], change["escaped"]) == ("/odd\n\\xff\x1b[31m", ["path"])


@pytest.mark.parametrize("names", [("one", "absent"), ("absent", "one")])
def test_an_image_that_is_not_there_is_named(coldstart: Coldstart, names: tuple[str, str]) -> None:
    add(coldstart, "one", base())
    result = coldstart("image", "diff", *names)
    assert result.status == 66
    assert "image is not in the store: absent" in result.stderr
