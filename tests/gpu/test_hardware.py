"""A real driver moves the memory of a real process, and criu carries it: for machines that have a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.config import Config, load
from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.cuda.backend import CudaState
from coldstart_snapshot.cuda.capturing import prepare_capture
from coldstart_snapshot.cuda.choice import cuda_client
from coldstart_snapshot.processes.tree import end_tree, process_tree
from coldstart_snapshot.restoring.restore import plan_restore, restore_process
from ports import free_port
from small_root import ask
from snapshot.servers import require_engine, url

pytestmark = pytest.mark.gpu

SERVER = Path(__file__).resolve().parent.parent / "stand_ins" / "gpu_server.py"
STAND_IN = bool(os.environ.get("GPU_STAND_IN"))
PROGRAM = os.environ.get("GPU_STAND_IN_PROGRAM", "cuda-checkpoint")


@pytest.fixture(params=["driver-api", "cuda-checkpoint"])
def config(request: pytest.FixtureRequest) -> Config:
    """Each way to the driver that this machine has."""
    if request.param == "cuda-checkpoint" and shutil.which(PROGRAM) is None:
        pytest.skip("cuda-checkpoint is not installed")
    return load({"snapshot.cuda_backend": request.param, "programs.cuda_checkpoint": PROGRAM})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Pid and port of a GPU server that nobody of ours has to reap."""
    require_engine()
    port = free_port()
    pid_file = tmp_path / "pid"
    command = f"setsid {sys.executable} {SERVER} {port} </dev/null >{tmp_path}/log 2>&1 & echo $! >{pid_file}"
    subprocess.run(["sh", "-c", command], check=True, timeout=20, close_fds=True)
    pid = int(pid_file.read_text())
    try:
        wait_ready(url(port), 60, pid=pid)
        yield pid, port
    finally:
        end_tree(pid, grace_seconds=2)


def test_memory_of_a_process_leaves_its_gpu_and_comes_back(config: Config, server: tuple[int, int]) -> None:
    pid, port = server
    before = ask(port, "/weights")
    capture = prepare_capture(process_tree(pid), config)
    assert capture is not None
    client = capture.client
    try:
        assert capture.pids == (pid,)
        assert capture.problems == ()
        if not STAND_IN:
            assert capture.state.memory_used_bytes > 0
        for _ in range(2):
            client.suspend([pid], 60)
            assert client.backend.state(pid, 30) is CudaState.CHECKPOINTED
            client.resume([pid], timeout_seconds=60)
            assert client.backend.state(pid, 30) is CudaState.RUNNING
    finally:
        client.close()
    assert ask(port, "/weights") == before


def test_a_process_without_cuda_state_is_none(config: Config, server: tuple[int, int]) -> None:
    client = cuda_client(config)
    try:
        assert client.find_gpu_processes([os.getpid(), server[0]]) == (server[0],)
    finally:
        client.close()


def test_a_gpu_server_is_captured_and_restored_with_its_memory(
    config: Config, server: tuple[int, int], tmp_path: Path
) -> None:
    pid, port = server
    before = ask(port, "/answer?hello")
    captured = create_snapshot(CaptureRequest("gpu", pid=pid, ready_url=url(port)), config)
    assert captured.manifest.gpu is not None
    assert ask(port, "/answer?hello") == before
    end_tree(pid)
    restore_process(plan_restore("gpu", config), config, log=tmp_path / "restored.log")
    wait_ready(url(port), 60)
    assert ask(port, "/answer?hello") == before
