"""What `snap gc` removes from stores and hosts, what it keeps, and which images snapshots keep."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_commands.image_gc import images_in_use
from coldstart_fs.format.names import parse_digest
from coldstart_fs.stores import collect as collecting
from coldstart_fs.stores.leases import lease
from coldstart_fs.stores.store_url import open_store
from coldstart_snapshot.distribution.distribute import SnapshotReference
from coldstart_snapshot.distribution.receive import Incoming, find_offer
from coldstart_snapshot.distribution.retention import StoreRetention, collect_host, collect_store
from coldstart_snapshot.kept.inventory import snapshot_lock
from snapshot.made import IMAGE
from snapshot.stores import TRUSTED, Host, Memory

DAY = 86400.0


@pytest.fixture
def here(tmp_path: Path) -> Host:
    return Host(tmp_path / "here")


@pytest.fixture
def store(tmp_path: Path, here: Host) -> Path:
    """A store with four versions of a variant, and one of another snapshot."""
    for day in range(1, 5):
        here.capture("web", Memory.random(40), created=f"2026-01-0{day}T00:00:00Z")
        here.send("web", tmp_path / "store")
    here.capture("other", Memory.random(10))
    here.send("other", tmp_path / "store")
    return tmp_path / "store"


def _collect(here: Host, store: Path, *, dry_run: bool = False, keep: int = 2) -> StoreRetention:
    return collect_store(here.store(store), here.config, keep=keep, grace_seconds=7 * DAY, dry_run=dry_run)


def _captured(here: Host, store: Path) -> list[str]:
    return [f"{one.name} {one.captured[:10]}" for one in here.store(store).versions()]


def test_the_newest_versions_are_kept_and_the_data_of_others_goes_after_the_grace_time(
    here: Host, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed = _collect(here, store, dry_run=True)
    assert len(_captured(here, store)) == 5
    found = _collect(here, store)
    assert found.dropped == rehearsed.dropped
    assert [one.captured[:10] for one in found.dropped] == ["2026-01-02", "2026-01-01"]
    assert _captured(here, store) == ["other 2026-01-02", "web 2026-01-03", "web 2026-01-04"]
    assert (found.removed, found.condemned) == ((), ())  # written a moment ago
    real = time.time
    monkeypatch.setattr(collecting.time, "time", lambda: real() + 8 * DAY)
    condemned = _collect(here, store)
    assert condemned.removed == ()
    assert {one.key.partition("/")[0] for one in condemned.condemned} == {
        "documents",
        "locators",
        "maps",
        "packs",
    }
    monkeypatch.setattr(collecting.time, "time", lambda: real() + 16 * DAY)
    removed = _collect(here, store)
    assert {one.key for one in removed.removed} == {one.key for one in condemned.condemned}
    there = Host(tmp_path / "there")
    for name in ("web", "other"):
        there.fetch(name, store)
    assert there.names() == ["other", "web"]


def test_a_leased_version_stays(here: Host, store: Path) -> None:
    oldest = here.store(store).versions("web")[0]
    lease(open_store(str(store / "snapshots")), oldest.digest, "replica")
    _collect(here, store)
    assert _captured(here, store) == [
        "other 2026-01-02",
        "web 2026-01-01",
        "web 2026-01-03",
        "web 2026-01-04",
    ]


def test_nothing_goes_while_a_name_cannot_be_read(here: Host, store: Path) -> None:
    name = next((store / "snapshots/refs/other").rglob("2026*"))
    name.write_text("{")
    with pytest.raises(DataError):
        _collect(here, store)
    assert len(list((store / "snapshots/refs").rglob("2026*"))) == 5


def test_a_host_loses_what_interruptions_left_and_nothing_that_somebody_is_at_work_in(
    here: Host, store: Path, tmp_path: Path
) -> None:
    variant = here.capture("web", Memory.random(4)).variant
    folder = here.config.state_folder / "snapshots/web"
    (folder / f".{variant}.abc.tmp").mkdir()
    (folder / f".{variant}.abc.tmp/pages").write_bytes(b"x" * 10_000)
    there = Host(tmp_path / "there")
    target = there.store(store)
    with Incoming(find_offer(SnapshotReference("web"), target, TRUSTED), target, there.config) as incoming:
        incoming.begin()
        assert collect_host(there.config, grace_seconds=0, dry_run=False) == ()
    with snapshot_lock(here.config.run_folder, "web"):
        assert collect_host(here.config, grace_seconds=0, dry_run=False) == ()
    (rehearsed,) = collect_host(here.config, grace_seconds=0, dry_run=True)
    assert collect_host(here.config, grace_seconds=0, dry_run=False) == (rehearsed,)
    assert rehearsed.kind == "capture"
    assert [path.name for path in folder.iterdir()] == [variant]
    # an interrupted fetch may still be gone on with
    assert collect_host(there.config, grace_seconds=DAY, dry_run=False) == ()
    (part,) = collect_host(there.config, grace_seconds=0, dry_run=False)
    assert part.kind == "fetch"
    assert list((there.config.state_folder / "snapshots").iterdir()) == []


def test_an_image_is_in_use_while_a_snapshot_of_this_host_or_of_the_store_needs_it(
    here: Host, tmp_path: Path
) -> None:
    here.capture("web", Memory.random(2))
    here.send("web", tmp_path / "store")
    assert parse_digest(IMAGE) in images_in_use(here.config)
    elsewhere = Host(tmp_path / "there", store=str(tmp_path / "store"))
    assert images_in_use(elsewhere.config) == {parse_digest(IMAGE)}
    configured = Host(tmp_path / "third", **{"snapshot.store": str(tmp_path / "store")})
    assert images_in_use(configured.config) == {parse_digest(IMAGE)}
    assert images_in_use(Host(tmp_path / "none").config) == set()


def test_no_image_is_removed_while_a_snapshot_does_not_say_which_it_needs(here: Host, tmp_path: Path) -> None:
    manifest = here.capture("web", Memory.random(2))
    path = here.config.state_folder / "snapshots/web" / manifest.variant / "manifest.toml"
    path.write_bytes(os.urandom(100))
    with pytest.raises(DataError, match="not known which image"):
        images_in_use(here.config)
