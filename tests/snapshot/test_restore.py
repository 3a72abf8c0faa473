"""A server comes back where everything it was captured from is gone."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_cli.config import load
from coldstart_cli.errors import BusyError, ColdstartError, DataError, NotFoundError, UnavailableError
from coldstart_cli.process import find_program
from coldstart_host.cpu import read_cpu_facts
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.bundle import read_bundle
from coldstart_snapshot.containers.container import bundle_folder, kill_and_delete
from coldstart_snapshot.containers.new_bundle import write_bundle
from coldstart_snapshot.containers.runc import Runc
from coldstart_snapshot.containers.upper import unpack_upper
from coldstart_snapshot.restoring.restore import RestorePlan, plan_restore, restore_container
from snapshot.servers import Lab, ask, free_port, has_capability, laboratory, url

_CAP_SYS_RESOURCE = 24


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def test_container_goes_on_counting_under_another_id_after_all_of_its_source_was_deleted(lab: Lab) -> None:
    port = free_port()
    container, overlay, log = lab.start(
        "source", port, "deleted", "lock", "pair", "threads", "child", "semaphore"
    )
    assert [ask(port), ask(port)] == ["1", "2"]
    captured = create_snapshot(
        CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config
    )
    assert ask(port) == "3"
    lab.erase(container, overlay, log)

    for turn in ("first", "second"):
        plan = plan_restore("web", lab.config)
        assert plan.variant == captured.manifest.variant
        target = lab.overlay(turn)
        unpack_upper(plan.upper_archive, target.upper)
        target.mount()
        new_log = lab.tmp_path / f"{turn}.log"
        restored = restore_container(
            plan, lab.config, root=target.root, container_id=lab.id(turn), log=new_log
        )
        wait_ready(url(port), 60, pid=restored.pid)
        assert ask(port, "/file") == "2"
        assert ask(port) == "3"
        assert new_log.read_text() == "request 3\n"
        assert (target.upper / "srv" / "count").read_text() == "3"
        assert ask(port, "/pair") == "through the pair"
        assert ask(port, "/deleted") == str(3 << 20)
        kill_and_delete(restored.id, runc_root=lab.runc_root)


def _captured(lab: Lab, *extras: str) -> int:
    """A snapshot `web` whose source is gone; returns its port."""
    port = free_port()
    container, overlay, log = lab.start("source", port, *extras)
    create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    lab.erase(container, overlay, log)
    return port


def _prepared(lab: Lab, plan: RestorePlan, name: str) -> Path:
    target = lab.overlay(name)
    unpack_upper(plan.upper_archive, target.upper)
    return target.mount().root


def test_a_snapshot_holds_nothing_of_the_source_s_cgroups(lab: Lab) -> None:
    _captured(lab, "child")
    plan = plan_restore("web", lab.config)
    root = _prepared(lab, plan, "copy")
    log = lab.tmp_path / "log"
    copy = restore_container(plan, lab.config, root=root, container_id=lab.id("copy"), log=log)
    # a host with other hierarchies could not bring them back
    assert "cg: rewriting" not in (copy.bundle / "restore.log").read_text("utf-8", "replace")
    assert len(lab.processes_in(copy.id)) == 2
    hierarchies = Path(f"/proc/{copy.pid}/cgroup").read_text().splitlines()
    assert [line for line in hierarchies if not line.endswith(f"/coldstart/{copy.id}")] == []


def test_a_restored_container_can_be_captured_again(lab: Lab) -> None:
    port = _captured(lab)
    for turn in ("first", "second"):
        plan = plan_restore("web", lab.config)
        log = lab.tmp_path / f"{turn}.log"
        root = _prepared(lab, plan, turn)
        restored = restore_container(plan, lab.config, root=root, container_id=lab.id(turn), log=log)
        wait_ready(url(port), 60, pid=restored.pid)
        assert ask(port) == ("1" if turn == "first" else "2")
        request = CaptureRequest("web", container_id=restored.id, ready_url=url(port), stop=True)
        assert create_snapshot(request, lab.config).replaced
        assert log.read_text() == f"request {1 if turn == 'first' else 2}\n"


def test_a_program_that_criu_needs_is_found_without_path_and_named_where_it_is_not(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("runc", "criu"):
        monkeypatch.setenv(f"COLDSTART_PROGRAMS_{program.upper()}", find_program(program))
    lab.config = load()
    port = _captured(lab)
    plan = plan_restore("web", lab.config)
    root = _prepared(lab, plan, "copy")
    log = lab.tmp_path / "log"
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        with patch.context() as nowhere:
            nowhere.setattr("coldstart_cli.process._EXTRA_PATH", ())
            with pytest.raises(ColdstartError, match="criu needs a program that is not there: tar") as caught:
                restore_container(plan, lab.config, root=root, container_id=lab.id("copy"), log=log)
        assert "apt-get install tar" in str(caught.value.hint)
        restored = restore_container(plan, lab.config, root=root, container_id=lab.id("copy"), log=log)
    wait_ready(url(port), 60, pid=restored.pid)


def test_a_network_of_its_own_comes_back(lab: Lab) -> None:
    port = free_port()
    overlay = lab.overlay("source").mount()
    (overlay.root / "srv").mkdir(exist_ok=True)
    spec = lab.spec("source", overlay, port, network="none")
    container = lab.run(spec)
    lab.wait_listening(container.pid, port)
    create_snapshot(CaptureRequest("web", container_id=container.id), lab.config)
    lab.erase(container, overlay, spec.log)
    plan = plan_restore("web", lab.config)
    assert plan.manifest.network == "none"
    # the same port in our network is no obstacle
    with socket.create_server(("127.0.0.1", port)):
        root = _prepared(lab, plan, "target")
        restored = restore_container(
            plan, lab.config, root=root, container_id=lab.id("target"), log=lab.tmp_path / "log"
        )
        lab.wait_listening(restored.pid, port)


def test_a_user_without_privileges_stays_one(lab: Lab) -> None:
    port = free_port()
    overlay = lab.overlay("source").mount()
    folder = overlay.root / "srv"
    folder.mkdir(exist_ok=True)
    os.chown(folder, 65534, 65534)
    spec = lab.spec("source", overlay, port, uid=65534, gid=65534)
    container = lab.run(spec)
    wait_ready(url(port), 60, pid=container.pid)
    status = Path(f"/proc/{container.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    request = CaptureRequest("web", container_id=container.id, ready_url=url(port))
    if not has_capability(_CAP_SYS_RESOURCE):
        with pytest.raises(ColdstartError, match=r"runs as user 65534, .* lacks the capability"):
            create_snapshot(request, lab.config)
        assert ask(port, "/health") == "ok"
        return
    create_snapshot(request, lab.config)
    lab.erase(container, overlay, spec.log)
    plan = plan_restore("web", lab.config)
    root = _prepared(lab, plan, "target")
    restored = restore_container(
        plan, lab.config, root=root, container_id=lab.id("target"), log=lab.tmp_path / "log"
    )
    wait_ready(url(port), 60, pid=restored.pid)
    assert "Uid:\t65534" in Path(f"/proc/{restored.pid}/status").read_text()


def test_a_truncated_image_is_refused_before_anything_starts(lab: Lab) -> None:
    _captured(lab)
    plan = plan_restore("web", lab.config)
    pages = next(plan.images.glob("pages-*.img"))
    os.truncate(pages, pages.stat().st_size // 2)
    with pytest.raises(DataError, match=f"images/{pages.name}"):
        plan_restore("web", lab.config)


def test_another_cpu_is_refused_with_the_flags_it_lacks(lab: Lab) -> None:
    _captured(lab)
    host = read_cpu_facts()
    poorer = replace(host, flags=tuple(flag for flag in host.flags if flag not in {"sse4_2", "popcnt"}))
    with pytest.raises(UnavailableError, match="this CPU lacks popcnt sse4_2"):
        plan_restore("web", lab.config, host=poorer)


def test_a_port_in_use_is_told_with_its_holder_and_an_id_in_use_too(lab: Lab) -> None:
    port = _captured(lab)
    plan = plan_restore("web", lab.config)
    root = _prepared(lab, plan, "target")
    log = lab.tmp_path / "log"
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(BusyError, match=rf"127.0.0.1:{port}: process {os.getpid()} \("),
    ):
        restore_container(plan, lab.config, root=root, container_id=lab.id("target"), log=log)
    restored = restore_container(plan, lab.config, root=root, container_id=lab.id("target"), log=log)
    with pytest.raises(BusyError, match="container id is in use"):
        restore_container(plan, lab.config, root=root, container_id=restored.id, log=log)


def test_a_failed_restore_leaves_nothing_and_says_what_is_missing(lab: Lab) -> None:
    _captured(lab, "lock")
    plan = plan_restore("web", lab.config)
    # the layer is not unpacked: the lock file that the server has open is not there
    target = lab.overlay("target").mount()
    container_id = lab.id("target")
    with pytest.raises(ColdstartError, match="does not exist: srv/lock"):
        restore_container(
            plan, lab.config, root=target.root, container_id=container_id, log=lab.tmp_path / "log"
        )
    assert Runc.find(None, lab.runc_root).state(container_id) is None
    assert not bundle_folder(lab.runc_root, container_id).exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/coldstart/{container_id}"))
    assert (lab.config.run_folder / "logs" / "web-restore.log").exists()


def test_a_criu_that_spins_is_ended_at_the_deadline(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages cut short under a manifest that nobody checked: criu reads zero bytes for ever."""
    _captured(lab)
    plan = plan_restore("web", lab.config)
    root = _prepared(lab, plan, "target")
    for pages in plan.images.glob("pages-*.img"):
        os.truncate(pages, 4096)
    monkeypatch.setenv("COLDSTART_SNAPSHOT_RESTORE_TIMEOUT_SECONDS", "2")
    container_id = lab.id("target")
    with pytest.raises(ColdstartError):
        restore_container(plan, load(), root=root, container_id=container_id, log=lab.tmp_path / "log")
    assert Runc.find(None, lab.runc_root).state(container_id) is None
    assert lab.processes_in(container_id) == []


def test_an_absent_snapshot_is_not_found(lab: Lab) -> None:
    with pytest.raises(NotFoundError, match="no such snapshot: web"):
        plan_restore("web", lab.config)


@pytest.mark.parametrize("output", ["file", "pipe"])
def test_a_container_that_plain_runc_started_is_captured_and_restored_by_us(lab: Lab, output: str) -> None:
    """Its root is named relative to its bundle, and its output goes where its starter wanted."""
    port = free_port()
    overlay = lab.overlay("source").mount()
    (overlay.root / "srv").mkdir(exist_ok=True)
    bundle, runc_root, container_id = overlay.folder, lab.tmp_path / "their-runc", lab.id("theirs")
    spec = lab.spec("unused", overlay, port)
    write_bundle(bundle, spec)
    configuration = read_bundle(bundle)
    configuration["root"]["path"] = "root"
    del configuration["annotations"]
    (bundle / "config.json").write_text(json.dumps(configuration))
    log = lab.tmp_path / "their.log"
    runc = Runc.find(None, runc_root)
    command = [
        runc.program,
        "--root",
        str(runc_root),
        "run",
        "--detach",
        "--bundle",
        str(bundle),
        container_id,
    ]
    reading, writing = os.pipe()
    with log.open("wb") as stream, open(reading, "rb") as reader:
        stdout = stream.fileno() if output == "file" else writing
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stdout, check=True, timeout=20
        )
        os.close(writing)
        try:
            wait_ready(url(port), 60)
            assert ask(port) == "1"
            request = CaptureRequest("web", container_id=container_id, runc_root=runc_root, stop=True)
            create_snapshot(request, lab.config)
        finally:
            runc.kill_and_delete(container_id)
        if output == "pipe":
            assert reader.read() == b"request 1\n"
    overlay.destroy()
    log.unlink()
    shutil.rmtree(runc_root)
    plan = plan_restore("web", lab.config)
    root = _prepared(lab, plan, "target")
    new_log = lab.tmp_path / "new.log"
    restored = restore_container(plan, lab.config, root=root, container_id=lab.id("target"), log=new_log)
    wait_ready(url(port), 60, pid=restored.pid)
    assert ask(port) == "2"
    assert new_log.read_text().lstrip("\0") == "request 2\n"
