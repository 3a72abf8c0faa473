"""`coldstart image ls` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Coldstart


def make_images(coldstart: Coldstart, tmp_path: Path) -> None:
    for name in ("beta", "alpha/one"):
        root = tmp_path / name.replace("/", "-")
        root.mkdir()
        (root / name[0]).write_text(name)
        assert coldstart("image", "index", f"dir:{root}", "--name", name).status == 0


def test_names_are_listed_in_order(coldstart: Coldstart, tmp_path: Path) -> None:
    make_images(coldstart, tmp_path)
    result = coldstart("image", "ls")
    assert result.status == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["NAME", "IMAGE", "ENTRIES", "CONTENT", "CREATED"]
    assert [line.split()[0] for line in lines[1:]] == ["alpha/one", "beta"]


def test_json_has_whole_digests(coldstart: Coldstart, tmp_path: Path) -> None:
    make_images(coldstart, tmp_path)
    document = json.loads(coldstart("image", "ls", "--json").stdout)
    assert (document["schema"], document["version"]) == ("coldstart.image.ls", 1)
    first = document["images"][0]
    assert (first["name"], first["entries"], first["content_bytes"]) == ("alpha/one", 2, 9)
    assert len(first["digest"]) == len("blake3:") + 64


def test_a_damaged_image_does_not_hide_the_others(coldstart: Coldstart, tmp_path: Path) -> None:
    make_images(coldstart, tmp_path)
    store = tmp_path / "coldstart/state/store"
    (store / "refs/beta").write_text("damaged")
    result = coldstart("image", "ls")
    assert result.status == 0
    assert "alpha/one" in result.stdout
    assert "image `beta` cannot be read" in result.stderr


def test_an_absent_store_is_said(coldstart: Coldstart) -> None:
    result = coldstart("image", "ls")
    assert result.status == 66
    assert "there is no image store" in result.stderr
