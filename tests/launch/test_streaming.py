"""Weights are read beside a restore: where the container sees them, and within what memory there is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from coldstart_launch import streaming as module
from coldstart_launch.streaming import host_path, streaming
from coldstart_launch.waterfall import Waterfall
from conftest import wait_until


def _file(path: Path, size_bytes: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size_bytes))
    return path


def test_files_and_folders_of_the_container_are_read_once_and_shown_in_the_waterfall(tmp_path: Path) -> None:
    root, models = tmp_path / "root", tmp_path / "models"
    _file(root / "srv/small.safetensors", 3 << 20)
    _file(models / "a.safetensors", 20 << 20)
    _file(models / "notes.txt", 1 << 20)
    # as in the cache of Hugging Face's hub
    os.symlink("../models/a.safetensors", models / "again.safetensors")
    waterfall = Waterfall()
    paths = ["/srv/small.safetensors", "/models", "/models/a.safetensors"]
    with streaming(paths, root, {"/models": models}, waterfall) as streamed:
        wait_until(lambda: streamed.read_bytes + streamed.hot_bytes == 23 << 20, "all is read")
        wait_until(lambda: any(stage.name == "weights" for stage in waterfall.stages), "the stage has ended")
    assert (streamed.files, streamed.problems) == (2, [])


def test_links_lead_where_they_would_inside_the_container(tmp_path: Path) -> None:
    root, models = tmp_path / "root", tmp_path / "models"
    (root / "opt").mkdir(parents=True)
    models.mkdir()
    (models / "file").write_text("x")
    os.symlink("/models", root / "opt/link")
    os.symlink("/etc/hostname", root / "opt/absolute")
    os.symlink("loop", root / "opt/loop")
    mounts = {"/models": models}
    assert host_path("/opt/link/file", root, mounts) == models / "file"
    # the host's own file of that name is not the container's
    assert host_path("/opt/absolute", root, mounts) is None
    assert host_path("/opt/loop", root, mounts) is None
    assert host_path("/opt/../../models/file", root, mounts) == models / "file"


def test_what_is_not_there_or_no_file_is_said_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with streaming(["/none", "/pipe.safetensors"], tmp_path, {}, Waterfall()) as streamed:
        wait_until(lambda: bool(streamed.problems), "the problem is noticed")
    assert streamed.problems == ["weights do not exist: /none"]
    assert streamed.files == 0


def test_memory_that_the_server_needs_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_available_bytes", lambda: 10 << 20)
    _file(tmp_path / "large.safetensors", 6 << 20)
    _file(tmp_path / "small.safetensors", 4 << 20)
    paths = ["/large.safetensors", "/small.safetensors"]
    with streaming(paths, tmp_path, {}, Waterfall()) as streamed:
        wait_until(lambda: streamed.read_bytes + streamed.hot_bytes == 4 << 20, "the small one is read")
    assert len(streamed.problems) == 1
    assert "memory is short" in streamed.problems[0]


def test_a_launch_does_not_wait_for_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()
    monkeypatch.setattr(module, "_END_SECONDS", 0.1)
    monkeypatch.setattr(module, "host_path", lambda *_: stuck.wait(60) and None)
    try:
        with streaming(["/x"], tmp_path, {}, Waterfall()):
            pass
    finally:
        stuck.set()


def test_nothing_to_read_starts_nothing(tmp_path: Path) -> None:
    waterfall = Waterfall()
    with streaming([], tmp_path, {}, waterfall):
        pass
    assert waterfall.stages == ()
