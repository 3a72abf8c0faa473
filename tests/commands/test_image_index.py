"""`coldstart image index` as it is typed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from coldstart_fs.format.trace import Read, Trace, encode_trace
from coldstart_fs.stores.store_url import open_store
from conftest import Coldstart
from image_builder import Layer, image_facts, write_layout


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
    assert "dry run: nothing was written; it would be 200.0 kB of new content in packs" in result.stderr
    assert not (tmp_path / "here").exists()


def test_the_document_tells_layers_bytes_packs_and_phases(coldstart: Coldstart, tmp_path: Path) -> None:
    content = os.urandom(300_000)
    write_layout(
        tmp_path / "layout", [Layer().file("a", content), Layer().file("b", content).file("c", b"c")]
    )
    result = coldstart("image", "index", "oci:layout", "--name", "app", "--quiet", "--json")
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert [layer["digest"][:7] for layer in document["layers"]] == ["sha256:"] * 2
    assert sum(layer["size_bytes"] for layer in document["layers"]) == document["read_bytes"]
    assert (document["files"], document["packs"], document["new_bytes"]) == (3, 1, 300_001)
    assert (document["repeated_bytes"], document["reused_bytes"], document["zero_bytes"]) == (300_000, 0, 0)
    assert document["pack_bytes"] > 300_000
    assert list(document["timings"]) == ["read", "index", "packs", "publish"]
    assert document["seconds"] >= sum(document["timings"].values()) - 0.01
    assert document["trace"] is None
    again = json.loads(coldstart("image", "index", "oci:layout", "--name", "app", "--json").stdout)
    assert (again["digest"], again["packs"], again["pack_bytes"]) == (document["digest"], 0, 0)


def test_compression_changes_the_store_and_not_the_image(coldstart: Coldstart, tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", [Layer().file("a", b"words and words\n" * 50_000)])
    documents = [
        json.loads(coldstart("image", "index", "oci:layout", "--name", "a", "--json", *options).stdout)
        for options in (
            ("--store", "raw"),
            ("--store", "zstd", "--compression", "zstd:5"),
            ("--store", "raw", "--compression", "zstd"),
        )
    ]
    raw, packed, mixed = documents
    assert raw["digest"] == packed["digest"] == mixed["digest"]
    assert packed["pack_bytes"] * 10 < raw["pack_bytes"]
    assert (mixed["packs"], mixed["reused_bytes"]) == (0, raw["new_bytes"])
    stores = [open_store(str(tmp_path / name)) for name in ("raw", "zstd")]
    assert image_facts(stores[0], "a") == image_facts(stores[1], "a")


def test_a_trace_is_used_and_what_it_misses_is_said(coldstart: Coldstart, root: Path, tmp_path: Path) -> None:
    reads = (Read(b"/file", 0, 10, 0.5), Read(b"/usr/bin/none", 0, 10, 0.1))
    (tmp_path / "trace").write_bytes(encode_trace(Trace(b"x" * 32, "start", reads)))
    result = coldstart("image", "index", f"dir:{root}", "--name", "app", "--trace", "trace")
    assert result.status == 0
    assert "warning: trace names 1 path that is no file of the image" in result.stderr
    assert "traced, first" in result.stdout
    assert "published for workload `start`" in result.stderr
    listed = json.loads(coldstart("image", "trace", "list", "--json").stdout)["traces"]
    assert [(item["name"], item["workload"], item["place"]) for item in listed] == [("app", "start", "store")]
    (tmp_path / "trace").write_text("{}")
    refused = coldstart("image", "index", f"dir:{root}", "--name", "other", "--trace", "trace")
    assert (refused.status, refused.stdout) == (65, "")
    assert "not a coldstart.trace document: trace" in refused.stderr
    assert coldstart("image", "index", f"dir:{root}", "--name", "o", "--trace", "absent").status == 66


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("dir:none", "--name", "x"), 66, "folder does not exist: none"),
        (("docker-archive:root", "--name", "x"), 2, "not a file but a folder: root"),
        (("dir:root", "--name", "../x"), 2, "not an image name: ../x"),
        (("root", "--name", "x"), 2, "source has no kind: root"),
        (("oci:root", "--name", "x"), 65, "not an OCI layout"),
        (("dir:root", "--name", "x", "--store", "ftp://host"), 2, "unknown kind of store: ftp://"),
        (("dir:root", "--name", "x", "--store", "root"), 73, "not an image store"),
        (("dir:root", "--name", "x", "--compression", "gzip"), 2, "not a compression: gzip"),
        (("dir:root",), 2, "--name"),
        (("", "--name", "x"), 2, "source is empty"),
        (("dir:root", "--name", "x", "--store", ""), 2, "store must be something, not empty"),
        (("dir:root", "--name", "x", "--trace", "root"), 2, "trace is not a file but a folder: root"),
    ],
)
def test_mistakes_end_in_the_right_status(
    coldstart: Coldstart, root: Path, arguments: tuple[str, ...], status: int, message: str
) -> None:
    result = coldstart("image", "index", *arguments)
    assert (result.status, result.stdout) == (status, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "source",
    [
        "docker://me:hunter2@host/app:1",
        "docker://me:hunter2@host:5000/app@sha256:" + "0" * 64,
        "docker://me:hun/hunter2@host/app",
        "docker://me:hunter2@host",
        "docker://me:hunter2@host:5000",
        "docker:me:hunter2@host/app",
        "docker://hunter2@host/app",
        "Docker://me:hunter2@host/app",
        "https://me:hunter2@host/app",
        "me:hunter2@host/app",
        "hunter2@host/app",
    ],
)
def test_a_password_in_a_source_is_refused_and_never_shown(coldstart: Coldstart, source: str) -> None:
    result = coldstart("image", "index", source, "--name", "x", "--verbose")
    assert (result.status, result.stdout) == (2, "")
    assert "hunter2" not in result.stderr
    if source.startswith("docker:"):
        assert "a reference holds no login: docker:" in result.stderr
        assert "hint: skopeo login host" in result.stderr


def test_sizes_are_written_as_in_other_commands(coldstart: Coldstart, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_bytes(b"a" * 700)
    lines = coldstart("image", "index", "dir:root", "--name", "x").stdout.splitlines()
    assert "content         700 B in 1 file" in lines
    assert lines[-2].endswith("788 B in 1 pack")
    assert "  700 B  " in coldstart("image", "ls").stdout
