"""A staged snapshot is hot, verified, used by the next restore, and no burden on the host's memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_cli.config import Config, load
from coldstart_cli.errors import CannotCreateError, DataError, IoFailure
from coldstart_snapshot.kept.inventory import remove_snapshot
from coldstart_snapshot.kept.manifest import Manifest, write_manifest
from coldstart_snapshot.kept.verify import digest_files
from coldstart_snapshot.restoring import stage
from coldstart_snapshot.restoring.page_cache import cold_bytes
from coldstart_snapshot.restoring.restore import RestorePlan, plan_restore
from coldstart_snapshot.restoring.stage import stage_snapshot
from conftest import umount
from snapshot.made import make_variant
from snapshot.servers import require_engine


@pytest.fixture
def config() -> Config:
    require_engine()
    return load()


@pytest.fixture
def variant(config: Config) -> tuple[Path, Manifest]:
    """A variant without GPU state, of which a plan can be made here."""
    folder, manifest = make_variant(config.state_folder, "web")
    plain = replace(manifest, gpu=None)
    write_manifest(folder, plain)
    folder.chmod(0o700)
    return folder, plain


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 16 MiB."""
    point = tmp_path / "memory"
    point.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(point)], check=True, timeout=20
    )
    yield point
    umount(point)


def _planned(config: Config) -> RestorePlan:
    return plan_restore("web", config)


def test_a_copy_in_memory_is_what_the_next_restore_reads(
    config: Config, variant: tuple[Path, Manifest], memory: Path
) -> None:
    folder, manifest = variant
    assert _planned(config).folder == folder
    rehearsed = stage_snapshot("web", config, destination=memory, dry_run=True)
    assert rehearsed.moved_bytes == rehearsed.size_bytes
    assert list(memory.iterdir()) == []
    staged = stage_snapshot("web", config, destination=memory)
    assert staged.warnings == ()
    assert staged.folder == memory / "web" / manifest.variant
    assert {path.stat().st_mode & 0o777 for path in staged.folder.rglob("*.img")} == {0o600}
    plan = _planned(config)
    assert plan.folder == staged.folder
    # the copy was verified when it was made
    assert plan.verified.bulk_bytes == 0
    # and is not made again
    assert stage_snapshot("web", config, destination=memory).moved_bytes == 0
    assert digest_files(staged.folder) == manifest.files


def test_a_damaged_copy_is_passed_over_with_a_warning(
    config: Config, variant: tuple[Path, Manifest], memory: Path
) -> None:
    staged = stage_snapshot("web", config, destination=memory)
    with (staged.folder / "images" / "pages-1.img").open("r+b") as stream:
        stream.write(b"altered")
    plan = _planned(config)
    assert plan.folder == variant[0]
    assert any("staged copy is not used" in warning for warning in plan.warnings)


def test_a_copy_of_an_earlier_capture_is_not_used(
    config: Config, variant: tuple[Path, Manifest], memory: Path
) -> None:
    folder, manifest = variant
    stage_snapshot("web", config, destination=memory)
    (folder / "images" / "core-1.img").write_bytes(b"another capture")
    write_manifest(folder, replace(manifest, files=digest_files(folder)))
    assert _planned(config).folder == folder
    # and gives way to one of this capture
    staged = stage_snapshot("web", config, destination=memory)
    assert (staged.folder / "images" / "core-1.img").exists()
    assert [path.name for path in (memory / "web").iterdir()] == [manifest.variant]


def test_a_damaged_snapshot_is_not_staged(
    config: Config, variant: tuple[Path, Manifest], memory: Path
) -> None:
    with (variant[0] / "images" / "pages-1.img").open("r+b") as stream:
        stream.write(b"altered")
    for destination in (memory, None):
        with pytest.raises(DataError, match=r"altered: images/pages-1\.img"):
            stage_snapshot("web", config, destination=destination)
    assert list((memory / "web").iterdir()) == []


def test_a_folder_without_room_keeps_nothing(
    config: Config, variant: tuple[Path, Manifest], memory: Path
) -> None:
    (memory / "ballast").write_bytes(bytes(15 << 20))
    with pytest.raises(CannotCreateError, match="No space left"):
        stage_snapshot("web", config, destination=memory)
    assert list((memory / "web").iterdir()) == []
    assert _planned(config).folder == variant[0]


def test_memory_that_the_host_needs_is_not_taken(
    config: Config, variant: tuple[Path, Manifest], memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "available_memory", lambda: 1 << 30)
    for destination in (memory, None):
        with pytest.raises(CannotCreateError, match="not enough memory to stage"):
            stage_snapshot("web", config, destination=destination, dry_run=True)


def test_a_folder_on_a_disk_is_warned_of(
    config: Config, variant: tuple[Path, Manifest], tmp_path: Path
) -> None:
    if stage._is_memory(tmp_path):
        pytest.skip("the folder of the tests is in memory")
    staged = stage_snapshot("web", config, destination=tmp_path / "disk")
    assert staged.warnings == (f"folder is on no file system in memory: {tmp_path / 'disk'}",)


def test_the_page_cache_has_everything_afterwards(config: Config, variant: tuple[Path, Manifest]) -> None:
    pages = variant[0] / "images" / "pages-1.img"
    descriptor = os.open(pages, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if cold_bytes((pages,)) == 0:
        pytest.skip("the file system of the tests does not let go of its page cache")
    assert stage_snapshot("web", config, dry_run=True).moved_bytes > 0
    assert stage_snapshot("web", config).moved_bytes > 0
    assert cold_bytes((pages,)) == 0
    assert stage_snapshot("web", config).moved_bytes == 0


def test_a_removed_snapshot_takes_its_copy_along(
    config: Config, variant: tuple[Path, Manifest], memory: Path
) -> None:
    staged = stage_snapshot("web", config, destination=memory)
    remove_snapshot(config.state_folder, config.run_folder, "web")
    assert not staged.folder.exists()


def test_a_file_that_vanished_is_named_as_damage(config: Config, variant: tuple[Path, Manifest]) -> None:
    (variant[0] / "images" / "pages-1.img").unlink()
    with pytest.raises((DataError, IoFailure)):
        stage_snapshot("web", config)
