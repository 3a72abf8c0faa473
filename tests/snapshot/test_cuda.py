"""GPU state moves as a whole or not at all: every edge of suspend and resume, by both ways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from coldstart_cli.errors import BusyError, ColdstartError, Terminated, UnavailableError, UsageError
from coldstart_cli.process import find_program, run
from coldstart_snapshot.cuda.backend import CudaBackend, CudaError, CudaState, CudaTimeoutError
from coldstart_snapshot.cuda.client import CudaClient, CudaStuckError
from coldstart_snapshot.cuda.driver_api import DriverApi
from coldstart_snapshot.cuda.program import CheckpointProgram
from conftest import wait_until
from stand_ins.cuda import CudaStandIn, is_poisoned, state_of

OLD = "GPU-00000000-0000-0000-0000-000000000000"
NEW = "GPU-00000000-0000-0000-0000-000000000001"
BACKENDS = ("cuda-checkpoint", "driver-api")


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaStandIn]:
    stand_in = CudaStandIn(tmp_path / "cuda")
    for name, value in stand_in.environment.items():
        monkeypatch.setenv(name, value)
    # a host of one GPU, where a process sees no others
    stand_in.set(devices=1)
    yield stand_in
    stand_in.close()


@pytest.fixture(params=BACKENDS)
def connect(cuda: CudaStandIn, request: pytest.FixtureRequest) -> Iterator[Callable[[], CudaBackend]]:
    """Makes back ends of one kind."""
    made: list[CudaBackend] = []

    def make() -> CudaBackend:
        made.append(DriverApi() if request.param == "driver-api" else CheckpointProgram(cuda.program))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def client(connect: Callable[[], CudaBackend]) -> CudaClient:
    return CudaClient(connect(), rollback_seconds=5)


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
    cuda.fault("init", "no device")
    with pytest.raises(UnavailableError, match="no CUDA-capable device is detected") as caught:
        client.find_gpu_processes([pid])
    assert caught.value.hint is not None
    assert "/dev/nvidia" in caught.value.hint


def test_a_forked_child_of_a_gpu_process_has_no_cuda_state(cuda: CudaStandIn, client: CudaClient) -> None:
    pid = cuda.spawn(extras=["fork"])
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: bool(children.read_text()), "the child is there")
    child = int(children.read_text())
    try:
        assert client.find_gpu_processes([pid, child]) == (pid,)
    finally:
        os.kill(child, signal.SIGKILL)


def test_without_root_the_driver_cannot_work_on_processes_of_others(cuda: CudaStandIn) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to leave it")
    pid = cuda.spawn()
    command = [find_program("setpriv"), "--reuid", "65534", "--clear-groups", "--", cuda.program]
    done = run([*command, "--action", "lock", "--pid", str(pid)], deadline_seconds=20, check=False)
    assert done.status == 1
    assert "OS call failed or operation not supported on this OS" in done.error_text


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
    CheckpointProgram(cuda.program).lock(held, 60)
    with pytest.raises(BusyError, match=f"process {held} is locked, not running"):
        client.suspend([free, held], timeout_seconds=60)
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
    for module in ("program", "driver_api"):
        monkeypatch.setattr(f"coldstart_snapshot.cuda.{module}._LOCK_GRACE_SECONDS", 1.0)
    pids = [cuda.spawn(), cuda.spawn()]
    cuda.fault(operation, fault, pid=pids[position])
    with pytest.raises(kind, match=text) as caught:
        client.suspend(pids, timeout_seconds=4 if fault in {"hang", "timeout"} else 60)
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
    cuda: CudaStandIn,
    connect: Callable[[], CudaBackend],
    monkeypatch: pytest.MonkeyPatch,
    signal_error: type[BaseException],
) -> None:
    backend = connect()
    checkpoint = backend.checkpoint

    def interrupted(pid: int, deadline_seconds: float) -> None:
        checkpoint(pid, deadline_seconds)
        raise signal_error

    monkeypatch.setattr(backend, "checkpoint", interrupted)
    pids = [cuda.spawn(), cuda.spawn()]
    with pytest.raises(signal_error):
        CudaClient(backend).suspend(pids, timeout_seconds=20)
    assert _states(*pids) == ["running", "running"]


@pytest.mark.skipif(os.geteuid() != 0, reason="criu needs root")
def test_gpu_state_goes_through_criu_with_the_process(
    cuda: CudaStandIn, client: CudaClient, tmp_path: Path
) -> None:
    size = 3 << 20
    pid = cuda.spawn(size_bytes=size)
    client.suspend([pid], timeout_seconds=20)
    assert cuda.allocated() == []
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
        (memory,) = cuda.allocated()
        assert (cuda.vram / memory).read_bytes() == b"\x5a" * size
    finally:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: state_of(pid) is None, "the restored process to be gone")


def test_a_lock_has_a_deadline_of_its_own(
    cuda: CudaStandIn, client: CudaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldstart_snapshot.cuda.client._LOCK_SECONDS", 0.5)
    for module in ("program", "driver_api"):
        monkeypatch.setattr(f"coldstart_snapshot.cuda.{module}._LOCK_GRACE_SECONDS", 0.5)
    pid = cuda.spawn()
    cuda.fault("lock", "hang")
    with pytest.raises(CudaTimeoutError, match="no end after 1 s, killed; every process runs again"):
        client.suspend([pid], timeout_seconds=600)
    assert state_of(pid) == "running"


@pytest.mark.parametrize("operation", ["lock", "checkpoint", "get-state"])
def test_nccl_is_named_only_where_it_is_seen_and_keeps_a_lock_waiting(
    cuda: CudaStandIn, connect: Callable[[], CudaBackend], monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    for module in ("program", "driver_api"):
        monkeypatch.setattr(f"coldstart_snapshot.cuda.{module}._LOCK_GRACE_SECONDS", 0.1)
    pid = cuda.spawn()
    for nccl in (False, True):
        monkeypatch.setattr("coldstart_snapshot.cuda.backend.communicates", lambda _, nccl=nccl: nccl)
        cuda.fault(operation, "hang")
        backend = connect()
        if operation == "checkpoint":
            backend.lock(pid, 60)
        call = backend.state if operation == "get-state" else getattr(backend, operation)
        with pytest.raises(CudaTimeoutError) as caught:
            call(pid, 0.3)
        assert ("NCCL" in (caught.value.hint or "")) == (nccl and operation == "lock")
        backend.close()
        cuda.forgive()
        if operation == "checkpoint":
            backend.unlock(pid, 60)


@pytest.mark.parametrize("fault", ["operating system", "not supported", "out of memory"])
def test_a_driver_that_does_not_start_is_not_blamed_on_a_process(cuda: CudaStandIn, fault: str) -> None:
    cuda.fault("init", fault)
    with pytest.raises(UnavailableError, match="the NVIDIA driver does not start") as caught:
        DriverApi().require()
    assert caught.value.hint is not None
    assert "nvidia-smi" in caught.value.hint
    assert "IPC" not in caught.value.hint


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
    assert f"process {dying} is gone" in caught.value.message
    assert "kill" not in (caught.value.hint or "")
    assert state_of(good) == "running"


def test_a_driver_that_hangs_for_good_is_given_up_and_reported(
    cuda: CudaStandIn, connect: Callable[[], CudaBackend]
) -> None:
    pid = cuda.spawn()
    cuda.fault("*", "hang", skip=3, times=99)
    with pytest.raises(CudaStuckError, match="no end after") as caught:
        CudaClient(connect(), rollback_seconds=0.3).suspend([pid], timeout_seconds=5)
    assert caught.value.pids == (pid,)


@pytest.mark.parametrize("fault", ["out of memory", "operating system", "invalid argument", "failed", "hang"])
def test_a_failed_restore_is_reported_with_its_cause_and_never_repeated(
    cuda: CudaStandIn, client: CudaClient, fault: str
) -> None:
    bad, good = cuda.spawn(), cuda.spawn()
    client.suspend([bad, good], timeout_seconds=20)
    cuda.fault("restore", fault, pid=bad)
    with pytest.raises(CudaStuckError) as caught:
        client.resume([bad, good], timeout_seconds=5 if fault == "hang" else 60)
    assert caught.value.pids == (bad,)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"kill -9 {bad}")
    assert cuda.calls().count(f"restore {bad}") == 1
    assert is_poisoned(bad) == (fault not in {"failed", "hang"})
    assert state_of(good) == "running"


def test_a_process_that_stays_locked_is_an_error(cuda: CudaStandIn, client: CudaClient) -> None:
    pid = cuda.spawn()
    client.suspend([pid], timeout_seconds=20)
    cuda.fault("unlock", "operating system", times=99)
    with pytest.raises(CudaStuckError, match="cannot unlock GPU state"):
        client.resume([pid])
    assert state_of(pid) == "locked"


# --- device maps ---


def test_state_moves_to_another_gpu_by_a_map_and_an_identity_is_not_handed_over(
    cuda: CudaStandIn, client: CudaClient, connect: Callable[[], CudaBackend]
) -> None:
    cuda.set(devices=2)
    pid = cuda.spawn()
    client.suspend([pid], timeout_seconds=20)
    client.resume([pid], {OLD: NEW, NEW: OLD})
    assert [name[:4] for name in cuda.allocated()] == ["gpu1"]
    cuda.set(version="570.86.10")  # knows no device map, and needs none for an identity
    client.suspend([pid], timeout_seconds=20)
    CudaClient(connect()).resume([pid], {OLD: OLD})
    assert state_of(pid) == "running"


def test_a_device_map_before_driver_580_and_an_incomplete_one_fail_with_a_hint(
    cuda: CudaStandIn, client: CudaClient, connect: Callable[[], CudaBackend]
) -> None:
    cuda.set(devices=2)
    first, second = cuda.spawn(), cuda.spawn()
    client.suspend([first, second], timeout_seconds=20)
    cuda.set(version="570.86.10")
    with pytest.raises(CudaStuckError, match="driver 580 or newer"):
        CudaClient(connect()).resume([first], {OLD: NEW, NEW: OLD})
    cuda.set(version="580.65.06")
    with pytest.raises(CudaStuckError, match="invalid argument") as caught:
        CudaClient(connect()).resume([second], {OLD: NEW})
    assert caught.value.hint is not None
    assert "every GPU of the snapshot" in caught.value.hint


@pytest.mark.parametrize("device_map", [{"GPU-1": NEW}, {OLD: "MIG-1"}, {OLD: NEW, NEW: NEW}])
def test_a_wrong_device_map_is_refused_before_the_driver_is_asked(
    cuda: CudaStandIn, connect: Callable[[], CudaBackend], device_map: dict[str, str]
) -> None:
    pid = cuda.spawn()
    with pytest.raises(UsageError):
        connect().restore(pid, 5, device_map)
    assert cuda.calls() == []


# --- what the driver cannot move ---


def test_managed_memory_is_refused_by_the_driver_and_the_process_runs_on(
    cuda: CudaStandIn, client: CudaClient
) -> None:
    pid = cuda.spawn(extras=["managed"])
    with pytest.raises(CudaError, match="operation not supported; every process runs again") as caught:
        client.suspend([pid], timeout_seconds=20)
    assert caught.value.hint is not None
    assert "managed memory" in caught.value.hint
    assert state_of(pid) == "running"


def test_slices_of_a_gpu_are_refused_as_lack_of_memory_and_the_hint_says_mig(
    cuda: CudaStandIn, client: CudaClient
) -> None:
    cuda.set(mig=1)
    with pytest.raises(CudaError, match="out of memory; every process runs again") as caught:
        client.suspend([cuda.spawn()], timeout_seconds=20)
    assert caught.value.hint is not None
    assert "MIG must be off" in caught.value.hint


# --- a caller that is killed ---

_CALLER = """
import sys
from coldstart_snapshot.cuda.choice import chosen_client
client = chosen_client(sys.argv[1], sys.argv[2], copies=sys.argv[3] == "copies")
more = [{}] if sys.argv[4] == "restore" else []
getattr(client.backend, sys.argv[4])(int(sys.argv[5]), float(sys.argv[6]), *more)
"""


def _callers(pid: int, parent: int) -> list[int]:
    """Processes that call the driver for `parent`, or work on `pid` by the program."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            ours = "--for" in words and str(parent) in words
            program = any(word.endswith("/cuda-checkpoint") for word in words[:4])
            if ours or (program and "--action" in words and str(pid) in words):
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("backend", "copies", "operation", "seconds"),
    [
        ("driver-api", "copies", "restore", "600"),
        ("cuda-checkpoint", "copies", "restore", "600"),
        ("driver-api", "server", "checkpoint", "3"),
    ],
)
def test_what_calls_the_driver_does_not_outlive_a_killed_command(
    cuda: CudaStandIn, backend: str, copies: str, operation: str, seconds: str
) -> None:
    pid = cuda.spawn()
    program = CheckpointProgram(cuda.program)
    program.lock(pid, 60)
    if operation == "restore":
        program.checkpoint(pid, 60)
    cuda.fault(operation, "hang", times=99)
    caller = subprocess.Popen(
        [sys.executable, "-c", _CALLER, backend, cuda.program, copies, operation, str(pid), seconds]
    )
    try:
        wait_until(lambda: f"{operation} {pid}" in cuda.calls(), "the driver is called")
        assert _callers(pid, caller.pid) != []
    finally:
        caller.kill()
        caller.wait()
    wait_until(lambda: _callers(pid, caller.pid) == [], "nobody calls the driver any more")


# --- each way by itself ---


def test_a_program_that_only_toggles_is_refused_with_the_driver_it_needs(cuda: CudaStandIn) -> None:
    cuda.set(version="550.54.09")
    program = CheckpointProgram(cuda.program)
    with pytest.raises(UnavailableError, match="driver 555 or newer"):
        program.require_actions()
    with pytest.raises(UnavailableError, match="driver 555 or newer"):
        CudaClient(program).find_gpu_processes([cuda.spawn()])


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("550.54.09", set()),
        ("555.42.02", {"--action"}),
        ("570.86.10", {"--action"}),
        ("580.65.06", {"--action", "--device-map"}),
        ("590.44.01", {"--action", "--device-map", "--launch-job"}),
    ],
)
def test_what_a_program_can_do_is_read_from_its_help(
    cuda: CudaStandIn, version: str, options: set[str]
) -> None:
    cuda.set(version=version)
    program = CheckpointProgram(cuda.program)
    assert program.version == version
    found = {name for name in ("--action", "--device-map", "--launch-job") if program.supports(name)}
    assert found == options
    assert program.device_maps == ("--device-map" in options)


def test_the_driver_is_started_once_for_all_calls_of_its_api(cuda: CudaStandIn) -> None:
    pids = [cuda.spawn(), cuda.spawn()]
    cuda.fault("init", "no device", skip=1, times=9)  # a second start would fail
    api = DriverApi()
    client = CudaClient(api)
    assert client.find_gpu_processes(pids) == tuple(pids)
    client.suspend(pids, timeout_seconds=20)
    client.resume(pids)
    api.close()
    with pytest.raises(UnavailableError, match="does not start"):
        api.require()


def test_devices_hidden_from_the_callers_shell_are_found_all_the_same(
    cuda: CudaStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = cuda.spawn()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    api = DriverApi()
    assert api.restore_thread(pid, 5) is not None
    api.close()


def test_a_driver_that_does_not_start_costs_one_deadline(cuda: CudaStandIn) -> None:
    cuda.fault("init", "hang")
    with pytest.raises(CudaTimeoutError, match=r"no end of cuInit after 0\.5 s"):
        DriverApi(start_seconds=0.5).require()


def test_a_driver_that_crashes_at_its_start_is_told(cuda: CudaStandIn) -> None:
    cuda.fault("init", "crash")
    with pytest.raises(UnavailableError, match="was ended by signal 11"):
        DriverApi().require()


def test_a_driver_before_570_has_no_api(
    cuda: CudaStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = CudaStandIn(tmp_path / "old", before_570=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", old.environment["LD_LIBRARY_PATH"])
    with pytest.raises(UnavailableError, match="no checkpoint API: cuCheckpointProcessLock is missing"):
        DriverApi().require()


def test_a_call_after_the_api_has_died_starts_it_again(cuda: CudaStandIn) -> None:
    pid = cuda.spawn()
    cuda.fault("get-state", "crash")
    api = DriverApi()
    with pytest.raises(CudaError, match="cannot read the CUDA state of process"):
        api.state(pid, 5)
    assert api.state(pid, 5) is CudaState.RUNNING
    api.close()
