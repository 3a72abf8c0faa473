"""Truncated, altered, missing and foreign files are found; what was verified is not read twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_snapshot.kept.verify import (
    Verification,
    check_files,
    check_stored,
    verify_files,
    verify_for_restore,
)
from snapshot.made import make_variant
from snapshot.servers import require_root


def _truncate(folder: Path) -> None:
    os.truncate(folder / "images" / "pages-1.img", 4096)


def _alter(folder: Path) -> None:
    with (folder / "images" / "pages-1.img").open("r+b") as stream:
        stream.seek(70_000)
        stream.write(b"!")


def _delete(folder: Path) -> None:
    (folder / "images" / "inventory.img").unlink()


def _add(folder: Path) -> None:
    (folder / "images" / "core-1.img").write_bytes(b"core")


def _link(folder: Path) -> None:
    path = folder / "bundle" / "config.json"
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")


def _give_away(folder: Path) -> None:
    os.chown(folder / "manifest.toml", 65534, -1)


def _open_up(folder: Path) -> None:
    (folder / "images" / "pages-1.img").chmod(0o666)


def _open_a_folder(folder: Path) -> None:
    (folder / "bundle").chmod(0o770)


def _name_twice(folder: Path) -> None:
    os.link(folder / "bundle" / "config.json", folder.parent / "elsewhere")


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (_truncate, "file has 4096 bytes instead of 2097152: images/pages-1.img"),
    (_alter, "file was altered: images/pages-1.img"),
    (_delete, "file is missing: images/inventory.img"),
    (_add, "file is not in the manifest: images/core-1.img"),
    (_link, "not a regular file: bundle/config.json"),
    (_open_up, "others may write to it, mode 0666: images/pages-1.img"),
    (_open_a_folder, "others may write to it, mode 0770: bundle"),
    (_name_twice, "has 2 names, of which one lies elsewhere or twice here: bundle/config.json"),
]


@pytest.mark.parametrize(("damage", "problem"), DAMAGE)
def test_each_kind_of_damage_is_named(tmp_path: Path, damage: Callable[[Path], None], problem: str) -> None:
    folder, manifest = make_variant(tmp_path, "web")
    verify_files(folder, manifest)
    damage(folder)
    with pytest.raises(DataError, match=problem):
        verify_files(folder, manifest)
    assert check_files(folder, manifest).problems == (problem,)


def test_a_file_of_another_user_is_named_the_manifest_too(tmp_path: Path) -> None:
    require_root()
    folder, manifest = make_variant(tmp_path, "web")
    verify_for_restore(folder, manifest, tmp_path / "run", Verification.FIRST)
    _give_away(folder)
    problem = "belongs to user 65534: manifest.toml"
    with pytest.raises(DataError, match=problem):
        verify_for_restore(folder, manifest, tmp_path / "run", Verification.NEVER)
    assert check_files(folder, manifest).problems == (problem,)


def test_a_stored_variant_is_not_sound_where_a_restore_would_refuse_its_folder(tmp_path: Path) -> None:
    folder, manifest = make_variant(tmp_path, "web")
    assert check_stored(folder, manifest, tmp_path).problems == ()
    folder.chmod(0o777)
    (problem,) = check_stored(folder, manifest, tmp_path).problems
    assert problem == f"snapshots do not lie safely: others may write to {folder}: mode 0777"


def test_digests_are_computed_once_until_a_file_changes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folder, manifest = make_variant(tmp_path, "web")
    assert verify_for_restore(folder, manifest, run, Verification.FIRST)
    assert not verify_for_restore(folder, manifest, run, Verification.FIRST)
    assert verify_for_restore(folder, manifest, run, Verification.ALWAYS)
    _alter(folder)
    with pytest.raises(DataError, match="altered"):
        verify_for_restore(folder, manifest, run, Verification.FIRST)


@pytest.mark.parametrize("mode", ["first", "never"])
def test_small_images_are_compared_each_time(tmp_path: Path, mode: str) -> None:
    run = tmp_path / "run"
    folder, manifest = make_variant(tmp_path, "web")
    verify_for_restore(folder, manifest, run, Verification.FIRST)
    image = folder / "images" / "inventory.img"
    before = image.stat()
    image.write_bytes(image.read_bytes()[::-1])
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match=r"altered: images/inventory\.img"):
        verify_for_restore(folder, manifest, run, Verification(mode))


def test_altered_pages_pass_only_where_that_was_asked_for(tmp_path: Path) -> None:
    folder, manifest = make_variant(tmp_path, "web")
    _alter(folder)
    assert not verify_for_restore(folder, manifest, tmp_path / "run", Verification.NEVER)
    with pytest.raises(DataError, match="altered"):
        verify_for_restore(folder, manifest, tmp_path / "run", Verification.FIRST)


def test_sizes_are_checked_even_when_digests_are_not(tmp_path: Path) -> None:
    folder, manifest = make_variant(tmp_path, "web")
    assert not verify_for_restore(folder, manifest, tmp_path / "run", Verification.NEVER)
    _truncate(folder)
    with pytest.raises(DataError, match="4096 bytes"):
        verify_for_restore(folder, manifest, tmp_path / "run", Verification.NEVER)
