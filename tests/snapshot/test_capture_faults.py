"""Whatever fails or is interrupted in a capture, the message says how the server is, and that is true."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.config import load
from coldstart_cli.errors import BusyError, CannotCreateError, ColdstartError, IoFailure
from coldstart_snapshot.capturing import capture, dump
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.capturing.journal import read_record
from coldstart_snapshot.containers.runc import Runc
from coldstart_snapshot.kept.inventory import list_variants
from coldstart_snapshot.processes.tree import is_alive
from conftest import umount, wait_until
from snapshot.servers import Lab, ask, free_port, laboratory, url

PROGRAM = Path(__file__).with_name("killed_capture.py")
STEPS = (
    "capturing.capture:wait_ready:before",
    "capturing.capture:target_facts:after",
    "capturing.on_record/CaptureState:begin:after",
    "containers.runc/Runc:pause:before",
    "containers.runc/Runc:pause:after",
    "containers.runc/Runc:checkpoint:before",
    "containers.runc/Runc:checkpoint:after",
    "capturing.dump:archive_upper:before",
    "capturing.dump:thaw:after",
    "capturing.on_record:prove_serving:before",
    "capturing.capture:digest_files:after",
    "capturing.capture:publish:before",
)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def _wrapped(lab: Lab, name: str, verb: str, before: str, after: str = "") -> str:
    """The real program, with something of ours before and after one of its verbs."""
    real = shutil.which(name, path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin")
    path = lab.tmp_path / name
    path.write_text(
        f'#!/bin/sh\nfor word; do if [ "$word" = {verb} ]; then\n{before}\n{real} "$@"\nstatus=$?\n{after}\n'
        f'exit $status; fi; done\nexec {real} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def _nothing_left(lab: Lab) -> bool:
    folder = lab.config.state_folder / "snapshots"
    return list_variants(lab.config.state_folder) == () and list(folder.glob("*/.*")) == []


def _status(lab: Lab, container_id: str) -> str:
    state = Runc.find(None, lab.runc_root).state(container_id)
    return state.status if state else "absent"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.full)])
def test_a_signal_at_any_step_ends_the_capture_and_the_server_goes_on(lab: Lab, step: str, name: str) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    request = {"name": "web", "container_id": container.id, "ready_url": url(port)}
    child = subprocess.run(
        [sys.executable, str(PROGRAM), step, name, json.dumps(request)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ("Terminated" if name == "SIGTERM" else "KeyboardInterrupt") in child.stderr
    assert _status(lab, container.id) == "running"
    assert ask(port) == "1"
    assert _nothing_left(lab)
    assert read_record(lab.config.run_folder, "web") is None
    if step not in STEPS[:3]:
        assert (
            f"interrupted; nothing was published; container {container.id} runs and answers" in child.stderr
        )


def test_who_interrupts_at_the_very_end_hears_that_the_snapshot_is_published(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    request = {"name": "web", "container_id": container.id, "ready_url": url(port)}
    child = subprocess.run(
        [
            sys.executable,
            str(PROGRAM),
            "capturing.capture:remember_verified:before",
            "SIGINT",
            json.dumps(request),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "KeyboardInterrupt" in child.stderr
    wanted = f"interrupted; the snapshot is published; container {container.id} runs and answers"
    assert child.stderr.count(wanted) == 1


@pytest.mark.parametrize("function", ["archive_upper", "check_outputs"])
def test_a_step_of_the_dump_that_fails_leaves_the_server_serving(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)

    def fail(*_: object) -> None:
        raise IoFailure("broken disk")

    monkeypatch.setattr(dump, function, fail)
    with pytest.raises(IoFailure, match=r"broken disk; nothing was published; container .* runs and answers"):
        create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    assert _status(lab, container.id) == "running"
    assert ask(port) == "1"
    assert _nothing_left(lab)
    assert read_record(lab.config.run_folder, "web") is None


@pytest.mark.parametrize("function", ["digest_files", "write_manifest", "verify_files", "publish"])
def test_a_step_after_the_dump_that_fails_publishes_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    port = free_port()
    pid, _, _ = lab.start_process(port)

    def fail(*_: object, **__: object) -> None:
        raise IoFailure("broken disk")

    with monkeypatch.context() as patched:
        patched.setattr(capture, function, fail)
        with pytest.raises(IoFailure, match=rf"broken disk; nothing was published; process {pid} runs and"):
            create_snapshot(CaptureRequest("web", pid=pid, ready_url=url(port)), lab.config)
    assert ask(port) == "1"
    assert _nothing_left(lab)
    assert create_snapshot(CaptureRequest("web", pid=pid, ready_url=url(port)), lab.config).published


def test_a_disk_that_fills_up_in_the_dump_leaves_the_server_serving(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    disk = lab.tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True, timeout=60)
    try:
        # what was free before the dump began is not any more
        fill = f"head -c 100M /dev/zero >{disk}/filler 2>/dev/null"
        monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", _wrapped(lab, "criu", "swrk", fill))
        monkeypatch.setenv("COLDSTART_STATE_DIR", str(disk / "state"))
        with pytest.raises(
            CannotCreateError, match=r"nothing was published; container .* runs and answers"
        ) as caught:
            create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), load())
        assert "no space left" in str(caught.value).lower()
        assert list((disk / "state" / "snapshots").glob("*/*")) == []
        (disk / "filler").unlink()
        monkeypatch.delenv("COLDSTART_PROGRAMS_CRIU")
        assert create_snapshot(CaptureRequest("web", container_id=container.id), load()).published
    finally:
        umount(disk)
    assert ask(port) == "1"


def test_a_server_that_does_not_come_back_is_said_not_to_serve_and_is_looked_after(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    stop = f"kill -STOP {container.pid}"
    monkeypatch.setenv("COLDSTART_PROGRAMS_RUNC", _wrapped(lab, "runc", "resume", "", stop))
    monkeypatch.setattr("coldstart_snapshot.capturing.on_record._SERVING_SECONDS", 0.5)
    monkeypatch.setattr("coldstart_snapshot.capturing.guardian._END_SECONDS", 0.0)
    with pytest.raises(BusyError, match=r"server is not ready after 0.5 s: .*and the server does not serve$"):
        create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), load())
    record = read_record(lab.config.run_folder, "web")
    assert record is not None  # the guardian goes on trying
    os.kill(container.pid, signal.SIGCONT)
    assert ask(port) == "1"

    def is_well() -> bool:
        record = read_record(lab.config.run_folder, "web")
        return record is not None and bool(record.serving)

    wait_until(is_well, "the guardian has seen it serve")
    assert _nothing_left(lab)


def test_a_server_that_dies_in_the_dump_is_said_to_have_ended(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    pid, _, _ = lab.start_process(port)
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", _wrapped(lab, "criu", "dump", f"kill -9 {pid}"))
    with pytest.raises(ColdstartError, match=rf"and the server does not serve: process {pid} has ended"):
        create_snapshot(CaptureRequest("web", pid=pid, ready_url=url(port)), load())
    assert not is_alive(pid)
    assert _nothing_left(lab)
    assert read_record(lab.config.run_folder, "web") is None
