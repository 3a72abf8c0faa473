"""GPU servers captured and restored by the real criu and runc; only the driver stands in."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.errors import ColdstartError, UnavailableError
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.capturing.journal import CaptureRecord, read_record
from coldstart_snapshot.containers.container import kill_and_delete
from coldstart_snapshot.containers.upper import unpack_upper
from coldstart_snapshot.cuda import client
from coldstart_snapshot.cuda.client import CudaStuckError
from coldstart_snapshot.cuda.gpu_state import GpuDevice, GpuProcess
from coldstart_snapshot.engines.engine import Served, engine_of
from coldstart_snapshot.engines.settings import EngineSettings
from coldstart_snapshot.processes.tree import end_tree
from coldstart_snapshot.restoring.restore import plan_restore, restore_container, restore_process
from conftest import wait_until
from snapshot.gpu_servers import MIB, GpuLab, GpuServer, gpu_laboratory
from snapshot.servers import url
from stand_ins.cuda import state_of
from stand_ins.cuda_host import uuid

BACKENDS = ("driver-api", "cuda-checkpoint")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuLab]:
    with gpu_laboratory(tmp_path, monkeypatch) as lab:
        yield lab


@pytest.fixture(params=BACKENDS)
def each_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[GpuLab]:
    with gpu_laboratory(tmp_path, monkeypatch, request.param) as lab:
        yield lab


def capture(server: GpuServer, lab: GpuLab, **changes: object) -> object:
    target = {"container_id": server.container.id} if server.container else {"pid": server.pid}
    request = CaptureRequest("gpu", ready_url=url(server.port), **(target | changes))  # type: ignore[arg-type]
    return create_snapshot(request, lab.config)


def serves(server: GpuServer) -> None:
    """It answers from memory of the GPU, which nothing holds locked."""
    assert state_of(server.pid) == "running"
    assert len(server.answer()) == 64


# --- the whole path ---


def test_a_gpu_server_comes_back_with_its_memory_and_without_its_cache(each_way: GpuLab) -> None:
    lab = each_way
    server = lab.start_gpu_process()
    answers = [server.answer(text) for text in ("one", "two")]
    assert server.cache() == {"held": 64, "there": True}
    server.post("/sleep")
    assert server.answer() == "asleep"
    captured = capture(server, lab)
    manifest = captured.manifest  # type: ignore[attr-defined]
    gpu = manifest.gpu
    assert gpu is not None
    assert gpu.processes == (server.pid,)
    assert gpu.driver_version == "580.86.15"
    assert gpu.backend == lab.config.text("snapshot.cuda_backend")
    name = "NVIDIA H100 80GB HBM3"
    assert gpu.devices == (GpuDevice(uuid(0), name, MIB << 20), GpuDevice(uuid(1), name, 0))
    assert gpu.memory == (GpuProcess(server.pid, uuid(0), MIB << 20),)
    assert {"gpu_suspend", "gpu_resume"} <= manifest.timings.keys()
    # the source goes on, and is then gone with all that was on the GPU
    server.post("/wake_up")
    assert server.answer("one") == answers[0]
    end_tree(server.pid)
    shutil.rmtree(lab.host.cuda.vram)
    lab.host.cuda.vram.mkdir()
    lab.host.unsay()
    restored = restore_process(plan_restore("gpu", lab.config), lab.config, log=lab.tmp_path / "log")
    assert state_of(restored.pid) == "running"
    assert server.cache() == {"held": 0, "there": False}
    server.post("/wake_up")
    assert [server.answer(text) for text in ("one", "two")] == answers


def test_an_engine_sleeps_before_its_gpu_state_moves_and_wakes_after_it_is_back(each_way: GpuLab) -> None:
    lab = each_way
    server = lab.start_gpu_process()
    answer = server.answer("one")
    address = f"http://127.0.0.1:{server.port}"
    engine = EngineSettings("vllm", url=address, timeout_seconds=20.0)
    request = CaptureRequest("gpu", pid=server.pid, ready_url=url(server.port), engine=engine)
    captured = create_snapshot(request, lab.config)
    assert list(captured.manifest.timings).index("gpu_suspend") < list(captured.manifest.timings).index(
        "dump"
    )
    assert any("sleeps at level 1" in note for note in captured.notes)
    assert any("GPU memory that the engine gave up" in note for note in captured.notes)
    # the source is awake, with an empty cache
    assert server.cache() == {"held": 0, "there": True}
    assert server.answer("one") == answer
    end_tree(server.pid)
    lab.host.unsay()
    plan = plan_restore("gpu", lab.config)
    restored = restore_process(plan, lab.config, log=lab.tmp_path / "log")
    assert server.cache() == {"held": 0, "there": False}
    assert plan.manifest.engine == engine
    engine_of(engine, Served(restored.pid, "gpu")).resume(restored=True)
    assert server.answer("one") == answer


def test_a_gpu_container_comes_back_under_another_id_with_its_memory(each_way: GpuLab) -> None:
    lab = each_way
    server = lab.start_gpu_container()
    answer = server.answer()
    capture(server, lab)
    serves(server)
    assert server.container is not None
    assert server.overlay is not None
    lab.erase(server.container, server.overlay, server.log)
    lab.host.unsay()
    plan = plan_restore("gpu", lab.config)
    assert plan.manifest.gpu is not None
    assert plan.manifest.gpu.processes == (1,)
    overlay = lab.overlay("again")
    assert plan.upper_archive is not None
    unpack_upper(plan.upper_archive, overlay.upper)
    again = restore_container(
        plan, lab.config, root=overlay.mount().root, container_id=lab.id("again"), log=lab.tmp_path / "log"
    )
    wait_ready(url(server.port), 60, pid=again.pid)
    assert server.answer() == answer
    assert state_of(again.pid) == "running"


def test_the_gpus_given_at_the_restore_win_over_the_plan(lab: GpuLab) -> None:
    server = lab.start_gpu_container()
    answer = server.answer()
    capture(server, lab)
    assert server.container is not None
    assert server.overlay is not None
    kill_and_delete(server.container.id, runc_root=lab.runc_root)
    for memory in lab.host.cuda.vram.iterdir():
        memory.unlink()
    lab.host.unsay()
    # the GPU of the capture is full, which is of no interest to a plan that leaves the choice for later
    lab.host.say("0 used_mib 81920")
    restore_container(
        plan_restore("gpu", lab.config, gpus=None),
        lab.config,
        root=server.overlay.root,
        container_id=lab.id("again"),
        log=lab.tmp_path / "log",
        gpus=[uuid(1)],
    )
    wait_ready(url(server.port), 60)
    assert server.answer() == answer
    assert {name[:4] for name in lab.host.cuda.allocated()} == {"gpu1"}


def test_nothing_of_the_gpu_is_left_when_criu_sees_the_processes(
    lab: GpuLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = lab.start_gpu_process()
    seen = lab.tmp_path / "seen"
    real = shutil.which("criu", path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin")
    criu = lab.tmp_path / "criu"
    look = f'case "$1" in dump) ls {lab.host.cuda.vram} >{seen};; esac'
    criu.write_text(f'#!/bin/sh\n{look}\nexec {real} "$@"\n')
    criu.chmod(0o755)
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", str(criu))
    assert len(lab.host.cuda.allocated()) == 2
    capture(server, lab_with_settings(lab))
    assert seen.read_text() == ""
    serves(server)


def lab_with_settings(lab: GpuLab) -> GpuLab:
    """With the settings that the environment has now."""
    from coldstart_cli.config import load

    lab.config = load()
    return lab


def test_two_processes_with_a_gpu_each_are_captured_together(lab: GpuLab) -> None:
    first = lab.start_gpu_process()
    child = lab.host.spawn(mib=3, gpu=1)
    # one tree: the second is found as a member would be
    from coldstart_snapshot.cuda.capturing import prepare_capture
    from coldstart_snapshot.processes.tree import process_tree

    found = prepare_capture([*process_tree(first.pid), *process_tree(child)], lab.config)
    assert found is not None
    assert found.pids == (first.pid, child)
    found.client.suspend(found.pids, 20)
    assert [state_of(pid) for pid in found.pids] == ["checkpointed"] * 2
    found.client.resume(found.pids)
    found.client.close()
    assert [state_of(pid) for pid in found.pids] == ["running"] * 2


def test_a_plugin_of_criu_for_gpus_does_not_interfere(lab: GpuLab, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    plugins = lab.tmp_path / "plugins"
    plugins.mkdir()
    source = lab.tmp_path / "plugin.c"
    # a plugin whose start fails is the end of every dump and restore
    source.write_text(
        "static int start(int stage) { (void)stage; return -1; }\n"
        "struct { const char *name; int (*init)(int); void (*exit)(int, int); unsigned version, max;"
        ' void *hooks[32]; } CR_PLUGIN_DESC = {"cuda_plugin", start, 0, 2, 32, {0}};\n'
    )
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", plugins / "cuda_plugin.so", source], check=True, timeout=60
    )
    monkeypatch.setenv("CRIU_LIBS_DIR", str(plugins))
    for server in (lab.start_gpu_process(), lab.start_gpu_container()):
        capture(server, lab)
        serves(server)


# --- failures of the driver, in each state ---

FAULTS = [
    ("lock", "timeout"),
    ("lock", "operating system"),
    ("lock", "crash"),
    ("lock", "crash_after"),
    ("checkpoint", "out of memory"),
    ("checkpoint", "operating system"),
    ("checkpoint", "not supported"),
    ("checkpoint", "crash"),
    ("checkpoint", "crash_after"),
]


@pytest.mark.parametrize(("operation", "fault"), FAULTS)
def test_a_capture_that_the_driver_refuses_leaves_a_server_that_answers(
    each_way: GpuLab, operation: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "timeout":
        monkeypatch.setenv("COLDSTART_SNAPSHOT_CREATE_TIMEOUT_SECONDS", "1.5")
    lab = lab_with_settings(each_way)
    server = lab.start_gpu_process()
    answer = server.answer()
    lab.host.cuda.fault(operation, fault)
    with pytest.raises(ColdstartError, match="nothing was published") as caught:
        capture(server, lab)
    assert "runs and answers" in str(caught.value)
    serves(server)
    assert server.answer() == answer
    assert not (lab.config.state_folder / "snapshots" / "gpu").exists()


@pytest.mark.parametrize("operation", ["lock", "checkpoint"])
def test_a_driver_that_hangs_costs_the_deadline_and_the_server_answers(
    each_way: GpuLab, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLDSTART_SNAPSHOT_CREATE_TIMEOUT_SECONDS", "2")
    for module in ("program", "driver_api"):
        monkeypatch.setattr(f"coldstart_snapshot.cuda.{module}._LOCK_GRACE_SECONDS", 0.5)
    lab = lab_with_settings(each_way)
    server = lab.start_gpu_process()
    lab.host.cuda.fault(operation, "hang")
    with pytest.raises(ColdstartError, match="no end after"):
        capture(server, lab)
    serves(server)


def test_gpu_state_runs_again_when_the_dump_fails(each_way: GpuLab, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("criu", path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin")
    broken = each_way.tmp_path / "criu"
    broken.write_text(f'#!/bin/sh\ncase "$1" in dump) exit 1;; *) exec {real} "$@";; esac\n')
    broken.chmod(0o755)
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", str(broken))
    lab = lab_with_settings(each_way)
    server = lab.start_gpu_process()
    with pytest.raises(ColdstartError, match="runs and answers"):
        capture(server, lab)
    serves(server)


def test_a_server_whose_state_cannot_be_brought_back_is_called_stuck_and_not_killed(lab: GpuLab) -> None:
    server = lab.start_gpu_process()
    lab.host.cuda.fault("restore", "out of memory")
    with pytest.raises(CudaStuckError, match=f"process {server.pid} is stuck") as caught:
        capture(server, lab)
    assert caught.value.hint is not None
    assert f"kill -9 {server.pid}" in caught.value.hint
    assert "runs and answers" not in str(caught.value)
    wanted = f"the server does not serve: GPU state of process {server.pid} is checkpointed"
    assert wanted in str(caught.value)
    assert state_of(server.pid) == "checkpointed"
    assert not (lab.config.state_folder / "snapshots" / "gpu").exists()
    # the guardian's attempt comes to the same end, and says so
    wait_until(lambda: not _record(lab).is_open, "the guardian has looked at it")
    assert wanted in str(_record(lab).outcome)


def _record(lab: GpuLab) -> CaptureRecord:
    record = read_record(lab.config.run_folder, "gpu")
    assert record is not None
    return record


@pytest.mark.parametrize(
    ("operation", "fault", "state"),
    [("unlock", "operating system", "locked"), ("checkpoint", "failed", "failed")],
)
def test_a_server_that_is_left_in_another_state_is_not_said_to_answer(
    each_way: GpuLab, operation: str, fault: str, state: str
) -> None:
    lab = each_way
    server = lab.start_gpu_process()
    lab.host.cuda.fault(operation, fault, times=99)
    with pytest.raises(CudaStuckError) as caught:
        capture(server, lab)
    assert f"the server does not serve: GPU state of process {server.pid} is {state}" in str(caught.value)
    assert "answers" not in str(caught.value)


def test_a_gpu_process_that_died_during_the_capture_is_gone_and_nobody_is_told_to_kill_it(
    each_way: GpuLab,
) -> None:
    lab = each_way
    server = lab.start_gpu_process()
    lab.host.cuda.fault("checkpoint", "die")
    with pytest.raises(CudaStuckError, match=f"process {server.pid} is gone") as caught:
        capture(server, lab)
    assert "kill -9" not in (caught.value.hint or "")
    assert "stuck" not in str(caught.value)


def test_who_is_dying_is_waited_for_and_not_called_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = {1: iter([True, True, False]), 2: iter([False])}
    monkeypatch.setattr(client, "is_alive", lambda pid: next(looks[pid], True))
    assert client._living([1, 2]) == []
    monkeypatch.setattr(client, "_DYING_SECONDS", 0.05)
    monkeypatch.setattr(client, "is_alive", lambda pid: pid == 2)
    assert client._living([1, 2]) == [2]


@pytest.mark.parametrize("fault", ["crash", "crash_after"])
def test_whoever_calls_the_driver_may_die_and_the_server_answers_all_the_same(
    each_way: GpuLab, fault: str
) -> None:
    lab = each_way
    server = lab.start_gpu_process()
    answer = server.answer()
    for operation in ("restore", "unlock"):
        lab.host.cuda.fault(operation, fault)
    capture(server, lab)
    serves(server)
    end_tree(server.pid)
    lab.host.unsay()
    lab.host.cuda.forgive()
    for operation in ("restore", "unlock"):
        lab.host.cuda.fault(operation, fault)
    restore_process(plan_restore("gpu", lab.config), lab.config, log=lab.tmp_path / "log")
    serves(server)
    assert server.answer() == answer


@pytest.mark.parametrize("fault", ["out of memory", "invalid argument", "failed"])
def test_a_restored_server_whose_gpu_state_does_not_come_back_is_ended(each_way: GpuLab, fault: str) -> None:
    lab = each_way
    server = lab.start_gpu_process()
    capture(server, lab)
    end_tree(server.pid)
    lab.host.unsay()
    lab.host.cuda.fault("restore", fault)
    plan = plan_restore("gpu", lab.config)
    with pytest.raises(CudaStuckError, match="GPU state was not resumed") as caught:
        restore_process(plan, lab.config, log=lab.tmp_path / "log")
    assert "kill" not in (caught.value.hint or "")  # coldstart does that itself
    assert "stuck" not in caught.value.message
    wait_until(lambda: not os.path.exists(f"/proc/{server.pid}"), "the restored process has ended")


def test_a_restored_container_whose_gpu_state_does_not_come_back_is_taken_down(lab: GpuLab) -> None:
    server = lab.start_gpu_container()
    capture(server, lab)
    assert server.container is not None
    assert server.overlay is not None
    kill_and_delete(server.container.id, runc_root=lab.runc_root)
    lab.host.unsay()
    lab.host.cuda.fault("restore", "out of memory")
    again = lab.id("again")
    with pytest.raises(CudaStuckError):
        restore_container(
            plan_restore("gpu", lab.config),
            lab.config,
            root=server.overlay.root,
            container_id=again,
            log=lab.tmp_path / "log",
        )
    assert lab.processes_in(again) == []


def test_a_locked_server_is_never_left_behind_by_an_interruption(
    lab: GpuLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = lab.start_gpu_process()
    lab.host.cuda.set(ms__checkpoint=1500)

    def interrupt() -> None:
        wait_until(lambda: state_of(server.pid) == "locked", "the server is locked")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        capture(server, lab)
    thread.join()
    serves(server)


# --- what a host without GPUs says ---


def test_a_snapshot_with_gpu_state_is_refused_where_there_is_no_gpu(
    lab: GpuLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.path.exists("/dev/nvidiactl") or shutil.which("cuda-checkpoint"):
        pytest.skip("this host has a GPU")
    server = lab.start_gpu_process()
    capture(server, lab)
    monkeypatch.delenv("COLDSTART_PROGRAMS_CUDA_CHECKPOINT")
    monkeypatch.delenv("COLDSTART_SNAPSHOT_CUDA_BACKEND")
    with pytest.raises(UnavailableError, match="the snapshot has GPU state"):
        plan_restore("gpu", lab_with_settings(lab).config)
