"""NVML in this process. A hung driver hangs the caller: everybody but the probe uses `gpu_probe`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from coldstart_host.gpu import GpuFacts, NvmlFault
from coldstart_host.gpu_asking import GpuQuestions
from coldstart_host.gpu_codes import NvmlCode
from coldstart_host.gpu_questions import ask_gpu

T = TypeVar("T")


class NvmlUnusableError(Exception):
    """NVML did not start, or did not tell how many GPUs there are."""

    def __init__(self, fault: NvmlFault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class NvmlSession:
    """NVML started in this process; each GPU may be read in a thread of its own."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._must("nvmlInit", pynvml.nvmlInit)
        self.driver_version: str | None = self._may(pynvml.nvmlSystemGetDriverVersion)
        cuda = self._may(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        self.cuda_version = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        self.count: int = self._must("nvmlDeviceGetCount", pynvml.nvmlDeviceGetCount)

    def questions(self, index: int) -> GpuQuestions:
        return GpuQuestions(self._nvml, index)

    def read(self, questions: GpuQuestions, *, thorough: bool = False) -> GpuFacts:
        """Ask all of them; `thorough` also has the InfoROM's checksums computed, which reads its flash."""
        ask_gpu(questions, thorough=thorough)
        return questions.facts()

    def close(self) -> None:
        self._may(self._nvml.nvmlShutdown)

    def _must(self, call: str, function: Callable[[], T]) -> T:
        try:
            try:
                return function()
            except self._nvml.NVMLError as error:
                if error.value != NvmlCode.UNKNOWN:
                    raise
                return function()  # often momentary: a driver that was just loaded, a reset under way
        except self._nvml.NVMLError as error:
            raise NvmlUnusableError(NvmlFault(call, error.value, str(error))) from error

    def _may(self, function: Callable[[], T]) -> T | None:
        try:
            return function()
        except self._nvml.NVMLError:
            return None


def library_version(maps: Path = Path("/proc/self/maps")) -> str | None:
    """The version in the file name of the NVML library that this process has loaded."""
    match = re.search(
        r"libnvidia-ml\.so\.(\d+\.[\d.]+\d)\s*$", maps.read_text("utf-8", "replace"), re.MULTILINE
    )
    return match[1] if match else None
