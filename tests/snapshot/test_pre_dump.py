"""Memory is dumped ahead where the kernel tracks writes; a criu that says so stands in where it does not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.config import load
from coldstart_cli.errors import UnavailableError
from coldstart_snapshot.capturing import pre_dump
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.capturing.pre_dump import tracks_memory, wants_pre_dump
from coldstart_snapshot.criu.program import Criu, find_criu
from coldstart_snapshot.kept.verify import verify_files
from coldstart_snapshot.restoring.restore import plan_restore, restore_process
from snapshot.servers import Lab, ask, free_port, laboratory, require_engine, url

# says that pages are tracked; writes a dump ahead of its own, and leaves the real dump without its parent
TRACKING = """#!/bin/sh
case "$*" in
  *mem_dirty_track*) exit 0;;
  *pre-dump*)
    echo "$*" >>{calls}
    {fail}
    while [ $# -gt 0 ]; do
      case "$1" in --images-dir|--image-path) echo pages >"$2/pages-1.img";; esac
      shift
    done
    exit 0;;
esac
case "$*" in *--prev-images-dir*|*--parent-path*) ;; *) exec {real} "$@";; esac
echo "$*" >>{calls}
count=$#
while [ $count -gt 0 ]; do
  case "$1" in
    --images-dir|--image-path) images=$2; set -- "$@" "$1" "$2"; shift; count=$((count - 1));;
    --prev-images-dir|--parent-path) parent=$2; shift; count=$((count - 1));;
    --track-mem) ;;
    *) set -- "$@" "$1";;
  esac
  shift; count=$((count - 1))
done
{real} "$@" || exit $?
ln -s "$parent" "$images/parent"
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def _tracking(lab: Lab, name: str, monkeypatch: pytest.MonkeyPatch, fail: str = "") -> Path:
    calls = lab.tmp_path / "calls"
    real = shutil.which(name, path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin")
    program = lab.tmp_path / name
    program.write_text(TRACKING.format(calls=calls, real=real, fail=fail))
    program.chmod(0o755)
    monkeypatch.setenv(f"COLDSTART_PROGRAMS_{name.upper()}", str(program))
    return calls


def test_asked_for_where_pages_are_not_tracked_it_is_refused_before_anything_is_touched(lab: Lab) -> None:
    if tracks_memory(find_criu()):
        pytest.skip("this kernel tracks written pages")
    port = free_port()
    pid, _, _ = lab.start_process(port)
    with pytest.raises(UnavailableError, match=r"not tracked here .*mem_dirty_track") as caught:
        create_snapshot(CaptureRequest("web", pid=pid, pre_dump=True), lab.config)
    assert "--pre-dump" in str(caught.value.hint)
    assert not (lab.config.state_folder / "snapshots").exists()
    assert create_snapshot(CaptureRequest("web", pid=pid), lab.config).published


def test_by_itself_it_is_done_for_large_servers_without_gpu_state_and_with_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_engine()
    criu = Criu("criu", "4.2")
    monkeypatch.setattr(pre_dump, "tracks_memory", lambda _: True)
    folder = tmp_path / "not" / "yet"

    def wants(asked: bool | None, memory_bytes: int, *, has_gpu: bool = False) -> bool:
        return wants_pre_dump(asked, criu, memory_bytes=memory_bytes, has_gpu=has_gpu, folder=folder)

    free = shutil.disk_usage(tmp_path).free
    assert wants(None, 1 << 30) == (free > 2.1 * (1 << 30))
    assert not wants(None, (1 << 30) - 1)
    assert not wants(None, free)
    assert not wants(None, 1 << 30, has_gpu=True)
    assert not wants(False, 1 << 30)
    assert wants(True, 1)
    with pytest.raises(UnavailableError, match="GPU state"):
        wants(True, 1, has_gpu=True)


def test_a_process_is_dumped_ahead_then_on_top_and_its_images_hold_both(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    pid, _, _ = lab.start_process(port, "threads")
    ask(port)
    calls = _tracking(lab, "criu", monkeypatch)
    captured = create_snapshot(
        CaptureRequest("web", pid=pid, ready_url=url(port), pre_dump=True, stop=True), load()
    )
    ahead, full = calls.read_text().splitlines()
    assert f"pre-dump --tree {pid} --track-mem --images-dir " in ahead
    assert "--tcp-established" in ahead
    assert f"dump --tree {pid} --leave-running --track-mem --prev-images-dir ../pre-images " in full
    assert "pre_dump" in captured.manifest.timings
    parent = captured.folder / "images" / "parent"
    assert parent.is_dir()
    assert not parent.is_symlink()
    assert "images/parent/pages-1.img" in {file.path for file in captured.manifest.files}
    assert not (captured.folder / "pre-images").exists()
    verify_files(captured.folder, captured.manifest)
    monkeypatch.delenv("COLDSTART_PROGRAMS_CRIU")
    restore_process(plan_restore("web", lab.config), lab.config, log=lab.tmp_path / "restored.log")
    assert ask(port) == "2"


def test_a_container_is_dumped_ahead_through_runc(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pre_dump, "tracks_memory", lambda _: True)
    port = free_port()
    container, _, _ = lab.start("web", port)
    calls = _tracking(lab, "runc", monkeypatch)
    captured = create_snapshot(CaptureRequest("web", container_id=container.id, pre_dump=True), load())
    ahead, full = calls.read_text().splitlines()
    assert "checkpoint --leave-running --tcp-established --file-locks --pre-dump --image-path " in ahead
    assert "--file-locks --parent-path ../pre-images --image-path " in full
    assert "images/parent/pages-1.img" in {file.path for file in captured.manifest.files}
    assert ask(port) == "1"


def test_a_dump_ahead_that_fails_costs_nothing_but_its_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    pid, _, _ = lab.start_process(port)
    calls = _tracking(lab, "criu", monkeypatch, fail="exit 1")
    captured = create_snapshot(CaptureRequest("web", pid=pid, ready_url=url(port), pre_dump=True), load())
    assert len(calls.read_text().splitlines()) == 1
    assert any(
        note.startswith("memory was not dumped ahead: criu pre-dump failed") for note in captured.notes
    )
    assert not any("parent" in file.path for file in captured.manifest.files)
    assert ask(port) == "1"


def test_criu_says_itself_how_long_a_process_stood_still(lab: Lab) -> None:
    port = free_port()
    pid, _, _ = lab.start_process(port)
    timings = create_snapshot(
        CaptureRequest("web", pid=pid, ready_url=url(port)), lab.config
    ).manifest.timings
    assert 0 < timings["frozen"] < timings["dump"]
