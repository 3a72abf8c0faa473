"""A criu that hangs is ended at its deadline, and so is what it had begun, which would spin without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.config import load
from coldstart_cli.errors import ColdstartError
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.processes.tree import is_alive
from coldstart_snapshot.restoring.restore import plan_restore, restore_process
from conftest import wait_until
from snapshot.servers import Lab, free_port, laboratory, url


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def test_nothing_of_a_restore_that_hangs_is_left_running(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    pid, _, _ = lab.start_process(port)
    create_snapshot(CaptureRequest("web", pid=pid, ready_url=url(port), stop=True), lab.config)
    plan = plan_restore("web", lab.config)
    # after it was verified: what criu 4.2 meets then is a file that ends too early
    pages = max(plan.images.glob("pages-*.img"), key=lambda path: path.stat().st_size)
    os.truncate(pages, pages.stat().st_size // 2)
    monkeypatch.setenv("COLDSTART_SNAPSHOT_RESTORE_TIMEOUT_SECONDS", "3")
    with pytest.raises(ColdstartError):
        restore_process(plan, load(), log=lab.tmp_path / "log")
    wait_until(lambda: not is_alive(pid), "what criu had begun is gone")
