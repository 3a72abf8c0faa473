"""Memory on demand: the server answers before it has it, and has all of it in the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from coldstart_cli.config import load
from coldstart_cli.errors import UnavailableError, UsageError
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.container import kill_and_delete
from coldstart_snapshot.containers.upper import unpack_upper
from coldstart_snapshot.criu.program import Criu, find_criu, has_feature
from coldstart_snapshot.restoring.lazy import require_lazy
from coldstart_snapshot.restoring.restore import RestorePlan, plan_restore, restore_container, restore_process
from conftest import wait_until
from snapshot.made import manifest_of
from snapshot.servers import Lab, ask, free_port, laboratory, url


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        if not has_feature(find_criu(load().text("programs.criu")), "uffd-noncoop"):
            pytest.skip("this kernel has no userfaultfd for criu")
        yield lab


def _daemons(images: Path) -> list[int]:
    """Processes of criu that bring pages of these images."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            if b"lazy-pages" in words and os.fsencode(images) in words:
                found.append(int(entry))
    return found


def _lazy_plan(lab: Lab) -> RestorePlan:
    plan = plan_restore("web", lab.config)
    require_lazy(plan.criu, plan.manifest)
    return replace(plan, lazy=True)


def test_a_container_whose_memory_comes_on_demand_has_all_of_it(lab: Lab) -> None:
    port = free_port()
    container, overlay, log = lab.start("source", port, "noise", "child", "threads")
    expected = ask(port, "/noise")
    create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    lab.erase(container, overlay, log)
    plan = _lazy_plan(lab)
    target = lab.overlay("target")
    unpack_upper(plan.upper_archive, target.upper)
    target.mount()
    restored = restore_container(
        plan, lab.config, root=target.root, container_id=lab.id("target"), log=lab.tmp_path / "new.log"
    )
    assert restored.budget is not None
    assert restored.budget.lazy
    wait_ready(url(port), 60, pid=restored.pid)
    assert ask(port, "/noise") == expected
    wait_until(lambda: _daemons(plan.images) == [], "the daemon has brought everything")
    assert ask(port, "/noise") == expected


def test_a_container_is_taken_down_while_its_memory_still_comes(lab: Lab) -> None:
    port = free_port()
    container, overlay, log = lab.start("source", port, "noise")
    create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    lab.erase(container, overlay, log)
    plan = _lazy_plan(lab)
    target = lab.overlay("target")
    unpack_upper(plan.upper_archive, target.upper)
    target.mount()
    restored = restore_container(
        plan, lab.config, root=target.root, container_id=lab.id("target"), log=lab.tmp_path / "new.log"
    )
    kill_and_delete(restored.id, runc_root=lab.runc_root)
    wait_until(lambda: _daemons(plan.images) == [], "the daemon ends with the server")


def test_a_plain_process_gets_its_memory_on_demand_too(lab: Lab) -> None:
    port = free_port()
    pid, log, _ = lab.start_process(port, "noise")
    expected = ask(port, "/noise")
    create_snapshot(CaptureRequest("web", pid=pid, ready_url=url(port), stop=True), lab.config)
    plan = _lazy_plan(lab)
    restored = restore_process(plan, lab.config, log=log.with_name("new"))
    lab.pids.append(restored.pid)
    wait_ready(url(port), 60, pid=restored.pid)
    assert ask(port, "/noise") == expected
    wait_until(lambda: _daemons(plan.images) == [], "the daemon has brought everything")


def test_a_failed_restore_leaves_no_daemon(lab: Lab) -> None:
    port = free_port()
    container, overlay, log = lab.start("source", port, "lock")
    create_snapshot(CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config)
    lab.erase(container, overlay, log)
    plan = _lazy_plan(lab)
    # the layer is not unpacked: the lock file that the server has open is not there
    target = lab.overlay("target").mount()
    with pytest.raises(Exception, match="does not exist: srv/lock"):
        restore_container(
            plan, lab.config, root=target.root, container_id=lab.id("target"), log=lab.tmp_path / "log"
        )
    assert _daemons(plan.images) == []


def test_a_kernel_that_cannot_is_told_with_what_to_do_instead(tmp_path: Path) -> None:
    program = tmp_path / "criu"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(UnavailableError, match="--lazy: its kernel has no userfaultfd"):
        require_lazy(Criu(str(program), "4.2.1"), replace(manifest_of("web"), gpu=None))


def test_gpu_state_and_memory_on_demand_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="GPU state cannot come on demand"):
        require_lazy(Criu("/nonexistent", "4.2.1"), manifest_of("web"))
