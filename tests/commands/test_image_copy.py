"""coldstart image copy, as people and scripts run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.references import resolve_image
from coldstart_fs.stores.store_url import open_store
from conftest import Coldstart


@pytest.fixture
def source(tmp_path: Path, coldstart: Coldstart) -> Path:
    """The configured store, with one image."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_bytes(b"content" * 1000)
    folder = tmp_path / "source"
    index_image(f"dir:{tmp_path / 'root'}", store=open_store(str(folder), create=True), name="app")
    coldstart.environment["COLDSTART_STORE"] = str(folder)
    return folder


def test_people_see_what_was_sent_and_what_was_there(
    coldstart: Coldstart, source: Path, tmp_path: Path
) -> None:
    planned = coldstart("image", "copy", "app", tmp_path / "copy", "--dry-run")
    assert planned.status == 0, planned.stderr
    assert "to send         7.1 kB in 1 pack\n" in planned.stdout
    assert "dry run: nothing was written" in planned.stderr
    assert not (tmp_path / "copy").exists()
    done = coldstart("image", "copy", "app", tmp_path / "copy")
    assert done.status == 0, done.stderr
    assert "sent            7.1 kB in 1 pack\n" in done.stdout
    again = coldstart("image", "copy", "app", tmp_path / "copy", "--name", "team/app:2")
    assert "sent            0 B in 0 packs\nthere before    7.1 kB in 1 pack\n" in again.stdout
    assert [
        line.split()[0] for line in coldstart("image", "ls", "--store", tmp_path / "copy").stdout.splitlines()
    ] == [
        "NAME",
        "app",
        "team/app:2",
    ]


def test_scripts_get_a_document(coldstart: Coldstart, source: Path, tmp_path: Path) -> None:
    result = coldstart("image", "copy", "app", f"file://{tmp_path}/copy", "--json")
    document = json.loads(result.stdout)
    assert (document["schema"], document["version"]) == ("coldstart.image.copy", 1)
    assert document["digest"].startswith("blake3:")
    assert document["source"] == str(source)
    assert document["destination"] == str(tmp_path / "copy")
    assert document["sent"]["count"] == 1
    assert document["sent"]["size_bytes"] > 7000
    assert document["held"] == document["not_needed"] == {"count": 0, "size_bytes": 0}
    copied = resolve_image(open_store(str(tmp_path / "copy")), "app")
    assert copied.pinned == f"app@{document['digest']}"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nothing", "DESTINATION"], 66, "image is not in the store: nothing"),
        (["app", "http://127.0.0.1:9/x"], 69, "store is read-only over HTTP: http://127.0.0.1:9/x"),
        (["app", "s3://user:secret@bucket"], 2, "a store's URL has no user, password"),
        (["app", "s4://bucket"], 2, "unknown kind of store: s4://"),
        (["app", "DESTINATION", "--name", "../x"], 2, "not an image name: ../x"),
        (["app", "/proc"], 73, "not an image store, and not an empty folder: /proc"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    coldstart: Coldstart, source: Path, tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    destination = str(tmp_path / "copy")
    result = coldstart(
        "image", "copy", *(destination if part == "DESTINATION" else part for part in arguments)
    )
    assert result.status == status, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert "secret" not in result.stderr
    assert not (tmp_path / "copy").exists()
