"""The GPU side of a capture: which processes, is it allowed, and what a restore will need to know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coldstart_cli.config import Config
from coldstart_cli.errors import UnavailableError
from coldstart_host.gpu import GpuFacts
from coldstart_snapshot.cuda import choice
from coldstart_snapshot.cuda.client import CudaClient
from coldstart_snapshot.cuda.gpu_state import GpuProcess, GpuState
from coldstart_snapshot.cuda.guards import Problem, allowed_guards
from coldstart_snapshot.cuda.host_gpus import HostGpus, devices_with, read_host_gpus
from coldstart_snapshot.cuda.memory import room_for
from coldstart_snapshot.cuda.processes import communicates, device_files, gpu_suspects, managed_bytes
from coldstart_snapshot.processes.tree import ProcessFacts

_MIB = 1 << 20
# the driver maps a few pages of this device in every process; only managed memory is so large
_MANAGED_BYTES = 64 * _MIB
_HOST_MEMORY_FACTOR = 1.05


@dataclass(frozen=True)
class GpuCapture:
    """The GPU processes of a tree, the client that suspends them, what is recorded, what speaks against it.

    Problems whose guard is in `allowed` are no reason to refuse.
    """

    client: CudaClient
    pids: tuple[int, ...]
    state: GpuState
    problems: tuple[Problem, ...] = ()
    allowed: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def prepare_capture(tree: Sequence[ProcessFacts], config: Config) -> GpuCapture | None:
    """Find the GPU processes of a tree and look at all that can be checked; None where there are none."""
    suspects = gpu_suspects(member.pid for member in tree)
    if not suspects:
        return None
    try:
        client = choice.cuda_client(config)
    except UnavailableError as error:
        users = [(pid, files) for pid in suspects if (files := device_files(pid))]
        if not users:
            return None  # the library alone, on a host without a driver: nothing can be on a GPU
        pid, files = users[0]
        error.message = f"process {pid} uses a GPU ({files[0]}), which cannot be captured: {error.message}"
        raise
    try:
        return _prepared(client, suspects, {member.pid: member.inner_pid for member in tree}, config)
    except BaseException:
        client.close()
        raise


def _prepared(
    client: CudaClient, suspects: Sequence[int], inner_pids: Mapping[int, int], config: Config
) -> GpuCapture | None:
    pids = client.find_gpu_processes(suspects)
    if not pids:
        client.close()
        return None
    host = read_host_gpus()
    seen = host.seen_by(pids)
    memory = host.memory_of({pid: inner_pids[pid] for pid in pids})
    state = GpuState(
        driver_version=host.driver_version,
        processes=tuple(inner_pids[pid] for pid in pids),
        devices=devices_with(seen, memory),
        memory=memory,
        backend=client.backend.name,
    )
    return GpuCapture(
        client,
        pids,
        state,
        problems=tuple(capture_problems(pids, host, seen, memory, inner_pids)),
        allowed=allowed_guards(config),
        notes=tuple(_slow_attach(seen)),
    )


def without_host_memory(gpu: GpuCapture) -> GpuCapture:
    """The same, where an engine will give most of its memory up first: that is measured when it has."""
    return replace(gpu, problems=tuple(one for one in gpu.problems if one.guard != "host-memory"))


def remeasured(gpu: GpuCapture, tree: Sequence[ProcessFacts]) -> GpuCapture:
    """What the processes hold now that their engine sleeps; refused where the host has no room for it."""
    inner_pids = {member.pid: member.inner_pid for member in tree}
    host = read_host_gpus()
    memory = host.memory_of({pid: inner_pids[pid] for pid in gpu.pids})
    for problem in _host_memory(gpu.pids, memory):
        if problem.guard not in gpu.allowed:
            raise UnavailableError(problem.text, hint=problem.hint)
    devices = devices_with(host.seen_by(gpu.pids), memory)
    return replace(gpu, state=replace(gpu.state, devices=devices, memory=memory))


def held_bytes(gpu: GpuCapture) -> int:
    """GPU memory of the processes, as NVML tells it."""
    return sum(entry.memory_used_bytes for entry in gpu.state.memory)


def capture_problems(
    pids: Sequence[int],
    host: HostGpus,
    seen: Sequence[GpuFacts],
    memory: Sequence[GpuProcess],
    inner_pids: Mapping[int, int],
) -> Iterator[Problem]:
    """What NVML and /proc know to speak against a capture."""
    yield from mig_problems(seen)
    outer = {inner_pids[pid]: pid for pid in pids}
    for gpu in host.gpus:
        for pid in sorted(set(gpu.mps_process_ids or ()) & set(pids)):
            yield Problem(
                "mps",
                f"process {pid} is a client of MPS on GPU {gpu.index}, which cannot be captured",
                "start the server without CUDA_MPS_PIPE_DIRECTORY, on a GPU without MPS",
            )
    for inner, pid in outer.items():
        uuids = [entry.uuid for entry in memory if entry.pid == inner]
        if len(uuids) > 1:
            yield Problem(
                "several-gpus",
                f"process {pid} uses {len(uuids)} GPUs, and only processes with one GPU can be captured",
                "give the server one GPU: CUDA_VISIBLE_DEVICES, or a tensor parallel size of 1",
            )
        if (size := managed_bytes(pid)) > _MANAGED_BYTES:
            yield Problem(
                "managed-memory",
                f"process {pid} maps {size} bytes of /dev/nvidia-uvm: managed memory cannot be captured",
                "start the server without managed (unified) memory",
            )
    speaking = [pid for pid in pids if communicates(pid)]
    if speaking and len(pids) > 1:
        numbers = ", ".join(map(str, speaking))
        yield Problem(
            "communication",
            f"processes {numbers} communicate through NCCL, and a locked one would keep its peers waiting",
            "capture a server that runs on one GPU",
        )
    yield from _host_memory(pids, memory)


def mig_problems(gpus: Sequence[GpuFacts]) -> Iterator[Problem]:
    for gpu in gpus:
        if gpu.mig_enabled:
            yield Problem(
                "mig",
                f"GPU {gpu.index} ({gpu.uuid}) is in MIG mode: the driver cannot move the state of slices",
                f"nvidia-smi -i {gpu.index} -mig 0",
            )


def _host_memory(pids: Sequence[int], memory: Sequence[GpuProcess]) -> Iterator[Problem]:
    needed = int(sum(entry.memory_used_bytes for entry in memory) * _HOST_MEMORY_FACTOR)
    room = room_for(pids[0])
    if room is not None and needed > room.free_bytes:
        yield Problem(
            "host-memory",
            f"{needed} bytes of GPU memory have to go into host memory, and {room.free_bytes} are free"
            f" {room.limit}",
            "let the server drop its KV cache first, or free host memory",
        )


def _slow_attach(gpus: Sequence[GpuFacts]) -> Iterator[str]:
    if any(gpu.persistence is False for gpu in gpus):
        yield "persistence mode is off: the driver starts anew for each use (nvidia-smi -pm 1)"
