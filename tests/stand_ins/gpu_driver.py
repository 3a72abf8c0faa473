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
        """Replace the faults; see nvml/nvml.c and nvml/cuda.c for the lines."""
        self._file.write_text("".join(f"{line}\n" for line in lines))


class Dcgmi:
    """A dcgmi that prints `output`, or a file's content, and ends with `status`; hangs, or dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "dcgmi"
        self.folder.mkdir()
        self.environment = {
            "COLDSTART_PROGRAMS_DCGMI": str(_FOLDER / "dcgmi"),
            "DCGMI_STAND_IN_FOLDER": str(self.folder),
        }
        self._answers = 0

    def prints(self, output: Path, status: int = 0) -> dict[str, str]:
        return self.environment | {"DCGMI_STAND_IN_OUTPUT": str(output), "DCGMI_STAND_IN_STATUS": str(status)}

    def hangs(self, number: int | None = None) -> dict[str, str]:
        """At every diagnosis, or at the one of that number, counted from 1."""
        return self.environment | {"DCGMI_STAND_IN_HANG": str(number or "yes")}

    def dies(self, output: Path, signal: str = "SEGV") -> dict[str, str]:
        return self.prints(output) | {"DCGMI_STAND_IN_SIGNAL": signal}

    def answers(self, text: str, status: int = 0) -> None:
        """What the next diagnosis prints that has no answer yet."""
        self._answers += 1
        (self.folder / f"answer.{self._answers}").write_text(text)
        (self.folder / f"answer.{self._answers}.status").write_text(str(status))

    def discovers(self, *gpus: tuple[str, str, str]) -> None:
        """Name, bus address and UUID of each GPU, in DCGM's order."""
        bar = "+--------+----------------------------------------------------------------------+"
        rows = [f"{len(gpus)} GPUs found.", bar, "| GPU ID | Device Information |", bar]
        for number, (name, bus, uuid) in enumerate(gpus):
            rows += [
                f"| {number:<6} | Name: {name:<62} |",
                f"|        | PCI Bus ID: {bus:<56} |",
                f"|        | Device UUID: {uuid:<55} |",
                bar,
            ]
        rows += ["0 NvSwitches found.", "+-----------+", "| Switch ID |", "+-----------+"]
        (self.folder / "discovery").write_text("\n".join(rows) + "\n")

    def is_of_versions(self, client: str, engine: str) -> None:
        (self.folder / "version").write_text(
            f"Version : {client}\nBuild ID : 14\n\nHostengine build info:\nVersion : {engine}\n"
        )

    @property
    def calls(self) -> list[str]:
        """The diagnoses that were asked for."""
        record = self.folder / "arguments"
        lines = record.read_text().splitlines() if record.exists() else []
        return [line for line in lines if line.startswith("diag")]

    @property
    def hanging(self) -> bool:
        return (self.folder / "pids").exists()

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
    for name, source in (("libnvidia-ml.so.1", "nvml.c"), ("libcuda.so.1", "cuda.c")):
        library, code = os.path.join(folder, name), str(_FOLDER / "nvml" / source)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", *flags, "-o", library, code], check=True, timeout=120
        )
    return folder


def has_real_driver() -> bool:
    """Whether the real libnvidia-ml.so.1 is installed, and `no driver` cannot be played here."""
    listing = subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False, timeout=30
    )
    return "libnvidia-ml.so.1" in listing.stdout
