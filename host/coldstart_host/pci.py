"""NVIDIA GPUs on the PCI bus, whether or not a driver answers for them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAY_CLASS = (
    "0x03"  # VGA, XGA, 3D and other display controllers: the GPUs, not their audio or USB functions
)
_BRIDGE_CLASS = "0x0680"  # other bridges: NVSwitches
_PASSED_THROUGH = frozenset({"vfio-pci", "pciback", "pci-stub"})


@dataclass(frozen=True)
class PciGpu:
    """`driver` is the kernel driver bound to it, None where none is."""

    address: str
    device_id: str
    driver: str | None

    @property
    def ours(self) -> bool:
        """False where the GPU was handed to a virtual machine."""
        return self.driver not in _PASSED_THROUGH


def pci_gpus(devices: Path = _DEVICES) -> tuple[PciGpu, ...]:
    """By address; empty where there is no PCI bus."""
    return _devices(devices, _DISPLAY_CLASS)


def nvswitches(devices: Path = _DEVICES) -> tuple[PciGpu, ...]:
    """The switches of an HGX board; those of a rack stand outside of its hosts."""
    return tuple(device for device in _devices(devices, _BRIDGE_CLASS) if device.ours)


def _devices(devices: Path, kind: str) -> tuple[PciGpu, ...]:
    present = sorted(devices.iterdir()) if devices.is_dir() else []
    return tuple(
        PciGpu(device.name, _read(device / "device"), _driver(device))
        for device in present
        if _read(device / "vendor") == _NVIDIA and _read(device / "class").startswith(kind)
    )


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except OSError:  # the device went away while we looked
        return ""


def _driver(device: Path) -> str | None:
    try:
        return os.path.basename(os.readlink(device / "driver"))
    except OSError:
        return None
