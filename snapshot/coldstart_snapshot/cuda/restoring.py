"""The GPU side of a restore: is there a place for the state, which GPUs it goes to, and bringing it there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from coldstart_cli.config import Config
from coldstart_cli.errors import ColdstartError, UnavailableError
from coldstart_host.kernel import release_number
from coldstart_snapshot.cuda import choice
from coldstart_snapshot.cuda.capturing import mig_problems
from coldstart_snapshot.cuda.device_map import MapDevice, build_device_map, is_identity, resolve_choice
from coldstart_snapshot.cuda.gpu_state import GpuDevice, GpuState
from coldstart_snapshot.cuda.guards import Problem, refuse
from coldstart_snapshot.cuda.host_gpus import HostGpus, read_host_gpus
from coldstart_snapshot.cuda.memory import room_for
from coldstart_snapshot.processes.tree import process_tree

# the first driver that can move state to other GPUs
_MAPS_SINCE = 580


@dataclass(frozen=True)
class GpuRestore:
    """A checked place for GPU state; `device_map` is empty where every GPU stays the same."""

    state: GpuState
    device_map: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def plan_gpu_restore(state: GpuState, config: Config, chosen: Sequence[str] = ()) -> GpuRestore:
    """Find GPUs for captured state, and check all that NVML can tell; no GPU is touched."""
    try:
        choice.require_backend(config)
    except UnavailableError as error:
        if choice.has_driver():
            raise
        raise UnavailableError(
            f"the snapshot has GPU state, and this host has no NVIDIA driver: {error.message}",
            hint="restore on a host with a GPU",
        ) from error
    host = read_host_gpus()
    device_map = build_device_map(
        [MapDevice(device.uuid, _used(device)) for device in state.devices],
        host.uuids,
        resolve_choice(chosen, host.uuids),
    )
    notes = refuse("GPU state cannot be restored here", restore_problems(state, host, device_map), config)
    moved = {} if is_identity(device_map) else device_map
    return GpuRestore(state, moved, (*notes, *_warnings(moved)))


def restore_problems(state: GpuState, host: HostGpus, device_map: Mapping[str, str]) -> Iterator[Problem]:
    """What speaks against bringing this state onto these GPUs."""
    if state.driver_version != host.driver_version:
        # the driver's libraries of the capture are in the processes, and its kernel module must be theirs
        yield Problem(
            "driver",
            f"captured with driver {state.driver_version}, and this host has {host.driver_version}",
            "capture again with this driver, or restore where the recorded one is installed",
        )
    if not is_identity(device_map) and release_number(host.driver_version) < (_MAPS_SINCE,):
        yield Problem(
            "driver",
            "the GPUs of the capture are not those of this host, and moving to others needs a newer driver",
            f"install NVIDIA driver {_MAPS_SINCE} or newer",
        )
    targets = [host.named(uuid) for uuid in device_map.values()]
    yield from mig_problems(targets)
    needed = 0
    for device in state.devices:
        gpu = host.named(device_map[device.uuid])
        if device.name != gpu.name:
            yield Problem(
                "model",
                f"captured on {device.name}, and GPU {gpu.index} is {gpu.name}",
                "restore on the same model of GPU",
            )
        used = device.memory_used_bytes or 0
        needed += used
        free = None
        if gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None:
            free = gpu.memory_total_bytes - gpu.memory_used_bytes
        if free is not None and used > free:
            yield Problem(
                "gpu-memory",
                f"{used} bytes go back to GPU {gpu.index}, and {free} are free there",
                f"end what uses it (`nvidia-smi -i {gpu.index}`), or choose another with --gpu",
            )
    room = room_for(1)
    if room is not None and needed > room.free_bytes:
        yield Problem(
            "host-memory",
            f"{needed} bytes of GPU memory come through host memory, and {room.free_bytes} are free"
            f" {room.limit}",
            "free host memory",
        )


def resume_restored(plan: GpuRestore, pid: int, config: Config) -> None:
    """Give restored processes their GPU state back: they are found by their pids inside the tree."""
    by_inner_pid = {member.inner_pid: member.pid for member in process_tree(pid)}
    missing = [number for number in plan.state.processes if number not in by_inner_pid]
    if missing:
        raise ColdstartError(f"processes with GPU state are gone after the restore: {missing}")
    with closing(choice.cuda_client(config, copies=True)) as client:
        client.resume(
            [by_inner_pid[number] for number in plan.state.processes],
            plan.device_map,
            timeout_seconds=config.number("snapshot.restore_timeout_seconds"),
            copies=True,
        )


def _used(device: GpuDevice) -> bool:
    return device.memory_used_bytes is None or device.memory_used_bytes > 0


def _warnings(moved: Mapping[str, str]) -> Iterator[str]:
    pairs = [f"{old} -> {new}" for old, new in moved.items() if old != new]
    if pairs:
        yield (
            f"GPU state goes to other GPUs: {', '.join(pairs)}; what reads the bus address of its GPU still"
            " has the old one"
        )
