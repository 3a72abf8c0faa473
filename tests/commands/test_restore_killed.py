"""A restore or launch that is killed before it has seen its server answer leaves no unchecked one behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.files import mounts_below
from coldstart_snapshot.processes.tree import is_alive
from conftest import Coldstart, wait_until
from replicas import Replica
from small_root import answers
from snapshot.servers import Lab, ask, free_port, laboratory, url


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def _killed_when_it_answers(coldstart: Coldstart, port: int, *arguments: str | Path) -> None:
    """Start a command, and kill it once the server answers, but not to what the command asks."""
    process = subprocess.Popen(
        [coldstart.program, *arguments],
        env=coldstart.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: answers(port), "the server answers", 60)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(60)


def test_a_restored_process_whose_golden_answers_nobody_has_seen_is_ended(
    coldstart: Coldstart, lab: Lab, tmp_path: Path
) -> None:
    golden = tmp_path / "golden.toml"
    golden.write_text('path = "/file"\n')
    pid, _, folder = lab.start_process(port := free_port())
    ask(port)
    create = [
        "snap",
        "create",
        "web",
        "--pid",
        str(pid),
        "--ready-url",
        url(port),
        "--golden",
        golden,
        "--stop",
    ]
    created = coldstart(*create)
    assert created.status == 0, created.stderr
    # whoever opens it waits for a writer
    (folder / "count").unlink()
    os.mkfifo(folder / "count")
    _killed_when_it_answers(coldstart, port, "snap", "restore", "web", "--detach", "--no-fallback")
    wait_until(lambda: not is_alive(pid), "the unchecked server is ended", 60)
    (folder / "count").unlink()
    (folder / "count").write_text("1")
    again = coldstart("snap", "restore", "web", "--detach", "--no-fallback")
    assert again.status == 0, again.stderr
    assert ask(port, "/file") == "1"


def test_a_launched_container_that_was_never_ready_is_taken_down(replica: Replica) -> None:
    replica.write(url=f'"http://127.0.0.1:{replica.port}/never"')
    _killed_when_it_answers(replica.coldstart, replica.port, "launch", replica.spec, "--cold", "--detach")
    wait_until(lambda: not answers(replica.port), "the unchecked server is ended", 60)
    wait_until(lambda: not list(replica.run_folder.glob("replicas/*/")), "its folders are gone", 60)
    assert mounts_below(replica.run_folder) == []


def test_a_server_that_was_seen_ready_stays_when_its_supervisor_is_killed(replica: Replica) -> None:
    process = replica.foreground("launch", replica.spec)
    process.kill()
    process.communicate(timeout=60)
    assert ask(replica.port, "/health") == "ok"
    assert replica.stop().status == 0
