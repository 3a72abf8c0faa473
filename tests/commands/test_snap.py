"""`coldstart snap create|list|show|verify|remove` as the installed command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coldstart_snapshot.containers.runc import Runc
from coldstart_snapshot.kept.manifest import ReadyCheck, write_manifest
from conftest import Coldstart, Result, wait_until
from snapshot.made import make_variant
from snapshot.servers import Lab, ask, free_port, laboratory, url


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


@pytest.fixture
def state(tmp_path: Path, isolated_environment: None) -> Path:
    return tmp_path / "coldstart" / "state"


def _document(result: Result, schema: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.stdout)
    assert (document["schema"], document["version"]) == (f"coldstart.snap.{schema}", 1)
    return document


def test_a_container_is_captured_listed_shown_verified_and_removed(coldstart: Coldstart, lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    result = coldstart(
        "snap", "create", "web", "--container", container.id, "--ready-url", url(port), "--json"
    )
    assert result.status == 0, result.stderr
    created = _document(result, "create")
    assert created["published"]
    assert not created["stopped"]
    assert created["size_bytes"] > 1_000_000
    assert ask(port) == "1"

    (listed,) = _document(coldstart("snap", "list", "--json"), "list")["snapshots"]
    assert (listed["name"], listed["variant"]) == ("web", created["variant"])
    assert listed["size_bytes"] == created["size_bytes"]
    shown = _document(coldstart("snap", "show", "web", "--json"), "show")
    assert shown["ready"] == {"url": url(port), "timeout_seconds": 600.0}
    assert shown["root"]["kind"] == "overlay"
    assert shown["process"]["listen"] == [f"127.0.0.1:{port}"]
    text = coldstart("snap", "show", "web").stdout
    assert f"127.0.0.1:{port}" in text
    assert "server goes" not in text

    assert _document(coldstart("snap", "verify", "web", "--json"), "verify")["sound"]
    rehearsed = coldstart("snap", "remove", "web", "--dry-run")
    assert rehearsed.stdout == f"would remove web/{created['variant']}\n"
    removed = coldstart("snap", "remove", "web")
    assert (removed.status, removed.stdout) == (0, f"removed web/{created['variant']}\n")
    assert _document(coldstart("snap", "list", "--json"), "list")["snapshots"] == []


def test_a_stopped_server_comes_back_stopped_which_is_said_to_who_wants_no_notes_too(
    coldstart: Coldstart, lab: Lab
) -> None:
    pid, _, _ = lab.start_process(free_port())
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: " T " in Path(f"/proc/{pid}/stat").read_text(), "the server to be stopped")
    result = coldstart("snap", "create", "web", "--pid", str(pid), "-q")
    assert result.status == 0, result.stderr
    assert "warning: process" in result.stderr
    assert "is stopped, and comes back so" in result.stderr


def test_secrets_in_the_ready_url_are_not_shown(coldstart: Coldstart, state: Path) -> None:
    folder, manifest = make_variant(state, "web")
    ready = ReadyCheck("http://127.0.0.1:8000/health?api_key=sk-very-secret&deep=1", 5.0)
    write_manifest(folder, replace(manifest, ready=ready))
    shown = coldstart("snap", "show", "web")
    assert "http://127.0.0.1:8000/health?api_key=[redacted]&deep=1 within 5 s" in shown.stdout
    assert "very-secret" not in coldstart("snap", "show", "web", "--json").stdout
    assert "very-secret" in (folder / "manifest.toml").read_text()


def test_a_second_capture_says_replaced_and_a_dry_run_only_would(coldstart: Coldstart, lab: Lab) -> None:
    pid, _, _ = lab.start_process(port := free_port())
    rehearsed = coldstart("snap", "create", "web", "--pid", str(pid), "--dry-run")
    assert rehearsed.stdout.startswith("would create web/")
    assert coldstart("snap", "list").stdout.splitlines()[1:] == []
    assert coldstart("snap", "create", "web", "--pid", str(pid)).stdout.startswith("created web/")
    assert coldstart("snap", "create", "web", "--pid", str(pid), "--stop").stdout.startswith("replaced web/")
    with pytest.raises(OSError):
        ask(port)


def test_a_server_that_does_not_get_ready_is_exit_75_with_its_last_answer(
    coldstart: Coldstart, lab: Lab
) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port, "unready")
    result = coldstart(
        "snap",
        "create",
        "web",
        "--container",
        container.id,
        "--ready-url",
        url(port),
        "--ready-timeout",
        "0.2",
    )
    assert result.status == 75
    assert "server is not ready after 0.2 s" in result.stderr
    assert "Connection refused" in result.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_capture_leaves_the_server_serving(
    coldstart: Coldstart, lab: Lab, number: signal.Signals, status: int
) -> None:
    port = free_port()
    container, overlay, _ = lab.start("web", port)
    # a writable layer that takes a while to archive
    with (overlay.root / "srv" / "large").open("wb") as stream:
        stream.truncate(4 << 30)
    runc = Runc.find(None, lab.runc_root)

    def container_status() -> str:
        state = runc.state(container.id)
        assert state is not None
        return state.status

    arguments = [
        "snap",
        "create",
        "web",
        "--container",
        container.id,
        "--ready-url",
        url(port),
    ]
    with subprocess.Popen(
        [coldstart.program, *arguments],
        env=coldstart.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        wait_until(lambda: container_status() == "paused", "the container is frozen")
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == status
    assert container_status() == "running"
    assert ask(port) == "1"
    assert not (lab.config.state_folder / "snapshots" / "web").exists()


def test_bad_requests_end_in_their_own_exit_codes(coldstart: Coldstart, lab: Lab) -> None:
    assert coldstart("snap", "create", "web").status == 2
    assert coldstart("snap", "create", "web", "--pid", "1", "--container", "x").status == 2
    assert coldstart("snap", "create", "../web", "--pid", "1").status == 2
    assert coldstart("snap", "create", "web", "--container", "cs-absent").status == 66
    assert coldstart("snap", "create", "web", "--pid", "4194304").status == 66
    assert coldstart("snap", "create", "web", "--pid", str(os.getpid())).status == 65
    assert coldstart("snap", "create", "web", "--pid", "1", "--ready-url", "nonsense").status == 2


def test_a_wrong_name_is_exit_66_with_the_right_one(coldstart: Coldstart, state: Path) -> None:
    make_variant(state, "web-server")
    for verb in ("show", "verify", "remove", "list"):
        result = coldstart("snap", verb, "web-sever")
        assert result.status == 66, verb
        assert "did you mean `web-server`?" in result.stderr


def test_damage_is_exit_65_and_names_the_file(coldstart: Coldstart, state: Path) -> None:
    folder, manifest = make_variant(state, "web")
    os.truncate(folder / "images" / "pages-1.img", 10)
    result = coldstart("snap", "verify", "web", "--json")
    assert result.status == 65
    (variant,) = _document(result, "verify")["variants"]
    assert variant == {
        "variant": manifest.variant,
        "sound": False,
        "files": 3,
        "size_bytes": manifest.size_bytes,
        "problems": ["file has 10 bytes instead of 2097152: images/pages-1.img"],
    }
    assert "snapshot is damaged: web" in result.stderr


def test_a_manifest_that_cannot_be_read_does_not_hide_the_others(coldstart: Coldstart, state: Path) -> None:
    make_variant(state, "api")
    folder, _ = make_variant(state, "web")
    (folder / "manifest.toml").write_text("nonsense")
    result = coldstart("snap", "list", "--json")
    assert result.status == 0
    entries = _document(result, "list")["snapshots"]
    assert [(entry["name"], entry["problem"] is None) for entry in entries] == [("api", True), ("web", False)]
    assert "damaged" in result.stderr


def test_a_snapshot_of_a_newer_version_is_not_called_damaged(coldstart: Coldstart, state: Path) -> None:
    folder, manifest = make_variant(state, "web")
    path = folder / "manifest.toml"
    path.write_text(path.read_text().replace("version = 1\n", "version = 2\n", 1))
    listed = coldstart("snap", "list")
    assert listed.status == 0
    assert [line.split()[:2] for line in listed.stdout.splitlines()][-1] == ["web", manifest.variant]
    assert "of a newer version" in listed.stdout
    assert "damaged" not in listed.stdout + listed.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_capturing_without_root_is_refused_with_the_remedy() -> None:
    # everything is imported before: another user may not be able to read this checkout
    code = """
import os
from coldstart_cli.config import load
from coldstart_cli.errors import PermissionNeededError
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
config = load()
os.setgid(65534); os.setuid(65534)
try:
    create_snapshot(CaptureRequest("web", container_id="one"), config)
except PermissionNeededError as error:
    print(error, "-", error.hint)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "capturing containers needs root - run with sudo\n"
