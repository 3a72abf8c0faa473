from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from conftest import Coldstart, wait_until
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
        budget = document["budget"]
        assert budget["nonzero_bytes"] > 1 << 20
        assert budget["fault_bytes_per_second"] > 0
        assert set(budget["seconds"]) == {"verify", "criu", "gpu", "ready"}
        assert ask(replica.port) == "1"
        assert ask(replica.port, "/file") == "1"
        assert replica.coldstart("snap", "restore", snapshot, *options, "--stop").status == 0
    assert not answers(replica.port)


def test_a_snapshot_comes_back_on_a_host_whose_folders_are_all_others(
    replica: Replica, snapshot: str, tmp_path: Path
) -> None:
    """State, runtime, cache and log folders are elsewhere; the image is mounted anew, at another place."""
    state_folder = Path(replica.coldstart.environment["COLDSTART_STATE_DIR"])
    other = tmp_path / "another host"
    other.mkdir(mode=0o700)
    shutil.copytree(state_folder / "snapshots", other / "state" / "snapshots")
    shutil.rmtree(state_folder)
    for name in ("STATE", "RUN", "CACHE"):
        replica.coldstart.environment[f"COLDSTART_{name}_DIR"] = str(other / name.lower())
    restore = ["snap", "restore", snapshot, "--id", f"{snapshot}-b", "--no-fallback"]
    result = replica.coldstart(*restore, "--detach", "--json")
    assert result.status == 0, result.stderr
    try:
        document = json.loads(result.stdout)
        assert (ask(replica.port), ask(replica.port, "/file")) == ("1", "1")
        assert Path(document["log"]).read_text() == "request 1\n"
        assert document["log"].startswith(str(other))
        assert document["root"].startswith(str(other))
    finally:
        assert replica.coldstart(*restore, "--stop").status == 0
    assert not answers(replica.port)


def test_a_restore_in_the_foreground_ends_with_sigterm(replica: Replica, snapshot: str) -> None:
    process = replica.foreground("snap", "restore", snapshot)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
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
        process.communicate(timeout=60)
        assert process.returncode == 143
        assert not answers(replica.port)


def test_pages_altered_after_their_first_use_are_found_by_verify_always(
    replica: Replica, snapshot: str
) -> None:
    folder = Path(replica.coldstart.environment["COLDSTART_STATE_DIR"]) / "snapshots" / snapshot
    pages = max(folder.glob("*/images/pages-*.img"), key=lambda path: path.stat().st_size)
    rehearse = ["snap", "restore", snapshot, "--dry-run"]
    assert replica.coldstart(*rehearse, "--verify", "always").status == 0
    with pages.open("r+b") as stream:
        stream.write(b"altered")
    assert replica.coldstart(*rehearse, "--verify", "never").status == 0
    result = replica.coldstart(*rehearse, "--verify", "always")
    assert result.status == 65
    assert f"file was altered: images/{pages.name}" in result.stderr
    result = replica.coldstart(*rehearse, "--verify", "sometimes")
    assert result.status == 78
    assert "first, always, never" in result.stderr


def test_a_host_that_was_fit_a_moment_ago_and_is_not_now_ends_what_began_beside_the_check(
    replica: Replica, snapshot: str
) -> None:
    restore = ["snap", "restore", snapshot, "--detach"]
    # leaves a verdict that lets the next restore begin beside its own check
    assert replica.coldstart(*restore).status == 0
    assert replica.coldstart("snap", "restore", snapshot, "--stop").status == 0
    result = replica.coldstart(*restore, "--expect-gpus", "8")
    assert result.status == 3
    assert "nothing may be placed on this host" in result.stderr
    assert not answers(replica.port)
    assert not (replica.run_folder / "replicas" / snapshot).exists()
    # and the refusal is remembered: nothing is begun before the next verdict
    result = replica.coldstart(*restore, "--json")
    assert result.status == 0, result.stderr
    stages = {stage["name"]: stage for stage in json.loads(result.stdout)["stages"]}
    health = stages["health"]
    assert stages["restore"]["start_seconds"] >= health["start_seconds"] + health["duration_seconds"]


def test_a_staged_snapshot_is_restored_from_its_copy(replica: Replica, snapshot: str, tmp_path: Path) -> None:
    folder = tmp_path / "staged"
    stage = ["snap", "restore", snapshot, "--stage-only", "--stage-to", folder, "--json"]
    result = replica.coldstart(*stage)
    assert result.status == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema"] == "coldstart.snap.restore.stage"
    assert Path(document["folder"]).parent == folder / snapshot
    assert not answers(replica.port)
    # without its pages the stored variant could not be restored
    state = Path(replica.coldstart.environment["COLDSTART_STATE_DIR"])
    for pages in (state / "snapshots" / snapshot).glob("*/images/pages-*.img"):
        os.truncate(pages, 0)
    result = replica.coldstart("snap", "restore", snapshot, "--detach", "--no-fallback")
    assert result.status == 0, result.stderr
    assert ask(replica.port) == "1"


def test_a_folder_to_stage_to_needs_the_word_that_nothing_is_started(
    replica: Replica, tmp_path: Path
) -> None:
    result = replica.coldstart("snap", "restore", "web", "--stage-to", tmp_path)
    assert result.status == 2
    assert "--stage-only" in result.stderr


@pytest.mark.parametrize("container_id", ["../fresh", "..", "a b", "-x", "\u00fcn\u00ef", "", "i" * 64])
@pytest.mark.parametrize("option", ["--dry-run", "--detach", "--stop", "--stage-only"])
def test_an_id_that_cannot_be_one_is_refused_before_anything_is_made(
    coldstart: Coldstart, container_id: str, option: str
) -> None:
    result = coldstart("snap", "restore", "web", f"--id={container_id}", option)
    assert result.status == 2
    assert "--id is not usable as a container id" in result.stderr
    assert not list(Path(coldstart.environment["COLDSTART_RUN_DIR"]).glob("**/replicas"))


def test_only_a_name_is_taken_down(coldstart: Coldstart) -> None:
    run_folder = Path(coldstart.environment["COLDSTART_RUN_DIR"])
    (run_folder / "replicas" / "other").mkdir(parents=True)
    result = coldstart("snap", "restore", "../replicas", "--stop")
    assert result.status == 2
    assert (run_folder / "replicas" / "other").is_dir()


def test_an_empty_variant_is_not_the_default(coldstart: Coldstart) -> None:
    name = f"web@blake3:{'0' * 64}"
    assert coldstart("snap", "restore", name, "--variant", "", "--dry-run").status == 2
