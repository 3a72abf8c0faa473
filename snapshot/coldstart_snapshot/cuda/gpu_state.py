"""The `[gpu]` table of a manifest: what a restore must know of the captured GPU state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GpuDevice:
    """A GPU that the tree could see; `memory_used_bytes` is the tree's own there, None when not known."""

    uuid: str
    name: str
    memory_used_bytes: int | None = None


@dataclass(frozen=True)
class GpuProcess:
    """Memory of one process, numbered as inside its tree, on one GPU."""

    pid: int
    uuid: str
    memory_used_bytes: int


@dataclass(frozen=True)
class GpuState:
    """GPU state of the tree; `processes` are pids inside it."""

    driver_version: str
    processes: tuple[int, ...]
    devices: tuple[GpuDevice, ...] = ()
    memory: tuple[GpuProcess, ...] = ()
    backend: str | None = None

    @property
    def memory_used_bytes(self) -> int:
        return sum(device.memory_used_bytes or 0 for device in self.devices)


def gpu_table(state: GpuState) -> dict[str, Any]:
    """The table; what is not known is left out."""
    table: dict[str, Any] = {
        "driver_version": state.driver_version,
        "processes": list(state.processes),
        "devices": [_known(vars(device)) for device in state.devices],
    }
    if state.memory:
        table["memory"] = [dict(vars(process)) for process in state.memory]
    if state.backend is not None:
        table["backend"] = state.backend
    return table


def read_gpu_table(table: Mapping[str, Any]) -> GpuState:
    return GpuState(
        driver_version=str(table["driver_version"]),
        processes=tuple(int(pid) for pid in table["processes"]),
        devices=tuple(
            GpuDevice(str(device["uuid"]), str(device["name"]), _size(device.get("memory_used_bytes")))
            for device in table["devices"]
        ),
        memory=tuple(
            GpuProcess(int(entry["pid"]), str(entry["uuid"]), _size(entry["memory_used_bytes"]) or 0)
            for entry in table.get("memory", ())
        ),
        backend=table.get("backend"),
    )


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _size(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise ValueError(f"size is {value!r}")
    return value
