"""The stand-ins for NVML and dcgmi, ready to use: a compiled library, a control file, an environment."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_FOLDER = Path(__file__).resolve().parent


class GpuDriver:
    """A driver for the processes that get `environment`: healthy until `control` says otherwise."""

    def __init__(self, folder: Path, *, old: bool = False) -> None:
        self._file = folder / "nvml-control"
        self._file.write_text("")
        self.environment = {
            "LD_LIBRARY_PATH": _library_folder(old=old),
            "NVML_STAND_IN_CONTROL": str(self._file),
        }

    def control(self, *lines: str) -> None:
        """Replace the faults; see nvml/nvml.c for the lines."""
        self._file.write_text("".join(f"{line}\n" for line in lines))


class Dcgmi:
    """A dcgmi that prints `output`, or a file's content, and ends with `status`; or hangs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "dcgmi"
        self.folder.mkdir()
        self.environment = {
            "COLDSTART_PROGRAMS_DCGMI": str(_FOLDER / "dcgmi"),
            "DCGMI_STAND_IN_FOLDER": str(self.folder),
        }

    def prints(self, output: Path, status: int = 0) -> dict[str, str]:
        return self.environment | {"DCGMI_STAND_IN_OUTPUT": str(output), "DCGMI_STAND_IN_STATUS": str(status)}

    def hangs(self) -> dict[str, str]:
        return self.environment | {"DCGMI_STAND_IN_HANG": "1"}

    @property
    def calls(self) -> list[str]:
        record = self.folder / "arguments"
        return record.read_text().splitlines() if record.exists() else []

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "pids").read_text().split()]


@functools.cache
def _library_folder(*, old: bool) -> str:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler for the NVML stand-in")
    folder = tempfile.mkdtemp(prefix="coldstart-nvml-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = ["-DOLD_DRIVER"] if old else []
    library = os.path.join(folder, "libnvidia-ml.so.1")
    source = str(_FOLDER / "nvml" / "nvml.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", *flags, "-o", library, source], check=True, timeout=120)
    return folder


def has_real_driver() -> bool:
    """Whether the real libnvidia-ml.so.1 is installed, and `no driver` cannot be played here."""
    listing = subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False, timeout=30
    )
    return "libnvidia-ml.so.1" in listing.stdout
