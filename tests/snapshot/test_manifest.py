"""What a manifest says is what is read back; what is not one is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, NotFoundError, UsageError
from coldstart_snapshot.manifest import MANIFEST_NAME, check_name, read_manifest, write_manifest
from snapshot.made import make_variant, manifest_of


def test_everything_comes_back(tmp_path: Path) -> None:
    _, manifest = make_variant(tmp_path, "web")
    assert read_manifest(tmp_path / "snapshots" / "web" / manifest.variant) == manifest


def test_what_does_not_apply_is_left_out(tmp_path: Path) -> None:
    from dataclasses import replace

    plain = replace(manifest_of("web"), kind="process", runc_version=None, root=None, ready=None, gpu=None)
    write_manifest(tmp_path, plain)
    text = (tmp_path / MANIFEST_NAME).read_text()
    assert not {"[runc]", "[root]", "[ready]", "[gpu]"} & set(text.splitlines())
    assert read_manifest(tmp_path) == plain


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1\n", "version = 2\n", "has version 2, this coldstart reads version 1"),
        ("coldstart.snapshot", "coldstart.spec", "not a snapshot manifest"),
        ("[cpu]", "[cpu", "damaged"),
        ('kind = "container"', 'kind = "pod"', "kind is 'pod'"),
        ("images/pages-1.img", "../pages-1.img", "unsafe path"),
        ("blake3:", "sha256:", "digest of"),
        ("root_pid = 1", "other = 1", "root_pid"),
        ("xsave_bytes = ", "other = ", "xsave_bytes"),
    ],
)
def test_a_newer_or_damaged_manifest_is_refused_by_name(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    folder, _ = make_variant(tmp_path, "web")
    path = folder / MANIFEST_NAME
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=message) as caught:
        read_manifest(folder)
    assert str(path) in str(caught.value)


def test_an_absent_manifest_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no manifest"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "a" * 129, "ä"])
def test_names_are_one_harmless_component(name: str) -> None:
    with pytest.raises(UsageError, match="invalid snapshot name"):
        check_name(name)
