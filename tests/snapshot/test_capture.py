"""A capture publishes a whole variant, or leaves the server serving and says so."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.config import load
from coldstart_cli.errors import (
    BusyError,
    ColdstartError,
    DataError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from coldstart_snapshot.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.container import Mount
from coldstart_snapshot.manifest import read_manifest
from coldstart_snapshot.processes import is_alive
from coldstart_snapshot.ready import wait_ready
from coldstart_snapshot.restore import plan_restore, restore_process
from coldstart_snapshot.runc import Runc
from conftest import wait_until
from snapshot.servers import Lab, ask, free_port, laboratory, url
from stand_ins.cuda import CudaStandIn, state_of


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def _snapshots(lab: Lab) -> list[str]:
    folder = lab.config.state_folder / "snapshots"
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/*")) if folder.exists() else []


def _status(lab: Lab, container_id: str) -> str:
    state = Runc.find(None, lab.runc_root).state(container_id)
    return state.status if state else "absent"


def _program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_variant_is_complete_private_and_described(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port, "child", "threads")
    ask(port)
    captured = create_snapshot(
        CaptureRequest("web", container_id=container.id, ready_url=url(port), ready_timeout_seconds=9),
        lab.config,
    )
    manifest = read_manifest(captured.folder)
    assert captured.published
    assert not captured.replaced
    assert manifest == captured.manifest
    assert {"images/inventory.img", "upper.tar", "bundle/config.json"} <= {
        file.path for file in manifest.files
    }
    assert [member.pid == 1 for member in manifest.tree] == [True, False]
    assert manifest.tree[1].parent == 1
    assert manifest.tree[0].threads == 6
    assert manifest.listen == (f"127.0.0.1:{port}",)
    assert manifest.network == "host"
    assert manifest.root is not None
    assert manifest.root.kind == "overlay"
    assert manifest.root.path == Path("/")
    assert manifest.ready is not None
    assert manifest.ready.url == url(port)
    assert {"ready", "dump", "upper", "frozen", "digests"} <= manifest.timings.keys()
    for folder, _, files in os.walk(captured.folder):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert {stat.S_IMODE(os.stat(os.path.join(folder, file)).st_mode) for file in files} <= {0o600}
    assert stat.S_IMODE(captured.folder.parent.stat().st_mode) == 0o700
    assert _snapshots(lab) == [f"web/{manifest.variant}"]


def test_a_second_capture_replaces_the_variant_and_a_crashed_one_is_cleaned_up(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    first = create_snapshot(CaptureRequest("web", container_id=container.id), lab.config)
    leftover = first.folder.parent / ".x86-64.abcdefgh.tmp"
    (leftover / "images").mkdir(parents=True)
    ask(port)
    second = create_snapshot(CaptureRequest("web", container_id=container.id), lab.config)
    assert second.replaced
    assert second.folder == first.folder
    assert second.manifest.files != first.manifest.files
    assert _snapshots(lab) == [f"web/{second.manifest.variant}"]
    assert ask(port) == "2"


def test_stop_ends_the_container_only_after_publication(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    captured = create_snapshot(CaptureRequest("web", container_id=container.id, stop=True), lab.config)
    assert captured.stopped
    assert _status(lab, container.id) == "absent"
    assert plan_restore("web", lab.config).variant == captured.manifest.variant


def test_a_dry_run_touches_nothing(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port, "child")
    planned = create_snapshot(CaptureRequest("web", container_id=container.id, dry_run=True), lab.config)
    assert not planned.published
    assert len(planned.manifest.tree) == 2
    assert not (lab.config.state_folder / "snapshots").exists()


def test_a_failed_dump_leaves_the_server_serving_and_says_so(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    # a criu that dies in the middle of its work, after the container was frozen
    real = shutil.which("criu", path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin")
    broken = _program(lab.tmp_path / "criu", f'case "$1" in swrk) exit 1;; *) exec {real} "$@";; esac')
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", broken)
    with pytest.raises(ColdstartError, match=r"nothing was published; container .* runs and answers"):
        create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), load())
    assert _status(lab, container.id) == "running"
    assert ask(port) == "1"
    assert _snapshots(lab) == []


def test_what_criu_refuses_is_told_in_words_and_the_server_goes_on(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port, "vsock")
    with pytest.raises(ColdstartError, match="socket of a family that cannot be captured") as caught:
        create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    assert "runs and answers" in str(caught.value)
    assert _status(lab, container.id) == "running"
    assert ask(port) == "1"
    assert "Error" in (lab.config.run_folder / "logs" / "web-dump.log").read_text()


def test_a_unix_connection_to_an_outside_process_is_refused_before_anything_is_frozen(lab: Lab) -> None:
    port = free_port()
    shared = lab.tmp_path / "shared"
    shared.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shared / "socket"))
        listener.listen()
        mounts = (Mount(shared, "/mnt", read_only=False),)
        container, _, _ = lab.start("web", port, "unix", mounts=mounts)
        connection, _ = listener.accept()
        with connection, pytest.raises(DataError, match=rf"unix connection to process {os.getpid()}"):
            create_snapshot(CaptureRequest("web", container_id=container.id), lab.config)
    assert _status(lab, container.id) == "running"


def test_a_deleted_hard_link_is_refused_since_it_would_be_gone_at_the_restore(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port, "link")
    with pytest.raises(DataError, match=r"deleted under one of its names is still open, in /srv.*answers"):
        create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    assert _snapshots(lab) == []


def test_a_process_that_was_put_into_the_container_is_left_out_and_named(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    runc = Runc.find(None, lab.runc_root)
    subprocess.run(
        [runc.program, "--root", str(lab.runc_root), "exec", "--detach", container.id, "/bin/sleep", "60"],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=20,
    )
    captured = create_snapshot(CaptureRequest("web", container_id=container.id), lab.config)
    assert len(captured.manifest.tree) == 1
    assert "sleep" in captured.notes[0]


def test_a_criu_that_hangs_is_killed_at_the_deadline_and_the_server_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    real = shutil.which("criu", path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin")
    broken = _program(
        lab.tmp_path / "criu", f'case "$1" in swrk) exec sleep 100;; *) exec {real} "$@";; esac'
    )
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", broken)
    monkeypatch.setenv("COLDSTART_SNAPSHOT_CREATE_TIMEOUT_SECONDS", "1")
    with pytest.raises(BusyError, match=r"no end after 1 s.*runs and answers"):
        create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), load())
    assert ask(port) == "1"


def test_an_interrupted_capture_thaws_the_container(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)

    def interrupt(*_: object) -> None:
        assert _status(lab, container.id) == "paused"
        raise KeyboardInterrupt

    monkeypatch.setattr("coldstart_snapshot.dump.archive_upper", interrupt)
    with pytest.raises(KeyboardInterrupt):
        create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    assert _status(lab, container.id) == "running"
    assert ask(port) == "1"
    assert _snapshots(lab) == []


def test_the_archive_is_taken_while_nothing_runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from coldstart_snapshot import dump

    port = free_port()
    container, _, _ = lab.start("web", port)
    real = dump.archive_upper
    answers: list[str] = []

    def archive(upper: Path, archive: Path) -> object:
        # sent now, answered only after the thaw: neither memory nor layer may have it
        asking = threading.Thread(target=lambda: answers.append(ask(port)))
        asking.start()
        archived = real(upper, archive)
        assert not answers
        assert not (upper / "srv" / "count").exists()
        waiting.append(asking)
        return archived

    waiting: list[threading.Thread] = []
    monkeypatch.setattr(dump, "archive_upper", archive)
    create_snapshot(CaptureRequest("web", container_id=container.id), lab.config)
    waiting[0].join(20)
    assert answers == ["1"]


def test_a_server_that_never_gets_ready_is_not_captured(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port, "unready")
    with pytest.raises(BusyError, match=r"server is not ready after 0.3 s: .*Connection refused"):
        create_snapshot(
            CaptureRequest("web", container_id=container.id, ready_url=url(port), ready_timeout_seconds=0.3),
            lab.config,
        )
    assert _snapshots(lab) == []


def test_what_is_not_there_or_cannot_be_captured_is_refused_by_name(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    with pytest.raises(NotFoundError, match="no such container") as caught:
        create_snapshot(CaptureRequest("web", container_id=container.id[:-1]), lab.config)
    assert container.id in str(caught.value.hint)
    Runc.find(None, lab.runc_root).pause(container.id)
    with pytest.raises(BusyError, match="container is paused") as busy:
        create_snapshot(CaptureRequest("web", container_id=container.id), lab.config)
    assert f"resume {container.id}" in str(busy.value.hint)
    Runc.find(None, lab.runc_root).resume(container.id)
    with pytest.raises(DataError, match="runs inside a container"):
        create_snapshot(CaptureRequest("web", pid=container.pid), lab.config)
    with pytest.raises(UsageError, match="invalid snapshot name"):
        create_snapshot(CaptureRequest("../web", container_id=container.id), lab.config)
    with pytest.raises(UsageError, match="either a container or a process"):
        create_snapshot(CaptureRequest("web"), lab.config)


# --- plain processes ---


def test_a_plain_process_comes_back_under_its_pid_with_its_output_in_a_new_log(lab: Lab) -> None:
    port = free_port()
    pid, log, folder = lab.start_process(port, "deleted", "lock", "pair", "threads", "child")
    assert ask(port) == "1"
    captured = create_snapshot(CaptureRequest("plain", pid=pid, ready_url=url(port), stop=True), lab.config)
    assert captured.manifest.kind == "process"
    assert not is_alive(pid)
    log.unlink()
    restored_log = lab.tmp_path / "restored.log"
    plan = plan_restore("plain", lab.config)
    restored = restore_process(plan, lab.config, log=restored_log)
    assert restored.pid == pid
    wait_ready(url(port), 20, pid=pid)
    assert ask(port) == "2"
    # the old log was not appended to: criu goes on where it was
    assert restored_log.read_text().lstrip("\0") == "request 2\n"
    assert ask(port, "/pair") == "through the pair"
    assert ask(port, "/deleted") == str(3 << 20)
    with pytest.raises(BusyError, match=f"process number that the snapshot needs is taken: {pid} \\(python3"):
        restore_process(plan, lab.config, log=restored_log)
    assert ask(port) == "3"
    assert (folder / "count").read_text() == "3"


def test_a_process_that_leads_no_session_is_refused_with_the_remedy(lab: Lab) -> None:
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
    try:
        with pytest.raises(DataError, match="not a session leader") as caught:
            create_snapshot(CaptureRequest("plain", pid=child.pid), lab.config)
        assert "setsid" in str(caught.value.hint)
    finally:
        child.kill()
        child.wait()


# --- GPU state, with the stand-in ---


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaStandIn]:
    stand_in = CudaStandIn(tmp_path / "cuda")
    for name, value in stand_in.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLDSTART_PROGRAMS_CUDA_CHECKPOINT", stand_in.program)
    yield stand_in
    stand_in.close()


def test_gpu_state_is_suspended_before_the_dump_and_resumed_in_the_restored_process(
    lab: Lab, cuda: CudaStandIn
) -> None:
    config = load()
    pid = cuda.spawn()
    captured = create_snapshot(CaptureRequest("gpu", pid=pid), config)
    assert state_of(pid) == "running"
    assert captured.manifest.gpu is not None
    assert captured.manifest.gpu.processes == (pid,)
    assert captured.manifest.tree[0].gpu
    assert {"gpu_suspend", "gpu_resume"} <= captured.manifest.timings.keys()
    os.kill(pid, 9)
    cuda.reap(pid)
    plan = plan_restore("gpu", config)
    lab.pids.append(pid)
    restored = restore_process(plan, config, log=lab.tmp_path / "log")
    assert state_of(restored.pid) == "running"
    assert cuda.calls()[-1].startswith("get-state")


def test_gpu_state_runs_again_when_the_dump_fails(
    lab: Lab, cuda: CudaStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("criu", path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin")
    broken = _program(lab.tmp_path / "criu", f'case "$1" in dump) exit 1;; *) exec {real} "$@";; esac')
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", broken)
    pid = cuda.spawn()
    with pytest.raises(ColdstartError, match=f"process {pid} runs"):
        create_snapshot(CaptureRequest("gpu", pid=pid), load())
    assert state_of(pid) == "running"


def test_a_restored_process_whose_gpu_state_does_not_come_back_is_ended(lab: Lab, cuda: CudaStandIn) -> None:
    config = load()
    pid = cuda.spawn()
    create_snapshot(CaptureRequest("gpu", pid=pid), config)
    os.kill(pid, 9)
    cuda.reap(pid)
    cuda.fault("restore", "out of memory")
    with pytest.raises(ColdstartError, match="GPU state was not resumed"):
        restore_process(plan_restore("gpu", config), config, log=lab.tmp_path / "log")
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the restored process has ended")


def test_a_snapshot_with_gpu_state_is_refused_where_there_is_no_gpu(
    lab: Lab, cuda: CudaStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_snapshot(CaptureRequest("gpu", pid=cuda.spawn()), load())
    monkeypatch.delenv("COLDSTART_PROGRAMS_CUDA_CHECKPOINT")
    if os.path.exists("/dev/nvidiactl") or shutil.which("cuda-checkpoint"):
        pytest.skip("this host has a GPU")
    with pytest.raises(UnavailableError, match="the snapshot has GPU state"):
        plan_restore("gpu", load())


def test_clients_that_are_connected_during_captures_get_all_their_answers(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    stop = threading.Event()
    answers: list[int] = []
    failures: list[str] = []

    def client() -> None:
        while not stop.is_set():
            try:
                answers.append(int(ask(port)))
            except (OSError, ValueError) as error:
                failures.append(repr(error))

    clients = [threading.Thread(target=client) for _ in range(4)]
    for one in clients:
        one.start()
    for _ in range(2):
        create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    stop.set()
    for one in clients:
        one.join(30)
    assert failures == []
    assert len(answers) > len(clients)
