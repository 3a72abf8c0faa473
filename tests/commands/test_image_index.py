"""`coldstart image index` as it is typed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from conftest import Coldstart
from image_builder import Layer, write_layout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(os.urandom(200_000))
    return root


def test_the_answer_names_the_image_pinned(coldstart: Coldstart, root: Path) -> None:
    result = coldstart("image", "index", f"dir:{root}", "--name", "app:1")
    assert result.status == 0, result.stderr
    assert "app:1@blake3:" in result.stdout
    assert result.stderr == f"opening dir:{root}\n"


def test_json_is_one_document(coldstart: Coldstart, tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", [Layer().file("a", b"x").file("b")], tag="v1")
    result = coldstart("image", "index", "oci:layout:v1", "--name", "app", "--store", "here", "--json")
    document = json.loads(result.stdout)
    assert (document["schema"], document["version"]) == ("coldstart.image.index", 1)
    assert (document["name"], document["entries"], document["content_bytes"]) == ("app", 3, 1)
    assert document["digest"].startswith("blake3:")
    assert (tmp_path / "here" / "refs" / "app").exists()


def test_a_dry_run_leaves_no_store(coldstart: Coldstart, root: Path, tmp_path: Path) -> None:
    result = coldstart("image", "index", f"dir:{root}", "--name", "app", "--store", "here", "--dry-run")
    assert result.status == 0
    assert "nothing was written" in result.stderr
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("dir:none", "--name", "x"), 66, "folder does not exist: none"),
        (("docker-archive:root", "--name", "x"), 2, "not a file but a folder: root"),
        (("dir:root", "--name", "../x"), 2, "not an image name: ../x"),
        (("root", "--name", "x"), 2, "source has no kind: root"),
        (("oci:root", "--name", "x"), 65, "not an OCI layout"),
        (("dir:root", "--name", "x", "--store", "s3://bucket"), 69, "stores at s3:// are not supported"),
        (("dir:root", "--name", "x", "--store", "root"), 73, "not an image store"),
        (("dir:root",), 2, "--name"),
    ],
)
def test_mistakes_end_in_the_right_status(
    coldstart: Coldstart, root: Path, arguments: tuple[str, ...], status: int, message: str
) -> None:
    result = coldstart("image", "index", *arguments)
    assert (result.status, result.stdout) == (status, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
