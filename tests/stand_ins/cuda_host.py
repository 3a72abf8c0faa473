"""A host with GPUs for snapshot tests: CUDA and NVML stand in, and tell the same of the same GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stand_ins.cuda import CudaStandIn
from stand_ins.gpu_driver import GpuDriver


class CudaHost:
    """Two H100s with driver 580, until told otherwise; `uses` is what NVML knows of a process.

    `environment` must reach whoever is to see them; with a `patch` this process does.
    """

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch | None = None, backend: str = "driver-api"
    ) -> None:
        self.cuda = CudaStandIn(folder / "cuda")
        self._nvml = GpuDriver(folder)
        environment = self.cuda.environment | self._nvml.environment
        libraries = [self.cuda.libraries, self._nvml.environment["LD_LIBRARY_PATH"]]
        environment["LD_LIBRARY_PATH"] = ":".join(libraries)
        environment["COLDSTART_PROGRAMS_CUDA_CHECKPOINT"] = self.cuda.program
        environment["COLDSTART_SNAPSHOT_CUDA_BACKEND"] = backend
        self.environment = environment
        for name, value in environment.items() if patch is not None else ():
            patch.setenv(name, value)
        self._lines = ["* count 2", "* driver 580"]
        self.say()

    def say(self, *lines: str) -> None:
        """More lines of the NVML stand-in's control file."""
        self._lines += lines
        self._nvml.control(*self._lines)

    def unsay(self) -> None:
        """As at first."""
        self._lines = ["* count 2", "* driver 580"]
        self.say()

    def uses(self, pid: int, mib: int, gpu: int = 0) -> int:
        self.say(f"{gpu} process {pid} {mib}")
        return pid

    def spawn(self, mib: int = 1, gpu: int = 0, extras: tuple[str, ...] = ()) -> int:
        """A GPU process that NVML knows."""
        pid = self.cuda.spawn(size_bytes=mib << 20, device=gpu, extras=extras)
        return self.uses(pid, mib, gpu)


def uuid(number: int) -> str:
    """The UUID that both stand-ins give a GPU."""
    return f"GPU-00000000-0000-0000-0000-{number:012}"
