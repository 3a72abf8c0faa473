"""GPU state moves as a whole or not at all: every edge of suspend and resume, against the stand-in."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, ColdstartError, Terminated, UnavailableError, UsageError
from coldstart_cli.process import find_program, run
from coldstart_snapshot.cuda import CudaClient, CudaStuckError, cuda_client, gpu_device_files
from coldstart_snapshot.cuda_program import CheckpointProgram, CudaError, CudaState, CudaTimeoutError
from conftest import wait_until
from stand_ins.cuda import CudaStandIn, state_of

OLD = "GPU-11111111-2222-3333-4444-555555555555"
NEW = "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaStandIn]:
    stand_in = CudaStandIn(tmp_path / "cuda")
    for name, value in stand_in.environment.items():
        monkeypatch.setenv(name, value)
    yield stand_in
    stand_in.close()


@pytest.fixture
def client(cuda: CudaStandIn) -> CudaClient:
    return CudaClient(cuda.program, rollback_seconds=5)


def _states(*pids: int) -> list[str | None]:
    return [state_of(pid) for pid in pids]


# --- finding ---


def test_only_processes_with_cuda_state_are_found(cuda: CudaStandIn, client: CudaClient) -> None:
    plain, first, second = cuda.spawn(cuda=False), cuda.spawn(), cuda.spawn()
    assert client.find_gpu_processes([second, plain, first]) == (second, first)


def test_a_broken_driver_is_not_taken_for_a_process_without_cuda_state(
    cuda: CudaStandIn, client: CudaClient
) -> None:
    pid = cuda.spawn()
    cuda.fault("get-restore-tid", "no device")
    with pytest.raises(UnavailableError, match="no CUDA-capable device is detected") as caught:
        client.find_gpu_processes([pid])
    assert caught.value.hint is not None
    assert "/dev/nvidia" in caught.value.hint


def test_a_program_before_driver_555_is_refused_with_the_driver_it_needs(
    cuda: CudaStandIn, client: CudaClient
) -> None:
    cuda.set(version="550.54.09")
    with pytest.raises(UnavailableError, match="driver 555 or newer"):
        client.find_gpu_processes([cuda.spawn()])


def test_the_version_is_read_from_the_help(cuda: CudaStandIn) -> None:
    cuda.set(version="570.86.10")
    program = CheckpointProgram(cuda.program)
    assert program.version == "570.86.10"
    assert not program.supports("--device-map")


# --- suspend and resume ---


def test_all_are_locked_before_one_is_checkpointed_and_restored_before_one_is_unlocked(
    cuda: CudaStandIn, client: CudaClient
) -> None:
    first, second = cuda.spawn(), cuda.spawn()
    client.suspend([first, second], timeout_seconds=20)
    assert _states(first, second) == ["checkpointed", "checkpointed"]
    client.resume([first, second])
    assert _states(first, second) == ["running", "running"]
    actions = [call for call in cuda.calls() if not call.startswith("get-")]
    order = ("lock", "checkpoint", "restore", "unlock")
    assert actions == [f"{action} {pid}" for action in order for pid in (first, second)]


def test_a_cycle_can_be_repeated(cuda: CudaStandIn, client: CudaClient) -> None:
    pid = cuda.spawn()
    for _ in range(2):
        client.suspend([pid], timeout_seconds=20)
        client.resume([pid])
    assert state_of(pid) == "running"


def test_nothing_is_called_for_no_processes(cuda: CudaStandIn, client: CudaClient) -> None:
    client.suspend([], timeout_seconds=1)
    client.resume([])
    assert cuda.calls() == []


def test_a_process_that_another_tool_has_locked_is_left_alone(cuda: CudaStandIn, client: CudaClient) -> None:
    free, held = cuda.spawn(), cuda.spawn()
    CheckpointProgram(cuda.program).lock(held, 5)
    with pytest.raises(BusyError, match=f"process {held} is locked, not running"):
        client.suspend([free, held], timeout_seconds=5)
    assert _states(free, held) == ["running", "locked"]


FAULTS = [
    ("lock", "timeout", CudaTimeoutError, "device not ready"),
    ("lock", "operating system", CudaError, "OS call failed"),
    ("lock", "hang", CudaTimeoutError, "no end after"),
    ("lock", "crash", CudaError, "ended by signal 11"),
    ("lock", "crash after", CudaError, "ended by signal 11"),
    ("lock", "initialization", UnavailableError, "initialization error"),
    ("checkpoint", "out of memory", CudaError, "out of memory"),
    ("checkpoint", "operating system", CudaError, "OS call failed"),
    ("checkpoint", "not supported", CudaError, "operation not supported"),
    ("checkpoint", "hang", CudaTimeoutError, "no end after"),
    ("checkpoint", "crash", CudaError, "ended by signal 11"),
    ("checkpoint", "crash after", CudaError, "ended by signal 11"),
]


@pytest.mark.parametrize(("operation", "fault", "kind", "text"), FAULTS)
@pytest.mark.parametrize("position", [0, 1])
def test_a_failed_suspend_leaves_every_process_running(
    cuda: CudaStandIn,
    client: CudaClient,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    fault: str,
    kind: type[ColdstartError],
    text: str,
    position: int,
) -> None:
    monkeypatch.setattr("coldstart_snapshot.cuda_program._LOCK_GRACE_SECONDS", 1.0)
    pids = [cuda.spawn(), cuda.spawn()]
    cuda.fault(operation, fault, pid=pids[position])
    with pytest.raises(kind, match=text) as caught:
        client.suspend(pids, timeout_seconds=1.5 if fault in {"hang", "timeout"} else 20)
    assert _states(*pids) == ["running", "running"]
    assert f"process {pids[position]}" in caught.value.message
    assert caught.value.message.endswith("every process runs again")
    if position == 1:
        return
    # and the same processes can be suspended when the fault is gone
    client.suspend(pids, timeout_seconds=20)
    assert _states(*pids) == ["checkpointed", "checkpointed"]


@pytest.mark.parametrize("operation", ["get-state", "*"])
def test_an_unreadable_state_in_the_middle_is_rolled_back(
    cuda: CudaStandIn, client: CudaClient, operation: str
) -> None:
    pids = [cuda.spawn(), cuda.spawn()]
    cuda.fault(operation, "crash", skip=3)
    with pytest.raises(CudaError, match="ended by signal 11"):
        client.suspend(pids, timeout_seconds=20)
    assert _states(*pids) == ["running", "running"]


def test_an_unlock_that_reports_an_error_after_it_worked_is_forgiven(
    cuda: CudaStandIn, client: CudaClient
) -> None:
    pid = cuda.spawn()
    cuda.fault("checkpoint", "out of memory")
    cuda.fault("unlock", "crash after", times=2)
    with pytest.raises(CudaError, match="every process runs again"):
        client.suspend([pid], timeout_seconds=20)
    client.suspend([pid], timeout_seconds=20)
    client.resume([pid])
    assert state_of(pid) == "running"


def test_an_unlock_that_fails_once_is_tried_again(cuda: CudaStandIn, client: CudaClient) -> None:
    pid = cuda.spawn()
    cuda.fault("unlock", "crash")
    client.suspend([pid], timeout_seconds=20)
    client.resume([pid])
    assert state_of(pid) == "running"


@pytest.mark.parametrize("signal_error", [KeyboardInterrupt, Terminated])
def test_an_interrupted_suspend_is_rolled_back_too(
    cuda: CudaStandIn, signal_error: type[BaseException]
) -> None:
    class Interrupted(CheckpointProgram):
        def checkpoint(self, pid: int, deadline_seconds: float) -> None:
            super().checkpoint(pid, deadline_seconds)
            raise signal_error

    pids = [cuda.spawn(), cuda.spawn()]
    with pytest.raises(signal_error):
        CudaClient(Interrupted(cuda.program)).suspend(pids, timeout_seconds=20)
    assert _states(*pids) == ["running", "running"]


@pytest.mark.skipif(os.geteuid() != 0, reason="criu needs root")
def test_gpu_state_goes_through_criu_with_the_process(
    cuda: CudaStandIn, client: CudaClient, tmp_path: Path
) -> None:
    pid = cuda.spawn()
    client.suspend([pid], timeout_seconds=20)
    images = tmp_path / "images"
    images.mkdir()
    criu = [find_program("criu"), "--no-default-config", "-D", str(images), "-v2"]
    run([*criu, "dump", "-t", str(pid), "-o", "dump.log"], deadline_seconds=60)
    cuda.reap(pid)
    assert state_of(pid) is None
    run([*criu, "restore", "-d", "-o", "restore.log"], deadline_seconds=60)
    try:
        assert state_of(pid) == "checkpointed"
        client.resume([pid])
        assert state_of(pid) == "running"
    finally:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: state_of(pid) is None, "the restored process to be gone")


# --- stuck processes ---


def test_a_process_in_the_state_failed_is_reported_as_stuck_and_the_others_run(
    cuda: CudaStandIn, client: CudaClient
) -> None:
    good, bad = cuda.spawn(), cuda.spawn()
    cuda.fault("checkpoint", "failed", pid=bad)
    with pytest.raises(CudaStuckError, match="its GPU state is failed") as caught:
        client.suspend([good, bad], timeout_seconds=20)
    assert caught.value.pids == (bad,)
    assert caught.value.hint == f"kill -9 {bad}"
    assert state_of(good) == "running"


def test_a_rollback_that_fails_names_the_process_and_does_not_try_its_restore_again(
    cuda: CudaStandIn, client: CudaClient
) -> None:
    good, bad = cuda.spawn(), cuda.spawn()
    cuda.fault("checkpoint", "operating system", pid=bad)
    cuda.fault("restore", "out of memory", pid=good)
    with pytest.raises(CudaStuckError, match="out of memory") as caught:
        client.suspend([good, bad], timeout_seconds=20)
    assert caught.value.pids == (good,)
    assert state_of(bad) == "running"
    assert cuda.calls().count(f"restore {good}") == 1


def test_a_process_that_dies_during_suspend_does_not_keep_the_others(
    cuda: CudaStandIn, client: CudaClient
) -> None:
    good, dying = cuda.spawn(), cuda.spawn()
    cuda.fault("lock", "die", pid=dying)
    with pytest.raises(CudaStuckError) as caught:
        client.suspend([good, dying], timeout_seconds=20)
    assert caught.value.pids == (dying,)
    assert state_of(good) == "running"


def test_a_driver_that_hangs_for_good_is_given_up_and_reported(cuda: CudaStandIn) -> None:
    pid = cuda.spawn()
    cuda.fault("*", "hang", skip=3, times=99)
    with pytest.raises(CudaStuckError, match="no end after") as caught:
        CudaClient(cuda.program, rollback_seconds=0.3).suspend([pid], timeout_seconds=1)
    assert caught.value.pids == (pid,)


@pytest.mark.parametrize("fault", ["out of memory", "operating system", "invalid argument", "failed", "hang"])
def test_a_failed_restore_is_reported_with_its_cause_and_never_repeated(
    cuda: CudaStandIn, client: CudaClient, fault: str
) -> None:
    bad, good = cuda.spawn(), cuda.spawn()
    client.suspend([bad, good], timeout_seconds=20)
    cuda.fault("restore", fault, pid=bad)
    with pytest.raises(CudaStuckError) as caught:
        client.resume([bad, good], timeout_seconds=1 if fault == "hang" else 20)
    assert caught.value.pids == (bad,)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"kill -9 {bad}")
    assert cuda.calls().count(f"restore {bad}") == 1
    assert state_of(good) == "running"


def test_a_process_that_stays_locked_is_an_error(cuda: CudaStandIn, client: CudaClient) -> None:
    pid = cuda.spawn()
    client.suspend([pid], timeout_seconds=20)
    cuda.fault("unlock", "operating system", times=99)
    with pytest.raises(CudaStuckError, match="cannot unlock GPU state"):
        client.resume([pid])
    assert state_of(pid) == "locked"


# --- device maps ---


def test_a_device_map_is_handed_over_and_an_identity_is_not(cuda: CudaStandIn, client: CudaClient) -> None:
    pid = cuda.spawn()
    cuda.set(devices=[OLD])
    client.suspend([pid], timeout_seconds=20)
    client.resume([pid], {OLD: NEW})
    cuda.set(version="570.86.10")  # knows no --device-map, and needs none for an identity
    client.suspend([pid], timeout_seconds=20)
    CudaClient(cuda.program).resume([pid], {OLD: OLD})
    assert state_of(pid) == "running"


def test_a_device_map_before_driver_580_and_an_incomplete_one_fail_with_a_hint(
    cuda: CudaStandIn, client: CudaClient
) -> None:
    first, second = cuda.spawn(), cuda.spawn()
    cuda.set(version="570.86.10", devices=[OLD, NEW])
    client.suspend([first, second], timeout_seconds=20)
    with pytest.raises(CudaStuckError, match="driver 580 or newer"):
        CudaClient(cuda.program).resume([first], {OLD: NEW})
    cuda.set(version="580.65.06")
    with pytest.raises(CudaStuckError, match="invalid argument") as caught:
        CudaClient(cuda.program).resume([second], {OLD: NEW})
    assert caught.value.hint is not None
    assert "every GPU of the snapshot" in caught.value.hint


@pytest.mark.parametrize("device_map", [{"GPU-1": NEW}, {OLD: "MIG-1"}, {OLD: NEW, NEW: NEW}])
def test_a_wrong_device_map_is_refused_before_the_driver_is_asked(
    cuda: CudaStandIn, device_map: dict[str, str]
) -> None:
    pid = cuda.spawn()
    with pytest.raises(UsageError):
        CheckpointProgram(cuda.program).restore(pid, 5, device_map)
    assert cuda.calls() == []


# --- hosts ---


def test_a_host_without_driver_and_program_has_no_client(tmp_path: Path) -> None:
    assert cuda_client("cuda-checkpoint", driver_marks=[tmp_path / "nvidiactl"]) is None


def test_a_configured_path_that_does_not_exist_is_an_error_everywhere(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="program is not installed"):
        cuda_client(f"{tmp_path}/cuda-checkpoint", driver_marks=[])


def test_a_configured_program_is_used(cuda: CudaStandIn) -> None:
    client = cuda_client(cuda.program, driver_marks=[])
    assert client is not None
    pid = cuda.spawn()
    assert client.find_gpu_processes([pid]) == (pid,)
    assert client.backend.state(pid, 5) is CudaState.RUNNING


def test_with_a_driver_but_without_the_program_gpu_users_are_refused_and_others_pass(
    cuda: CudaStandIn, tmp_path: Path
) -> None:
    device = tmp_path / "nvidiactl"
    device.touch()
    client = cuda_client("cuda-checkpoint", driver_marks=[device], device_prefix=f"{tmp_path}/nvidia")
    assert client is not None
    assert client.find_gpu_processes([os.getpid(), cuda.spawn(cuda=False)]) == ()
    with device.open() as held:
        user = subprocess.Popen(["sleep", "60"], stdin=held)
        try:
            assert gpu_device_files(user.pid, f"{tmp_path}/nvidia") == (str(device),)
            with pytest.raises(UnavailableError, match=f"process {user.pid} uses a GPU") as caught:
                client.find_gpu_processes([user.pid])
        finally:
            user.send_signal(signal.SIGKILL)
            user.wait()
    assert caught.value.hint is not None
    assert "install" in caught.value.hint


def test_device_files_of_a_process_that_is_gone_are_none() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert gpu_device_files(child.pid) == ()
