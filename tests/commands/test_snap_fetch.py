"""Snapshots that only a store has: `snap restore --from` and `launch` fetch them beside the mount."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fs.servers import FaultyHandler, FaultyServer, faulty_server, reset
from ports import free_port
from replicas import Replica
from small_root import answers, ask


@pytest.fixture
def store(replica: Replica, tmp_path: Path) -> Path:
    """A store with a snapshot of the small server, which answered once; the host has lost it."""
    assert replica.launch("--detach", "--snapshot-when-ready").status == 0
    assert replica.stop().status == 0
    copied = replica.coldstart("snap", "copy", replica.name, "--to", tmp_path / "snaps")
    assert copied.status == 0, copied.stderr
    assert replica.coldstart("snap", "remove", replica.name).status == 0
    return tmp_path / "snaps"


@pytest.fixture
def server(store: Path) -> Iterator[FaultyServer]:
    with faulty_server(store) as server:
        yield server


def _digest(replica: Replica, store: Path) -> str:
    listed = replica.coldstart("snap", "list", replica.name, "--store", store, "--json")
    (version,) = json.loads(listed.stdout)["versions"]
    return str(version["digest"])


def _listed(replica: Replica) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(replica.coldstart("snap", "list", "--json").stdout)["snapshots"]
    return found


def test_a_restore_from_a_store_ends_ready_and_leaves_the_variant_on_this_host(
    replica: Replica, store: Path
) -> None:
    untrusted = replica.coldstart("snap", "restore", replica.name, "--from", store, "--detach")
    assert (untrusted.status, "a snapshot is code" in untrusted.stderr) == (77, True)
    rehearsed = replica.coldstart("snap", "restore", replica.name, "--from", store, "--trust", "--dry-run")
    assert (rehearsed.status, _listed(replica)) == (0, [])
    result = replica.coldstart(
        "snap", "restore", replica.name, "--from", store, "--trust", "--detach", "--json"
    )
    assert result.status == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["method"] == "restore"
    assert {"fetch layer", "fetch memory", "mount", "restore"} <= {one["name"] for one in document["stages"]}
    assert ask(replica.port) == "1"
    assert replica.coldstart("snap", "restore", replica.name, "--stop").status == 0
    shutil.rmtree(store)
    again = replica.coldstart("snap", "restore", replica.name, "--detach", "--json")
    assert json.loads(again.stdout)["method"] == "restore", again.stderr


def test_a_launch_fetches_what_its_specification_pins(replica: Replica, store: Path) -> None:
    replica.coldstart.environment["COLDSTART_SNAPSHOT_STORE"] = str(store)
    replica.write(snapshot=f'"{replica.name}@{_digest(replica, store)}"')
    rehearsed = replica.launch("--dry-run", "--json")
    assert (json.loads(rehearsed.stdout)["method"], _listed(replica)) == ("restore", []), rehearsed.stderr
    result = replica.launch("--detach", "--json")
    assert result.status == 0, result.stderr
    assert json.loads(result.stdout)["method"] == "restore"
    assert ask(replica.port) == "1"
    shown = json.loads(replica.coldstart("snap", "show", replica.name, "--json").stdout)
    assert shown["origin"]["trust"] == "pinned"


def test_a_launch_starts_cold_rather_than_run_what_nobody_vouches_for(replica: Replica, store: Path) -> None:
    replica.coldstart.environment["COLDSTART_SNAPSHOT_STORE"] = str(store)
    result = replica.launch("--detach", "--json")
    assert json.loads(result.stdout)["method"] == "cold"
    assert "snapshot is not trusted" in " ".join(result.stderr.split())
    assert replica.stop().status == 0
    trusted = replica.launch("--detach", "--json", "--trust")
    assert json.loads(trusted.stdout)["method"] == "restore"


def test_another_snapshot_than_the_pinned_one_is_not_restored(replica: Replica, store: Path) -> None:
    assert replica.coldstart("snap", "copy", replica.name, "--from", store, "--trust").status == 0
    replica.write(snapshot=f'"{replica.name}@blake3:{"ab" * 32}"')
    result = replica.launch("--detach", "--json")
    assert json.loads(result.stdout)["method"] == "cold"
    assert "not the pinned one" in " ".join(result.stderr.split())


def test_a_store_that_is_lost_in_the_middle_costs_a_cold_start_on_a_clean_root(
    replica: Replica, store: Path, server: FaultyServer
) -> None:
    small = 0

    def lose_memory(handler: FaultyHandler) -> bool:
        nonlocal small
        small += "/packs/" in handler.path
        return small > 1 and reset(handler)  # the first brings the small files, the others memory

    server.fault = lose_memory
    digest = _digest(replica, store)
    pinned = f"{replica.name}@{digest}"
    failed = replica.coldstart("snap", "restore", pinned, "--from", server.url, "--detach", "--no-fallback")
    assert failed.status != 0
    assert not answers(replica.port)
    assert _listed(replica) == []
    small = 1  # the small files are kept from the first try
    result = replica.coldstart("snap", "restore", pinned, "--from", server.url, "--detach", "--json")
    assert result.status == 0, result.stderr
    assert json.loads(result.stdout)["method"] == "cold"
    assert ask(replica.port) == "1"
    assert _listed(replica) == []
    assert sorted(path.name for path in (replica.run_folder / "replicas").glob("*/")) == [replica.name]


def test_a_store_that_is_down_is_said_and_costs_a_cold_start(replica: Replica) -> None:
    replica.coldstart.environment["COLDSTART_SNAPSHOT_STORE"] = f"http://127.0.0.1:{free_port()}/snaps"
    result = replica.launch("--detach", "--json")
    assert json.loads(result.stdout)["method"] == "cold"
    assert "cannot reach" in " ".join(result.stderr.split())
    assert replica.stop().status == 0
    assert replica.launch("--detach", "--no-fallback").status == 75
