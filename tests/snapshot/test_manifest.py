"""What a manifest says is what is read back; what is not one is refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_cli.config import load
from coldstart_cli.errors import DataError, NotFoundError, UsageError
from coldstart_snapshot.kept.inventory import DamagedVariant, StoredVariant, list_variants, load_variant
from coldstart_snapshot.kept.manifest import (
    MANIFEST_NAME,
    ReadyCheck,
    SnapshotFile,
    check_name,
    read_manifest,
    write_manifest,
)
from coldstart_snapshot.restoring.restore import plan_restore
from snapshot.made import make_variant, manifest_of


def test_everything_comes_back(tmp_path: Path) -> None:
    _, manifest = make_variant(tmp_path, "web")
    assert read_manifest(tmp_path / "snapshots" / "web" / manifest.variant) == manifest


def test_what_does_not_apply_is_left_out(tmp_path: Path) -> None:
    plain = replace(manifest_of("web"), kind="process", runc_version=None, root=None, ready=None, gpu=None)
    write_manifest(tmp_path, plain)
    text = (tmp_path / MANIFEST_NAME).read_text()
    assert not {"[runc]", "[root]", "[ready]", "[gpu]"} & set(text.splitlines())
    assert read_manifest(tmp_path) == plain


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1\n", "version = 2\n", "has version 2, this coldstart reads version 1"),
        ("version = 1\n", 'version = "x"\n', "damaged: .*version is 'x'"),
        ("version = 1\n", "version = 0\n", "damaged: .*version is 0"),
        ("version = 1\n", "version = 1\nx = " + "[" * 100_000, "damaged: .*nested too deeply"),
        ('name = "web"', 'name = "../web"', "damaged: .*invalid snapshot name"),
        ('variant = "', 'variant = "/', "damaged: .*invalid snapshot name"),
        ("root_pid = 1", "root_pid = inf", "damaged: .*infinity"),
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


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1.0"])
def test_a_ready_timeout_that_is_none_is_damage(tmp_path: Path, seconds: str) -> None:
    plain = replace(manifest_of("web"), ready=ReadyCheck("http://127.0.0.1:1/", 77.0))
    write_manifest(tmp_path, plain)
    path = tmp_path / MANIFEST_NAME
    path.write_text(path.read_text().replace("timeout_seconds = 77.0", f"timeout_seconds = {seconds}"))
    with pytest.raises(DataError, match="ready timeout is"):
        read_manifest(tmp_path)


def test_a_newer_manifest_is_not_to_be_removed(tmp_path: Path) -> None:
    folder, manifest = make_variant(tmp_path, "web")
    path = folder / MANIFEST_NAME
    path.write_text(path.read_text().replace("version = 1\n", "version = 2\n", 1))
    (found,) = list_variants(tmp_path, "web")
    assert isinstance(found, DamagedVariant)
    assert found.newer
    for variant in (None, manifest.variant):
        with pytest.raises(DataError, match="has version 2") as caught:
            load_variant(tmp_path, "web", variant)
        assert caught.value.hint == "install a newer coldstart"
        with pytest.raises(DataError, match="has version 2") as caught:
            plan_restore("web", load({"state_dir": str(tmp_path)}), variant=variant)
        assert caught.value.hint == "install a newer coldstart"


@pytest.mark.parametrize(
    "place",
    [
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to("elsewhere"),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"#" * ((16 << 20) + 1)),
    ],
    ids=["folder", "fifo", "dangling link", "link", "huge"],
)
def test_something_else_in_its_place_is_damage_and_hides_no_other_variant(
    tmp_path: Path, place: Callable[[Path], object]
) -> None:
    make_variant(tmp_path, "api")
    folder, _ = make_variant(tmp_path, "web")
    (folder / MANIFEST_NAME).unlink()
    place(folder / MANIFEST_NAME)
    with pytest.raises(DataError, match=r"damaged: .*manifest.toml: (not a regular file|larger than)"):
        read_manifest(folder)
    sound, damaged = list_variants(tmp_path)
    assert isinstance(sound, StoredVariant)
    assert isinstance(damaged, DamagedVariant)


def test_an_absent_manifest_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no manifest"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "a" * 129, "ä"])
def test_names_are_one_harmless_component(name: str) -> None:
    with pytest.raises(UsageError, match="invalid snapshot name"):
        check_name(name)


@pytest.mark.parametrize("path", [MANIFEST_NAME, "origin.json", "images", "images/pages-1.img"])
def test_a_file_under_a_name_that_is_taken_is_damage(tmp_path: Path, path: str) -> None:
    plain = manifest_of("web")
    digest = f"blake3:{'0' * 64}"
    files = tuple(SnapshotFile(name, 1, digest) for name in ("images/pages-1.img", path))
    write_manifest(tmp_path, replace(plain, files=files))
    with pytest.raises(DataError, match=f"no name for a file of a snapshot: '{path}'"):
        read_manifest(tmp_path)
