"""The snapshots of a host: listed, found, removed, published in one step."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, NotFoundError
from coldstart_snapshot.kept.inventory import (
    DamagedVariant,
    StoredVariant,
    list_variants,
    load_variant,
    publish,
    remove_snapshot,
    snapshot_lock,
    snapshot_names,
    staging_folder,
)
from snapshot.cpus import HASWELL, ROME
from snapshot.made import make_variant


def test_variants_are_listed_by_name_and_damaged_ones_are_shown_as_such(tmp_path: Path) -> None:
    make_variant(tmp_path, "web", HASWELL)
    folder, _ = make_variant(tmp_path, "web", ROME)
    make_variant(tmp_path, "api", HASWELL)
    (folder / "manifest.toml").write_text("nonsense")
    variants = list_variants(tmp_path)
    assert [type(variant) for variant in variants].count(DamagedVariant) == 1
    assert sorted({variant.manifest.name for variant in variants if isinstance(variant, StoredVariant)}) == [
        "api",
        "web",
    ]
    assert len(list_variants(tmp_path, "web")) == 2
    assert snapshot_names(tmp_path) == ("api", "web")


def test_a_folder_under_another_name_is_not_taken_for_its_snapshot(tmp_path: Path) -> None:
    folder, _ = make_variant(tmp_path, "web")
    folder.parent.rename(tmp_path / "snapshots" / "api")
    (found,) = list_variants(tmp_path, "api")
    assert isinstance(found, DamagedVariant)
    assert "was renamed" in found.problem


def test_a_wrong_name_is_answered_with_the_right_one(tmp_path: Path) -> None:
    make_variant(tmp_path, "web-server")
    with pytest.raises(NotFoundError, match="no such snapshot: web-sever") as caught:
        load_variant(tmp_path, "web-sever")
    assert caught.value.hint == "did you mean `web-server`?"
    with pytest.raises(NotFoundError, match="no such variant"):
        load_variant(tmp_path, "web-server", "x86-64-v9")


def test_among_several_variants_one_must_be_named(tmp_path: Path) -> None:
    _, manifest = make_variant(tmp_path, "web", HASWELL)
    make_variant(tmp_path, "web", ROME)
    with pytest.raises(NotFoundError, match="has 2 variants") as caught:
        load_variant(tmp_path, "web")
    assert "--variant" in str(caught.value.hint)
    assert load_variant(tmp_path, "web", manifest.variant).manifest == manifest


def test_one_variant_or_all_are_removed_with_what_a_crash_left(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folder, manifest = make_variant(tmp_path, "web", HASWELL)
    damaged, _ = make_variant(tmp_path, "web", ROME)
    (damaged / "manifest.toml").unlink()
    (folder.parent / ".x.123.tmp" / "images").mkdir(parents=True)
    assert remove_snapshot(tmp_path, run, "web", manifest.variant) == (manifest.variant,)
    assert [path.name for path in damaged.parent.iterdir()] == [damaged.name]
    assert remove_snapshot(tmp_path, run, "web") == (damaged.name,)
    assert not damaged.parent.exists()
    with pytest.raises(NotFoundError):
        remove_snapshot(tmp_path, run, "web")


def test_a_snapshot_in_use_is_not_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folder, _ = make_variant(tmp_path, "web")
    with (
        snapshot_lock(run, "web", shared=True),
        pytest.raises(BusyError, match="snapshot is in use: web"),
    ):
        remove_snapshot(tmp_path, run, "web")
    assert folder.exists()


def test_an_unpublished_folder_is_gone_and_invisible(tmp_path: Path) -> None:
    with staging_folder(tmp_path, "web", "v1") as staging:
        (staging / "images").mkdir()
        assert snapshot_names(tmp_path) == ()
    assert not (tmp_path / "snapshots" / "web").exists()


def test_publication_exchanges_old_and_new_in_one_step(tmp_path: Path) -> None:
    destination = tmp_path / "snapshots" / "web" / "v1"
    for turn in ("old", "new"):
        with staging_folder(tmp_path, "web", "v1") as staging:
            (staging / "file").write_text(turn)
            assert publish(staging, destination) == (turn == "new")
    assert (destination / "file").read_text() == "new"
    assert [path.name for path in destination.parent.iterdir()] == ["v1"]
