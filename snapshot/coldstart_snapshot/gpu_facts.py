"""What the NVIDIA driver's /proc files say: version and devices, without NVML."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from coldstart_snapshot.manifest import GpuState

_MODULE_VERSION = Path("/sys/module/nvidia/version")
_GPUS = Path("/proc/driver/nvidia/gpus")


def driver_version(module: Path = _MODULE_VERSION) -> str:
    """The driver's version, or `unknown` where there is no driver module."""
    try:
        return module.read_text("ascii").strip()
    except OSError:
        return "unknown"


def gpu_state(processes: Sequence[int], *, module: Path = _MODULE_VERSION, gpus: Path = _GPUS) -> GpuState:
    """GPU state of these processes as the manifest records it."""
    return GpuState(driver_version(module), tuple(processes), gpu_devices(gpus))


def gpu_devices(gpus: Path = _GPUS) -> tuple[tuple[str, str], ...]:
    """UUID and model of each GPU, in bus order."""
    found = []
    with suppress(OSError):
        for folder in sorted(gpus.iterdir()):
            fields: dict[str, str] = {}
            for line in (folder / "information").read_text("utf-8", "replace").splitlines():
                name, _, value = line.partition(":")
                fields[name.strip()] = value.strip()
            found.append((fields.get("GPU UUID", "unknown"), fields.get("Model", "unknown")))
    return tuple(found)
