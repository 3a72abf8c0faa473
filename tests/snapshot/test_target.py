"""What cannot be captured is told in words, before anything is touched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from coldstart_cli.config import load
from coldstart_cli.errors import DataError, NotFoundError, PermissionNeededError, UsageError
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.target import process_target
from coldstart_snapshot.processes.tree import all_pids, is_kernel_thread, mount_ids, own_ancestors
from snapshot.servers import require_root


@pytest.fixture
def leader() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, start_new_session=True) as child:
        yield child.pid
        child.kill()


def test_a_process_that_we_may_not_look_into_is_refused_by_name(leader: int) -> None:
    require_root()
    assert process_target(leader).pid == leader
    os.seteuid(65534)
    try:
        with pytest.raises(PermissionNeededError, match=rf"cannot look into process {leader} \(sleep\)"):
            process_target(leader)
    finally:
        os.seteuid(0)


def test_our_own_tree_is_refused() -> None:
    assert {os.getpid(), os.getppid()} <= own_ancestors()
    for pid in own_ancestors():
        with pytest.raises(DataError, match="coldstart itself is in that tree") as caught:
            process_target(pid)
        assert "setsid" in str(caught.value.hint)


def test_a_kernel_thread_is_called_one(leader: int) -> None:
    assert not is_kernel_thread(leader)
    if 2 not in all_pids() or not is_kernel_thread(2):
        pytest.skip("no kernel threads to be seen in this pid namespace")
    with pytest.raises(DataError, match=r"process 2 .* is a kernel thread"):
        process_target(2)


def test_a_process_that_has_ended_is_not_found() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    for look in (process_target, mount_ids, is_kernel_thread):
        with pytest.raises(NotFoundError, match=f"no such process: {child.pid}"):
            look(child.pid)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_ready_timeout_that_is_none_is_refused_first(seconds: float) -> None:
    with pytest.raises(UsageError, match="ready timeout is not a positive number of seconds"):
        create_snapshot(CaptureRequest("web", pid=os.getpid(), ready_timeout_seconds=seconds), load())
