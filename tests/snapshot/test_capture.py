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
    UsageError,
)
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.new_bundle import Mount
from coldstart_snapshot.containers.runc import Runc
from coldstart_snapshot.kept.manifest import read_manifest
from coldstart_snapshot.processes.tree import is_alive
from coldstart_snapshot.restoring.restore import plan_restore, restore_process
from snapshot.servers import Lab, ask, free_port, laboratory, url


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


def test_what_criu_refuses_is_told_in_words_and_the_server_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    # as if the preflight had not found it
    monkeypatch.setattr("coldstart_snapshot.capturing.capture.refuse_blockers", lambda *_: None)
    container, _, _ = lab.start("web", port, "vsock")
    with pytest.raises(ColdstartError, match="socket of a family that cannot be captured") as caught:
        create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    assert "runs and answers" in str(caught.value)
    assert _status(lab, container.id) == "running"
    assert ask(port) == "1"
    assert "Error" in (lab.config.run_folder / "logs" / "web-dump.log").read_text()


def test_an_error_of_criu_that_nobody_knows_points_to_the_whole_log(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, _, _ = lab.start_process(free_port())
    real = shutil.which("criu", path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin")
    strange = (
        f'[ "$1" = dump ] || exec {real} "$@"\n'
        'while [ "$1" != --work-dir ]; do shift; done\n'
        'echo "(00.1) Error (criu/x.c:1): nobody has seen this one" >"$2/dump.log"; exit 1'
    )
    monkeypatch.setenv("COLDSTART_PROGRAMS_CRIU", _program(lab.tmp_path / "criu", strange))
    with pytest.raises(ColdstartError, match="nobody has seen this one") as caught:
        create_snapshot(CaptureRequest("web", pid=pid), load())
    kept = lab.config.run_folder / "logs" / "web-dump.log"
    assert caught.value.hint == f"the whole log is in {kept}"
    assert "nobody has seen" in kept.read_text()


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
    with pytest.raises(DataError, match=r"deleted under one of its names is still open, in /srv"):
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
        timeout=60,
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

    monkeypatch.setattr("coldstart_snapshot.capturing.dump.archive_upper", interrupt)
    with pytest.raises(KeyboardInterrupt):
        create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    assert _status(lab, container.id) == "running"
    assert ask(port) == "1"
    assert _snapshots(lab) == []


def test_the_archive_is_taken_while_nothing_runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from coldstart_snapshot.capturing import dump

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
    waiting[0].join(60)
    assert answers == ["1"]


def test_a_server_that_never_gets_ready_is_not_captured(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port, "unready")
    with pytest.raises(BusyError, match=r"server is not ready after 3 s: .*Connection refused"):
        create_snapshot(
            CaptureRequest("web", container_id=container.id, ready_url=url(port), ready_timeout_seconds=3),
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
    wait_ready(url(port), 60, pid=pid)
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
        one.join(60)
    assert failures == []
    assert len(answers) > len(clients)
