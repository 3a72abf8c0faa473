"""`coldstart snap copy|gc` and what `list`, `show` and `verify` say of stores, as the installed command."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coldstart_snapshot.kept.manifest import write_manifest
from conftest import Coldstart, Result, wait_until
from fs.servers import FaultyHandler, faulty_server, silence
from snapshot.made import make_variant
from snapshot.stores import Host, Memory


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of another host."""
    return {
        "COLDSTART_STATE_DIR": str(tmp_path / "other/state"),
        "COLDSTART_RUN_DIR": str(tmp_path / "other/run"),
    }


def _document(result: Result, schema: str) -> dict[str, Any]:
    assert result.status == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    assert (document["schema"], document["version"]) == (f"coldstart.snap.{schema}", 1)
    return document


def test_a_snapshot_is_copied_listed_checked_fetched_and_shown_with_its_origin(
    coldstart: Coldstart, tmp_path: Path, store: Path, elsewhere: dict[str, str]
) -> None:
    _, manifest = make_variant(tmp_path / "coldstart/state", "web")
    rehearsed = coldstart("snap", "copy", "web", "--to", store, "--dry-run")
    assert (rehearsed.status, store.exists()) == (0, False), rehearsed.stderr
    (sent,) = _document(coldstart("snap", "copy", "web", "--to", store, "--json"), "copy")["snapshots"]
    assert sent["size_bytes"] == manifest.size_bytes
    assert sent["new_bytes"] < manifest.size_bytes  # the same pages again and again
    (listed,) = _document(coldstart("snap", "list", "--store", store, "--json"), "list.stored")["versions"]
    assert (listed["digest"], listed["captured"]) == (sent["digest"], manifest.created)
    checked = coldstart("snap", "verify", "web", "--store", store, "--json")
    assert _document(checked, "verify.stored")["complete"]

    refused = coldstart("snap", "copy", "web", "--from", store, environment=elsewhere)
    assert (refused.status, "a snapshot is code" in refused.stderr) == (77, True)
    pinned = f"web@{sent['digest']}"
    fetched = coldstart("snap", "copy", pinned, "--from", store, "--json", environment=elsewhere)
    assert _document(fetched, "copy")["snapshots"][0]["trust"] == "pinned"
    assert coldstart("snap", "verify", "web", environment=elsewhere).status == 0
    shown = _document(coldstart("snap", "show", "web", "--json", environment=elsewhere), "show")
    assert (shown["digest"], shown["origin"]["trust"]) == (sent["digest"], "pinned")
    text = coldstart("snap", "show", "web", environment=elsewhere).stdout
    assert f"from {store}, its digest was given" in " ".join(text.split())
    assert "made on this host" in coldstart("snap", "show", "web").stdout


def test_a_later_capture_of_this_host_is_not_replaced_unasked(
    coldstart: Coldstart, tmp_path: Path, store: Path, elsewhere: dict[str, str]
) -> None:
    make_variant(tmp_path / "coldstart/state", "web")
    (sent,) = _document(coldstart("snap", "copy", "web", "--to", store, "--json"), "copy")["snapshots"]
    folder, manifest = make_variant(tmp_path / "other/state", "web")
    write_manifest(folder, replace(manifest, created="2026-02-02T00:00:00Z"))
    fetched = coldstart("snap", "copy", "web", "--from", store, "--trust", "--json", environment=elsewhere)
    assert _document(fetched, "copy")["snapshots"][0]["skipped"]
    pinned = f"web@{sent['digest']}"
    fetched = coldstart("snap", "copy", pinned, "--from", store, "--json", environment=elsewhere)
    assert _document(fetched, "copy")["snapshots"][0]["replaced"]


def test_a_fetch_that_is_killed_is_not_listed_and_the_next_goes_on(
    coldstart: Coldstart, tmp_path: Path, store: Path
) -> None:
    here, there = Host(tmp_path / "here"), tmp_path / "coldstart/state"
    here.capture("web", Memory.random(8000))
    here.send("web", store, compression=None)
    with faulty_server(store) as server:
        asked = 0

        def go_silent(handler: FaultyHandler) -> bool:
            nonlocal asked
            asked += "/packs/" in handler.path
            return asked > 4 and silence(handler)

        server.fault = go_silent
        command = [coldstart.program, "snap", "copy", "web", "--from", server.url, "--trust"]
        process = subprocess.Popen(command, env=coldstart.environment, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: asked > 4 and _written(there) > 1 << 20, "some memory of the snapshot")
        finally:
            process.kill()
            process.wait(60)
        assert _document(coldstart("snap", "list", "--json"), "list")["snapshots"] == []
        server.fault = lambda _: False
        again = coldstart("snap", "copy", "web", "--from", server.url, "--trust", "--json")
        (fetched,) = _document(again, "copy")["snapshots"]
    assert fetched["kept_bytes"] >= 1 << 20
    assert coldstart("snap", "verify", "web").status == 0


def _written(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("pages-*.img"))


def test_a_pack_that_is_gone_is_found_by_a_look_at_the_store(
    coldstart: Coldstart, tmp_path: Path, store: Path
) -> None:
    make_variant(tmp_path / "coldstart/state", "web")
    assert coldstart("snap", "copy", "web", "--to", store).status == 0
    next((store / "snapshots/packs").rglob("*.pack")).unlink()
    result = coldstart("snap", "verify", "web", "--store", store)
    assert result.status == 65
    assert "pack is not in the store" in " ".join(result.stderr.split())


def test_a_collection_rehearses_and_tells_what_it_keeps(
    coldstart: Coldstart, tmp_path: Path, store: Path
) -> None:
    make_variant(tmp_path / "coldstart/state", "web")
    assert coldstart("snap", "copy", "web", "--to", store).status == 0
    found = _document(coldstart("snap", "gc", "--store", store, "--dry-run", "--json"), "gc")
    assert (len(found["kept"]), found["dropped"], found["removed"]) == (1, [], [])
    here = _document(coldstart("snap", "gc", "--json"), "gc")
    assert here["removed"] == []
    assert coldstart("snap", "gc", "--store", store, "--keep", "0").status == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name either the store to copy to or the one to fetch from"),
        (("--to", "a", "--from", "b"), "name either the store to copy to or the one to fetch from"),
        (("--to", "a", "--trust"), "an option of --from"),
        (("--from", "a", "--sign", "key"), "an option of --to"),
        (("--to", "ftp://host/a"), "unknown kind of store"),
    ],
)
def test_what_makes_no_sense_is_refused(coldstart: Coldstart, arguments: tuple[str, ...], words: str) -> None:
    result = coldstart("snap", "copy", "web", *arguments)
    assert result.status == 2
    assert words in " ".join(result.stderr.split())


def test_an_address_without_snapshots_is_refused_with_how_to_copy_one(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    for arguments in (("copy", "web", "--from"), ("list", "--store"), ("gc", "--store")):
        result = coldstart("snap", *arguments, tmp_path / "nothing")
        assert result.status == 66
        assert "there are no snapshots at this address" in " ".join(result.stderr.split())
