"""What speaks against moving GPU state is said before a process is touched, each reason by name."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldstart_cli.config import Config, load
from coldstart_cli.errors import ColdstartError, ConfigError, NegativeAnswer, UnavailableError, UsageError
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.capturing.checking import check_server
from coldstart_snapshot.cuda import processes
from coldstart_snapshot.cuda.capturing import GpuCapture, prepare_capture
from coldstart_snapshot.cuda.device_map import MapDevice, build_device_map, resolve_choice
from coldstart_snapshot.cuda.gpu_state import GpuDevice, GpuState
from coldstart_snapshot.cuda.guards import GpuGuardError
from coldstart_snapshot.cuda.restoring import plan_gpu_restore, resume_restored
from coldstart_snapshot.processes.tree import ProcessFacts, process_tree
from conftest import wait_until
from stand_ins.cuda import state_of
from stand_ins.cuda_host import CudaHost, uuid

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaHost]:
    host = CudaHost(tmp_path, monkeypatch)
    yield host
    host.cuda.close()


def look(*pids: int) -> GpuCapture:
    """Prepare a capture of processes as if they were one tree."""
    tree: list[ProcessFacts] = [member for pid in pids for member in process_tree(pid)]
    found = prepare_capture(tree, load())
    assert found is not None
    found.client.close()
    return found


def guards(capture: GpuCapture) -> list[str]:
    return [problem.guard for problem in capture.problems]


def untouched(host: CudaHost) -> bool:
    return {call.split()[0] for call in host.cuda.calls()} <= {"get-restore-tid"}


# --- before a capture ---


def test_nothing_speaks_against_several_processes_with_a_gpu_each(host: CudaHost) -> None:
    found = look(host.spawn(gpu=0), host.spawn(mib=3, gpu=1))
    assert guards(found) == []
    assert [device.memory_used_bytes for device in found.state.devices] == [1 << 20, 3 << 20]


@pytest.mark.parametrize(
    ("guard", "arrange", "words"),
    [
        ("mig", lambda host, _: host.say("0 mig 1"), "MIG mode"),
        ("mps", lambda host, pid: host.say(f"0 process {pid} 1 mps"), "client of MPS"),
        ("several-gpus", lambda host, pid: host.uses(pid, 1, 1), "uses 2 GPUs"),
        ("host-memory", lambda host, pid: host.uses(pid, 1 << 30), "bytes of GPU memory have to go"),
    ],
)
def test_a_capture_is_refused_with_the_reason_before_the_driver_touches_the_process(
    host: CudaHost, guard: str, arrange: Callable[[CudaHost, int], object], words: str
) -> None:
    pid = host.spawn()
    arrange(host, pid)
    with pytest.raises(ColdstartError, match=words) as caught:
        create_snapshot(CaptureRequest("gpu", pid=pid), load())
    assert caught.value.hint
    assert guards(look(pid)) == [guard]
    assert untouched(host)
    assert state_of(pid) == "running"


def test_several_processes_that_talk_through_nccl_are_refused_and_one_alone_is_not(host: CudaHost) -> None:
    first = host.spawn(extras=("nccl",))
    assert guards(look(first)) == []
    assert guards(look(first, host.spawn(gpu=1, extras=("nccl",)))) == ["communication"]


def test_managed_memory_is_known_by_what_is_mapped_of_its_device(
    host: CudaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = host.spawn(mib=65)
    (memory,) = host.cuda.allocated()
    monkeypatch.setattr(processes, "_MANAGED_MEMORY", f"{host.cuda.vram}/{memory}")
    assert guards(look(pid)) == ["managed-memory"]
    small = host.spawn(mib=1)
    (other,) = set(host.cuda.allocated()) - {memory}
    monkeypatch.setattr(processes, "_MANAGED_MEMORY", f"{host.cuda.vram}/{other}")
    assert guards(look(small)) == []


def test_all_reasons_are_said_at_once_and_snap_check_has_them_too(host: CudaHost) -> None:
    pid = host.spawn()
    host.say("0 mig 1", f"0 process {pid} 1 mps")
    with pytest.raises(ColdstartError, match=r"MIG mode.*client of MPS"):
        create_snapshot(CaptureRequest("gpu", pid=pid), load())
    codes = {finding.code for finding in check_server(load(), container_id=None, pid=pid).findings}
    assert {"gpu-mig", "gpu-mps"} <= codes
    assert untouched(host)


def test_room_for_a_snapshot_includes_what_is_on_the_gpu(host: CudaHost) -> None:
    pid = host.cuda.spawn()
    before = check_server(load(), container_id=None, pid=pid).needed_bytes
    host.uses(pid, 1024)
    assert check_server(load(), container_id=None, pid=pid).needed_bytes >= before + (1 << 30)


def test_an_allowed_guard_only_warns(host: CudaHost, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    pid = host.spawn()
    host.say("0 mig 1")
    monkeypatch.setenv("COLDSTART_SNAPSHOT_GPU_ALLOW", "mig")
    captured = create_snapshot(CaptureRequest("gpu", pid=pid), load())
    assert any("MIG mode" in note for note in captured.notes)
    monkeypatch.setenv("COLDSTART_SNAPSHOT_GPU_ALLOW", "mog")
    with pytest.raises(ConfigError, match="unknown guard"):
        create_snapshot(CaptureRequest("gpu", pid=pid), load())


def test_gpus_that_cannot_be_read_are_no_reason_to_guess(host: CudaHost) -> None:
    pid = host.spawn()
    host.say("1 error DeviceGetUUID 999")
    with pytest.raises(UnavailableError, match="1 of 2 GPUs said who they are"):
        look(pid)
    assert untouched(host)


def test_persistence_mode_that_is_off_is_worth_a_note(host: CudaHost) -> None:
    host.say("* persistence 0")
    assert "nvidia-smi -pm 1" in look(host.spawn()).notes[0]


def test_memory_that_nvml_lists_for_no_process_is_recorded_as_not_known(host: CudaHost) -> None:
    pid = host.cuda.spawn()
    assert [device.memory_used_bytes for device in look(pid).state.devices] == [None, None]


def test_a_forked_child_that_holds_the_device_is_refused(
    host: CudaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = host.spawn(extras=("fork",))
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: bool(children.read_text()), "the child is there")
    child = int(children.read_text())
    try:
        # device files play /dev/nvidia*: the child has them, and no CUDA state
        monkeypatch.setattr(processes, "DEVICE_PREFIX", str(host.cuda.vram))
        assert processes.device_files(child) != ()
        assert look(pid, child).pids == (pid,)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_gpu_process_is_refused_where_there_is_no_way_to_the_driver(
    host: CudaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = host.spawn()
    monkeypatch.setenv("COLDSTART_SNAPSHOT_CUDA_BACKEND", "cuda-checkpoint")
    monkeypatch.setenv("COLDSTART_PROGRAMS_CUDA_CHECKPOINT", "no-such-program")
    monkeypatch.setattr(processes, "DEVICE_PREFIX", str(host.cuda.vram))
    with pytest.raises(UnavailableError, match=f"process {pid} uses a GPU .*no-such-program"):
        look(pid)


# --- before a restore ---


def state(*devices: GpuDevice, driver: str = "580.86.15") -> GpuState:
    return GpuState(driver, (1,), devices or (GpuDevice(uuid(0), H100, 1 << 20), GpuDevice(uuid(1), H100, 0)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("* driver 570", "captured with driver 580.86.15, and this host has 570.86.15"),
        ("0 model 1", "captured on NVIDIA H100 80GB HBM3, and GPU 0 is NVIDIA A100-SXM4-80GB"),
        ("0 used_mib 81920", "go back to GPU 0, and 0 are free there"),
        ("0 mig 1", "MIG mode"),
    ],
)
def test_a_restore_is_refused_with_the_reason_before_anything_is_started(
    host: CudaHost, line: str, words: str
) -> None:
    plan_gpu_restore(state(), load())
    host.say(line)
    with pytest.raises(GpuGuardError, match=words) as caught:
        plan_gpu_restore(state(), load())
    assert caught.value.hint
    assert host.cuda.calls() == []


def test_state_needs_as_many_gpus_as_it_saw(host: CudaHost) -> None:
    host.say("* count 1")
    with pytest.raises(NegativeAnswer, match="captured with 2 GPUs in sight, and this host has 1"):
        plan_gpu_restore(state(), load())


def test_a_move_to_other_gpus_needs_driver_580_and_is_warned_of(host: CudaHost) -> None:
    assert plan_gpu_restore(state(), load()).device_map == {}
    moved = plan_gpu_restore(state(), load(), ["1"])
    assert moved.device_map == {uuid(0): uuid(1), uuid(1): uuid(0)}
    assert f"{uuid(0)} -> {uuid(1)}" in moved.warnings[0]
    host.say("* driver 570")
    with pytest.raises(GpuGuardError, match="needs a newer driver"):
        plan_gpu_restore(state(driver="570.86.15"), load(), ["1"])


def test_state_goes_to_the_gpus_of_another_host(host: CudaHost) -> None:
    pid = host.spawn()
    capture = look(pid)
    capture.client.suspend([pid], 20)
    for number in (0, 1):
        host.say(f"{number} uuid {number + 7}")
    host.cuda.set(uuid__0=7, uuid__1=8)
    config: Config = load()
    plan = plan_gpu_restore(capture.state, config)
    assert plan.device_map == {uuid(0): uuid(7), uuid(1): uuid(8)}
    resume_restored(plan, pid, config)
    assert state_of(pid) == "running"
    capture.client.close()


A, B, C, D = (uuid(number) for number in range(4))


@pytest.mark.parametrize(
    ("recorded", "present", "chosen", "expected"),
    [
        ([A], [A], [], {A: A}),
        ([A], [B], [], {A: B}),
        ([A, B], [B, C], [], {A: C, B: B}),
        ([A, B], [C, D], [], {A: C, B: D}),
        ([A, B], [B, A], [], {A: A, B: B}),
        ([A], [A, B, C], [C], {A: C}),
        ([A, B], [A, B], [B, A], {A: B, B: A}),
    ],
)
def test_gpus_keep_their_place_where_they_are_here_and_the_others_take_what_is_left(
    recorded: list[str], present: list[str], chosen: list[str], expected: dict[str, str]
) -> None:
    assert build_device_map([MapDevice(one) for one in recorded], present, chosen) == expected


def test_gpus_that_were_only_in_sight_make_room_for_the_chosen_one() -> None:
    recorded = [MapDevice(A, used=False), MapDevice(B), MapDevice(C, used=False)]
    assert build_device_map(recorded, [A, B, C], [A]) == {A: B, B: A, C: C}
    with pytest.raises(UsageError, match="uses 1 GPUs, and 2 were chosen"):
        build_device_map(recorded, [A, B, C], [A, C])


def test_a_gpu_is_chosen_by_index_or_by_the_beginning_of_its_uuid() -> None:
    assert resolve_choice(["1", A], [A, B]) == (B, A)
    mixed = "GPU-5B0BA6DC-0000-0000-0000-0000000000AF"
    assert resolve_choice([mixed.lower()], [A, mixed]) == (mixed,)
    assert resolve_choice(["GPU-00000000-0000-0000-0000-000000000001"[:40]], [A, B]) == (B,)
    for wrong in ("2", "GPU-", "GPU-1", ""):
        with pytest.raises(UsageError, match="no such GPU"):
            resolve_choice([wrong], [A, B])
    with pytest.raises(UsageError, match="chosen twice"):
        build_device_map([MapDevice(A), MapDevice(B)], [A, B], [B, B])
