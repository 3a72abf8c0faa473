"""A capture that is killed, at whatever step, leaves a server that answers and nothing half published."""

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
from coldstart_cli.errors import BusyError
from coldstart_cli.process import is_stopped
from coldstart_snapshot.capturing import recovery
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.capturing.checking import check_server
from coldstart_snapshot.capturing.journal import CaptureRecord, read_record
from coldstart_snapshot.containers.runc import Runc
from coldstart_snapshot.kept.inventory import list_variants
from coldstart_snapshot.kept.manifest import read_manifest
from coldstart_snapshot.restoring.restore import plan_restore
from conftest import wait_until
from snapshot.servers import Lab, ask, free_port, laboratory, url
from stand_ins.cuda import state_of
from stand_ins.cuda_host import CudaHost

PROGRAM = Path(__file__).with_name("killed_capture.py")

CONTAINER_STEPS = (
    "capturing.capture:wait_ready:before",
    "capturing.capture:target_facts:after",
    "capturing.on_record/CaptureState:begin:after",
    "containers.runc/Runc:pause:before",
    "containers.runc/Runc:pause:after",
    "containers.runc/Runc:checkpoint:before",
    "containers.runc/Runc:checkpoint:after",
    "capturing.dump:archive_upper:after",
    "capturing.dump:thaw:before",
    "capturing.dump:thaw:after",
    "capturing.on_record:prove_serving:before",
    "capturing.capture:digest_files:after",
    "capturing.capture:write_manifest:after",
    "capturing.capture:publish:before",
    "capturing.capture:publish:after",
    "capturing.capture:remember_verified:after",
)
# those between which the server is in another state; `make test-full` tries every one
FREQUENT = (
    "containers.runc/Runc:pause:after",
    "containers.runc/Runc:checkpoint:after",
    "capturing.dump:archive_upper:after",
    "capturing.dump:thaw:before",
    "capturing.capture:digest_files:after",
    "capturing.capture:publish:before",
    "capturing.capture:publish:after",
)
PROCESS_STEPS = (
    "capturing.dump:dump_process:before",
    "capturing.dump:dump_process:after",
    "capturing.capture:digest_files:after",
    "capturing.capture:publish:after",
)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


@pytest.fixture(params=["driver-api", "cuda-checkpoint"])
def host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[CudaHost]:
    host = CudaHost(tmp_path, monkeypatch, request.param)
    yield host
    host.cuda.close()


def _start(step: str, how: str = "command", **request: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), step, how, json.dumps(request)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # a group of its own; in a session of its own a terminal's signals would not stop it
        process_group=0,
    )


def _die(step: str, victims: str = "command", **request: object) -> None:
    child = _start(step, victims, **request)
    try:
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == -signal.SIGKILL, said.decode()


def _status(lab: Lab, container_id: str) -> str:
    state = Runc.find(None, lab.runc_root).state(container_id)
    return state.status if state else "absent"


def _record(lab: Lab, name: str = "web") -> CaptureRecord | None:
    return read_record(lab.config.run_folder, name)


def _is_settled(lab: Lab, name: str = "web") -> bool:
    record = _record(lab, name)
    return record is None or not record.is_open


def _leftovers(lab: Lab) -> list[str]:
    return [str(path) for path in (lab.config.state_folder / "snapshots").glob("*/.*")]


def _slow(lab: Lab, name: str, verb: str) -> tuple[str, Path, Path]:
    """The real program, which at one verb says that it has come there and waits to be let go."""
    real = shutil.which(name, path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin")
    reached, go_on = lab.tmp_path / f"{name}-reached", lab.tmp_path / f"{name}-go-on"
    path = lab.tmp_path / name
    path.write_text(
        f'#!/bin/sh\nfor word; do if [ "$word" = {verb} ]; then touch {reached}\n'
        f'while [ ! -e {go_on} ]; do sleep 0.02; done; fi; done\nexec {real} "$@"\n'
    )
    path.chmod(0o755)
    return str(path), reached, go_on


@pytest.mark.parametrize(
    "step",
    [step if step in FREQUENT else pytest.param(step, marks=pytest.mark.full) for step in CONTAINER_STEPS],
)
def test_a_container_serves_again_after_its_capture_was_killed(lab: Lab, step: str) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    _die(step, name="web", container_id=container.id, ready_url=url(port))
    assert ask(port) == "1"
    wait_until(lambda: _is_settled(lab), "the guardian has put it right")
    assert _status(lab, container.id) == "running"
    found = list_variants(lab.config.state_folder)
    published = step in {"capturing.capture:publish:after", "capturing.capture:remember_verified:after"}
    assert len(found) == published
    if step != "capturing.capture:remember_verified:after":
        assert _leftovers(lab) == []
    if record := _record(lab):
        assert record.serving
        assert "runs and answers" in str(record.outcome)
        assert ("the snapshot is complete" if published else "nothing was published") in str(record.outcome)
    captured = create_snapshot(
        CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config
    )
    assert captured.replaced == published
    assert plan_restore("web", lab.config).manifest == read_manifest(captured.folder)
    assert any("was cut short" in note for note in captured.notes) == (record is not None)
    assert _record(lab) is None
    assert ask(port) == "2"


@pytest.mark.parametrize("step", PROCESS_STEPS)
def test_a_process_serves_again_after_its_capture_was_killed(lab: Lab, step: str) -> None:
    port = free_port()
    pid, _, _ = lab.start_process(port, "threads", "child")
    _die(step, name="web", pid=pid, ready_url=url(port))
    assert ask(port) == "1"
    wait_until(lambda: _is_settled(lab), "the guardian has put it right")
    published = step == "capturing.capture:publish:after"
    assert len(list_variants(lab.config.state_folder)) == published
    assert _leftovers(lab) == []
    assert create_snapshot(CaptureRequest("web", pid=pid, ready_url=url(port)), lab.config).published
    assert ask(port) == "2"


@pytest.mark.parametrize(
    "step",
    [
        "containers.runc/Runc:pause:after",
        "containers.runc/Runc:checkpoint:after",
        "capturing.dump:archive_upper:after",
        "capturing.dump:thaw:before",
        "capturing.capture:publish:before",
    ],
)
def test_the_next_capture_thaws_what_a_killed_one_left_when_its_guardian_died_too(
    lab: Lab, step: str
) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    _die(step, "guardian", name="web", container_id=container.id, ready_url=url(port))
    thawed = step == "capturing.capture:publish:before"
    assert _status(lab, container.id) == ("running" if thawed else "paused")
    assert [name for name, _ in recovery.told_by(lab.config.run_folder)] == ["web"]
    captured = create_snapshot(
        CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config
    )
    assert any("was cut short" in note and "runs and answers" in note for note in captured.notes)
    assert ask(port) == "1"
    assert _leftovers(lab) == []


def test_a_check_of_the_server_thaws_what_a_killed_capture_left(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    _die("containers.runc/Runc:checkpoint:after", "guardian", name="web", container_id=container.id)
    assert _status(lab, container.id) == "paused"
    said: list[str] = []
    check_server(lab.config, container_id=container.id, pid=None, say=said.append)
    assert said == ["putting an earlier capture right: web"]
    assert ask(port) == "1"


def test_a_capture_under_another_name_of_the_same_server_puts_it_right_too(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    _die("containers.runc/Runc:checkpoint:after", "guardian", name="web", container_id=container.id)
    assert create_snapshot(CaptureRequest("other", container_id=container.id), lab.config).published
    assert ask(port) == "1"
    record = _record(lab)
    assert record is not None
    assert record.serving


def test_criu_at_work_is_waited_for_when_the_command_is_killed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    program, reached, go_on = _slow(lab, "criu", "swrk")
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", program)
    child = _start("never", name="web", container_id=container.id, ready_url=url(port))
    wait_until(reached.exists, "criu is at work")
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    record = _record(lab)
    assert record is not None
    assert record.phase == "dump"
    assert recovery.engines_at_work(record)
    assert _status(lab, container.id) == "paused"
    go_on.touch()
    assert ask(port) == "1"
    wait_until(lambda: _is_settled(lab), "the guardian has put it right")
    assert _status(lab, container.id) == "running"
    assert _leftovers(lab) == []


def test_criu_may_finish_with_a_process_when_the_command_is_killed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    pid, _, _ = lab.start_process(port, "threads", "child")
    program, reached, go_on = _slow(lab, "criu", "dump")
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", program)
    child = _start("never", name="web", pid=pid, ready_url=url(port))
    wait_until(reached.exists, "criu is at work")
    child.kill()
    child.communicate()
    go_on.touch()
    wait_until(lambda: _is_settled(lab), "the guardian has put it right")
    record = _record(lab)
    assert record is not None
    assert f"while dumping: nothing was published; process {pid} runs and answers" in str(record.outcome)
    assert _leftovers(lab) == []
    assert ask(port) == "1"


def test_a_pause_that_comes_after_the_death_of_the_command_does_not_last(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    program, reached, go_on = _slow(lab, "runc", "pause")
    monkeypatch.setenv("COLDSTART_PROGRAMS_RUNC", program)
    child = _start("never", name="web", container_id=container.id, ready_url=url(port))
    wait_until(reached.exists, "runc is about to pause")
    child.kill()
    child.communicate()
    go_on.touch()
    wait_until(lambda: _is_settled(lab), "the guardian has put it right")
    assert _status(lab, container.id) == "running"
    assert ask(port) == "1"
    record = _record(lab)
    assert record is not None
    assert "while freezing" in str(record.outcome)
    assert "thawed" in str(record.outcome)


def test_a_criu_that_hangs_after_the_death_of_the_command_is_ended_at_its_deadline(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_GRACE_SECONDS", 0.1)
    port = free_port()
    container, _, _ = lab.start("web", port)
    program, reached, _ = _slow(lab, "criu", "swrk")
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", program)
    monkeypatch.setenv("COLDSTART_SNAPSHOT_CREATE_TIMEOUT_SECONDS", "2")
    child = _start("never", name="web", container_id=container.id, ready_url=url(port))
    wait_until(reached.exists, "criu is at work")
    record = _record(lab)
    assert record is not None
    os.kill(record.guardian_pid, signal.SIGKILL)
    child.kill()
    child.communicate()
    monkeypatch.delenv("COLDSTART_PROGRAMS_CRIU")
    captured = create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), load())
    (note,) = (note for note in captured.notes if "cut short" in note)
    assert "had not ended at the deadline and was killed; thawed; " in note
    assert ask(port) == "1"
    assert recovery.engines_at_work(record) == []


def test_gpu_state_is_given_back_after_the_death_of_the_command(lab: Lab, host: CudaHost) -> None:
    pid = host.spawn()
    _die("capturing.dump/Dump:_refuse_small_disk:before", name="gpu", pid=pid)
    wait_until(lambda: _is_settled(lab, "gpu"), "the guardian has put it right")
    assert state_of(pid) == "running"
    record = _record(lab, "gpu")
    assert record is not None
    assert "GPU state given back" in str(record.outcome)


def test_a_suspension_under_way_is_waited_for_and_undone(lab: Lab, host: CudaHost) -> None:
    host.cuda.set(ms__checkpoint=1000)
    pid = host.spawn()
    child = _start("never", name="gpu", pid=pid)
    wait_until(lambda: f"checkpoint {pid}" in host.cuda.calls(), "GPU state is being suspended")
    child.kill()
    child.communicate()
    wait_until(lambda: _is_settled(lab, "gpu"), "the guardian has put it right")
    assert state_of(pid) == "running"


def test_a_server_that_ended_meanwhile_is_said_to_have_ended(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    _die("containers.runc/Runc:checkpoint:after", "guardian", name="web", container_id=container.id)
    Runc.find(None, lab.runc_root).kill_and_delete(container.id)
    other, _, _ = lab.start("other", free_port())
    captured = create_snapshot(CaptureRequest("web", container_id=other.id), lab.config)
    (note,) = (note for note in captured.notes if "cut short" in note)
    assert f"the server does not serve: container {container.id} has ended" in note


def test_one_server_is_captured_by_one_command_at_a_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    pid, _, _ = lab.start_process(port)
    program, reached, go_on = _slow(lab, "criu", "dump")
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", program)
    child = _start("never", name="web", pid=pid, ready_url=url(port))
    try:
        wait_until(reached.exists, "criu is at work")
        with pytest.raises(BusyError, match=rf"process {pid} is being captured already \(locked by"):
            create_snapshot(CaptureRequest("other", pid=pid), lab.config)
        with pytest.raises(BusyError, match="locked by another process"):
            create_snapshot(CaptureRequest("web", pid=pid), lab.config)
    finally:
        go_on.touch()
        _, said = child.communicate(timeout=60)
    assert child.returncode == 0, said.decode()
    assert len(list_variants(lab.config.state_folder)) == 1
    assert ask(port) == "1"


@pytest.mark.parametrize(
    "step",
    [
        "containers.runc/Runc:pause:after",
        "containers.runc/Runc:checkpoint:after",
        "capturing.dump:archive_upper:before",
        "capturing.dump:thaw:before",
    ],
)
def test_a_command_that_is_stopped_while_the_server_stands_still_is_let_go_on(lab: Lab, step: str) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    child = _start(step, "SIGSTOP", name="web", container_id=container.id, ready_url=url(port))
    try:
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, said.decode()
    assert "the command was stopped while the server stood still, and was let go on" in said.decode()
    assert _status(lab, container.id) == "running"
    assert len(list_variants(lab.config.state_folder)) == 1
    assert ask(port) == "1"


@pytest.mark.parametrize("name", ["SIGTSTP", "SIGTTIN", "SIGTTOU"])
def test_a_terminal_stops_the_command_only_when_the_server_runs_again(lab: Lab, name: str) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    child = _start(
        "capturing.dump:archive_upper:before",
        name,
        name="web",
        container_id=container.id,
        ready_url=url(port),
    )
    try:
        wait_until(lambda: is_stopped(child.pid), "the command is stopped")
        assert _status(lab, container.id) == "running"
        assert ask(port) == "1"
        child.send_signal(signal.SIGCONT)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, said.decode()
    assert "let go on" not in said.decode()


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT"])
def test_a_hangup_or_quit_in_the_freeze_ends_the_command_and_leaves_a_server_that_answers(
    lab: Lab, name: str
) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    child = _start(
        "containers.runc/Runc:checkpoint:before",
        name,
        name="web",
        container_id=container.id,
        ready_url=url(port),
    )
    try:
        child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == -signal.Signals[name]
    wait_until(lambda: _is_settled(lab), "the guardian has put it right")
    assert _status(lab, container.id) == "running"
    assert ask(port) == "1"
