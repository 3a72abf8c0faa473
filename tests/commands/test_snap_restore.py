from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from conftest import wait_until
from replicas import Replica
from small_root import answers, ask
from snapshot.servers import laboratory


@pytest.fixture
def snapshot(replica: Replica) -> str:
    """A snapshot of the small server whose source is gone: container, mounts, layers, state, cache."""
    assert replica.launch("--detach", "--snapshot-when-ready").status == 0
    assert ask(replica.port) == "1"
    assert replica.stop().status == 0
    shutil.rmtree(replica.run_folder)
    shutil.rmtree(replica.coldstart.environment["COLDSTART_CACHE_DIR"])
    replica.write(image='"gone"')
    return replica.name


def test_a_snapshot_alone_brings_the_server_back_under_its_own_and_another_id(
    replica: Replica, snapshot: str
) -> None:
    for options in ([], ["--id", f"{snapshot}-b"]):
        result = replica.coldstart("snap", "restore", snapshot, *options, "--detach", "--json")
        assert result.status == 0, result.stderr
        document = json.loads(result.stdout)
        assert (document["method"], document["name"]) == ("restore", options[-1] if options else snapshot)
        assert ask(replica.port) == "1"
        assert ask(replica.port, "/file") == "1"
        assert replica.coldstart("snap", "restore", snapshot, *options, "--stop").status == 0
    assert not answers(replica.port)


def test_a_restore_in_the_foreground_ends_with_sigterm(replica: Replica, snapshot: str) -> None:
    process = replica.foreground("snap", "restore", snapshot)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert not answers(replica.port)


def test_an_altered_file_is_refused_by_name_before_anything_starts(replica: Replica, snapshot: str) -> None:
    folder = Path(replica.coldstart.environment["COLDSTART_STATE_DIR"]) / "snapshots" / snapshot
    pages = max(folder.glob("*/images/pages-*.img"), key=lambda path: path.stat().st_size)
    os.truncate(pages, pages.stat().st_size - 4096)
    result = replica.coldstart("snap", "restore", snapshot, "--detach")
    assert result.status == 65
    assert pages.name in result.stderr
    assert not (replica.run_folder / "replicas" / snapshot).exists()


def test_a_taken_port_is_an_error_that_names_the_holder(replica: Replica, snapshot: str) -> None:
    assert replica.coldstart("snap", "restore", snapshot, "--detach").status == 0
    result = replica.coldstart(
        "snap", "restore", snapshot, "--id", f"{snapshot}-b", "--detach", "--no-fallback"
    )
    assert result.status == 75
    assert f"127.0.0.1:{replica.port}" in result.stderr
    assert ask(replica.port) == "1"


def test_a_snapshot_that_does_not_exist_is_66_with_near_matches(replica: Replica, snapshot: str) -> None:
    result = replica.coldstart("snap", "restore", snapshot[:-1] + "x", "--detach")
    assert result.status == 66
    assert f"did you mean `{snapshot}`" in result.stderr


def test_a_rehearsal_names_the_variant_and_starts_nothing(replica: Replica, snapshot: str) -> None:
    result = replica.coldstart("snap", "restore", snapshot, "--dry-run", "--json")
    assert result.status == 0
    assert json.loads(result.stdout)["variant"].startswith("x86-64-")
    assert not answers(replica.port)


def test_a_variant_that_this_cpu_lacks_flags_for_is_refused_with_their_names(
    replica: Replica, snapshot: str
) -> None:
    folder = Path(replica.coldstart.environment["COLDSTART_STATE_DIR"]) / "snapshots" / snapshot
    for manifest in folder.glob("*/manifest.toml"):
        text = manifest.read_text()
        assert '"avx2"' in text
        manifest.write_text(text.replace('"avx2"', '"avx2", "avx9000"'))
    result = replica.coldstart("snap", "restore", snapshot, "--detach")
    assert result.status == 69
    assert "avx9000" in result.stderr


def test_a_container_of_plain_runc_on_an_overlay_comes_back_by_command_after_its_source_was_deleted(
    replica: Replica, tmp_path: Path
) -> None:
    with laboratory(tmp_path) as lab:
        container, overlay, log = lab.start("source", replica.port)
        ask(replica.port)
        url = f"http://127.0.0.1:{replica.port}/health"
        created = replica.coldstart(
            "snap", "create", "plain", "--container", container.id, "--ready-url", url
        )
        assert created.status == 0, created.stderr
        assert ask(replica.port) == "2"  # the source went on serving
        lab.erase(container, overlay, log)
        restore = ["snap", "restore", "plain", "--id", f"{replica.name}-p"]
        result = replica.coldstart(*restore, "--detach")
        assert result.status == 0, result.stderr
        assert (ask(replica.port, "/file"), ask(replica.port)) == ("1", "2")
        assert (
            replica.coldstart("snap", "restore", "plain", "--id", f"{replica.name}-p", "--stop").status == 0
        )
        assert not answers(replica.port)


def test_a_plain_process_comes_back_by_command_and_ends_with_it(replica: Replica, tmp_path: Path) -> None:
    with laboratory(tmp_path) as lab:
        pid, _, _ = lab.start_process(replica.port)
        ask(replica.port)
        created = replica.coldstart("snap", "create", "process", "--pid", str(pid), "--stop")
        assert created.status == 0, created.stderr
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the original to end")
        process = replica.foreground("snap", "restore", "process")
        assert ask(replica.port) == "2"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 143
        assert not answers(replica.port)
