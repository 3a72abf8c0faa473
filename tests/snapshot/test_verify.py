"""Truncated, altered, missing and foreign files are found; what was verified is not read twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_snapshot.verify import Verification, check_files, verify_files, verify_for_restore
from snapshot.made import make_variant


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


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (_truncate, "file has 4096 bytes instead of 2097152: images/pages-1.img"),
    (_alter, "file was altered: images/pages-1.img"),
    (_delete, "file is missing: images/inventory.img"),
    (_add, "file is not in the manifest: images/core-1.img"),
    (_link, "not a regular file: bundle/config.json"),
]


@pytest.mark.parametrize(("damage", "problem"), DAMAGE)
def test_each_kind_of_damage_is_named(tmp_path: Path, damage: Callable[[Path], None], problem: str) -> None:
    folder, manifest = make_variant(tmp_path, "web")
    verify_files(folder, manifest)
    damage(folder)
    with pytest.raises(DataError, match=problem):
        verify_files(folder, manifest)
    assert check_files(folder, manifest).problems == (problem,)


def test_digests_are_computed_once_until_a_file_changes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folder, manifest = make_variant(tmp_path, "web")
    assert verify_for_restore(folder, manifest, run, Verification.FIRST)
    assert not verify_for_restore(folder, manifest, run, Verification.FIRST)
    assert verify_for_restore(folder, manifest, run, Verification.ALWAYS)
    _alter(folder)
    with pytest.raises(DataError, match="altered"):
        verify_for_restore(folder, manifest, run, Verification.FIRST)


def test_sizes_are_checked_even_when_digests_are_not(tmp_path: Path) -> None:
    folder, manifest = make_variant(tmp_path, "web")
    assert not verify_for_restore(folder, manifest, tmp_path / "run", Verification.NEVER)
    _truncate(folder)
    with pytest.raises(DataError, match="4096 bytes"):
        verify_for_restore(folder, manifest, tmp_path / "run", Verification.NEVER)
