"""The GPUs of this host as snapshots need them: who uses which, how much is free, what is switched on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coldstart_cli.errors import UnavailableError
from coldstart_host.gpu import GpuFacts
from coldstart_host.gpu_probe import read_gpus
from coldstart_snapshot.cuda.gpu_state import GpuDevice, GpuProcess
from coldstart_snapshot.cuda.processes import visible_minors

# NVML brings up GPUs without persistence mode first
_NVML_SECONDS = 30.0


@dataclass(frozen=True)
class HostGpus:
    """Every GPU that NVML names, in its order."""

    driver_version: str
    gpus: tuple[GpuFacts, ...]

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid or "" for gpu in self.gpus)

    def named(self, uuid: str) -> GpuFacts:
        return next(gpu for gpu in self.gpus if gpu.uuid == uuid)

    def seen_by(self, pids: Iterable[int]) -> tuple[GpuFacts, ...]:
        """Those whose device nodes the processes have before them; all where no nodes are to be seen.

        The driver counts these as the process's own, whatever CUDA_VISIBLE_DEVICES says.
        """
        minors = frozenset(minor for pid in pids for minor in visible_minors(pid))
        seen = tuple(gpu for gpu in self.gpus if _minor(gpu) in minors)
        return seen or self.gpus

    def memory_of(self, inner_pids: dict[int, int]) -> tuple[GpuProcess, ...]:
        """Memory of these processes (pid on this host to pid in the tree) on each GPU."""
        return tuple(
            GpuProcess(inner_pids[pid], gpu.uuid or "", used or 0)
            for gpu in self.gpus
            for pid, used in gpu.process_memory or ()
            if pid in inner_pids
        )


def read_host_gpus() -> HostGpus:
    """Ask NVML; refused where it does not answer for every GPU: guessing would cost the server."""
    reading = read_gpus(deadline_seconds=_NVML_SECONDS)
    problem = reading.fault.text if reading.fault else None
    if reading.hung is not None:
        problem = f"no answer, at: {reading.hung}"
    elif problem is None and not reading.complete:
        named = sum(gpu.readable for gpu in reading.gpus)
        problem = f"{named} of {reading.count or 0} GPUs said who they are"
    if problem is not None:
        raise UnavailableError(f"cannot read the GPUs of this host: {problem}", hint="coldstart health quick")
    return HostGpus(reading.driver_version or "unknown", reading.gpus)


def devices_with(gpus: Iterable[GpuFacts], memory: Iterable[GpuProcess]) -> tuple[GpuDevice, ...]:
    """The GPUs with what the processes use of each; not known for any where NVML lists none of them."""
    used: dict[str, int] = {}
    for process in memory:
        used[process.uuid] = used.get(process.uuid, 0) + process.memory_used_bytes
    return tuple(
        GpuDevice(gpu.uuid or "", gpu.name or "unknown", used.get(gpu.uuid or "", 0) if used else None)
        for gpu in gpus
    )


def _minor(gpu: GpuFacts) -> int:
    return gpu.index if gpu.minor_number is None else gpu.minor_number
