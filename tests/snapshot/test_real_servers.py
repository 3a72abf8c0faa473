"""Servers as people run them come back with their state, again and again, and leave nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coldstart_cli.files import mounts_below
from coldstart_host.cpu import read_cpu_facts
from coldstart_host.cpu_levels import reaches
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.container import (
    RunningContainer,
    kill_and_delete,
    run_container,
)
from coldstart_snapshot.containers.new_bundle import ContainerSpec
from coldstart_snapshot.containers.upper import unpack_upper
from coldstart_snapshot.cpu.capped import CappedStart
from coldstart_snapshot.cpu.cpuid_cap import can_mask
from coldstart_snapshot.processes.tree import process_tree
from coldstart_snapshot.restoring.restore import plan_restore, restore_container
from conftest import wait_until
from snapshot.real_servers import HEAVY, LIGHT, Ask, RealServer
from snapshot.servers import Lab, free_port, has_capability, laboratory

_CAP_SYS_RESOURCE = 24


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def _comes_back(lab: Lab, server: RealServer, times: int, capped: CappedStart | None = None) -> None:
    server.require()
    if server.user != "root" and not has_capability(_CAP_SYS_RESOURCE):
        pytest.skip("criu may not look at processes of other users: CAP_SYS_RESOURCE is missing")
    port = free_port()
    container = _start(lab, server, port, capped)
    _wait_for(server.change, port, f"{server.name} answers")
    server.change(port)
    expected = server.look(port)
    assert len(process_tree(container.pid)) >= server.processes
    captured = create_snapshot(CaptureRequest("real", container_id=container.id, capped=capped), lab.config)
    assert captured.manifest.caps is None or captured.manifest.caps.problems == ()
    assert server.look(port) == expected
    kill_and_delete(container.id, runc_root=lab.runc_root)
    lab.overlays.pop().destroy()

    kept: list[str] = []
    for turn in range(times):
        plan = plan_restore("real", lab.config)
        assert plan.variant == captured.manifest.variant
        overlay = lab.overlay(f"root-{turn}")
        if plan.upper_archive is not None:
            unpack_upper(plan.upper_archive, overlay.upper)
        overlay.mount()
        restored = restore_container(
            plan, lab.config, root=overlay.root, container_id=lab.id(f"r{turn}"), log=lab.tmp_path / "log"
        )
        _wait_for(server.look, port, f"{server.name} answers again")
        assert server.look(port) == expected
        assert len(process_tree(restored.pid)) == len(captured.manifest.tree)
        # it does not only remember, it works
        server.change(port)
        if server.name != "nginx":
            assert server.look(port) != expected
        kill_and_delete(restored.id, runc_root=lab.runc_root)
        lab.overlays.pop().destroy()
        found = _traces(lab, restored)
        assert turn == 0 or found == kept
        kept = found


def _start(lab: Lab, server: RealServer, port: int, capped: CappedStart | None) -> RunningContainer:
    overlay = lab.overlay("source").mount()
    server.prepare(overlay.root / "srv", port)
    uid, gid = server.identity()
    spec = ContainerSpec(
        id=lab.id("source"),
        root=overlay.root,
        arguments=tuple(part.replace("{port}", str(port)) for part in server.arguments),
        environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **server.environment},
        log=lab.tmp_path / "source.log",
        uid=uid,
        gid=gid,
    )
    if capped is None:
        return lab.run(spec)
    return run_container(capped.apply(spec), lab.config, before_start=capped.before_start)


def _wait_for(ask: Ask, port: int, what: str) -> None:
    def answers() -> bool:
        try:
            ask(port)
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    wait_until(answers, what, 60)


def _traces(lab: Lab, ended: RunningContainer) -> list[str]:
    """What is left of a container that was ended: no process, no mount, no file but the locks and the log."""
    assert lab.processes_in(ended.id) == []
    assert mounts_below(lab.tmp_path) == []
    folders = (lab.config.run_folder, lab.config.state_folder)
    return sorted(str(path) for folder in folders for path in folder.rglob("*"))


@pytest.mark.parametrize("server", LIGHT, ids=lambda server: server.name)
def test_a_server_comes_back_three_times_with_its_state(lab: Lab, server: RealServer) -> None:
    _comes_back(lab, server, 3)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("server", LIGHT + HEAVY, ids=lambda server: server.name)
def test_a_server_comes_back_twenty_times_and_nothing_piles_up(lab: Lab, server: RealServer) -> None:
    _comes_back(lab, server, 20)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("server", LIGHT + HEAVY, ids=lambda server: server.name)
def test_a_server_that_is_held_to_a_level_is_proven_to_keep_to_it_and_comes_back(
    lab: Lab, server: RealServer
) -> None:
    host = read_cpu_facts()
    if not reaches("x86-64-v3", host.level) or not can_mask(host):
        pytest.skip("CPUID cannot be made to fault on this CPU, or it has no AVX2")
    with closing(CappedStart("x86-64-v3", host)) as capped:
        _comes_back(lab, server, 1, capped)
