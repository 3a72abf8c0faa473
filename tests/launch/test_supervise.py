"""A replica that is ready, and what ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from coldstart_cli.config import load
from coldstart_fs.mounts.mount import find_mount
from coldstart_launch.chain import Running
from coldstart_launch.replica import Replica
from coldstart_launch.supervise import replica_ends
from conftest import wait_until
from fs.mounts import Lab, laboratory


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def test_an_image_server_that_died_before_anybody_looked_ends_its_replica(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.image(file=b"content")
    record = lab.mount()
    monkeypatch.setenv("COLDSTART_RUN_DIR", str(lab.run))
    outcome: Any = SimpleNamespace(root=record.mountpoint, pid=os.getpid())
    publisher: Any = SimpleNamespace(pids=[])
    running = Running(Replica("web", load()), outcome, publisher)
    server: Any = record.server()
    for process in (server.keeper, server.server):
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not server.lives(), "nobody serves the mount")
    assert find_mount(record.mountpoint, lab.run) is not None
    answers: list[bool] = []
    Thread(target=lambda: answers.append(replica_ends(running)), daemon=True).start()
    wait_until(lambda: answers == [False], "the replica is ended")
