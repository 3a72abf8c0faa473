"""Drives the CUDA stand-in: processes with CUDA state, faults on demand, what was called."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("cuda_driver")
_MAGIC = b"cuda stand-in 1\0"
_STATES = ("running", "locked", "checkpointed", "failed")


class CudaStandIn:
    """One test's stand-in; `environment` must reach whoever calls the driver, and GPU processes."""

    def __init__(self, folder: Path, *, before_570: bool = False) -> None:
        self.folder = folder
        self.vram = folder / "vram"
        self.vram.mkdir(parents=True, exist_ok=True)
        self.libraries = driver_folder(before_570=before_570)
        self.program = f"{self.libraries}/cuda-checkpoint"
        self.environment = {
            "CUDA_STAND_IN_FOLDER": str(folder),
            "CUDA_STAND_IN_VRAM": str(self.vram),
            "LD_LIBRARY_PATH": ":".join(
                filter(None, [self.libraries, os.environ.get("LD_LIBRARY_PATH", "")])
            ),
        }
        self._children: list[subprocess.Popen[bytes]] = []
        self._settings: dict[str, str] = {}
        self._faults: list[str] = []

    def set(self, **settings: object) -> None:
        """Change settings of the control file; `__` stands for the dot."""
        self._settings |= {name.replace("__", "."): str(value) for name, value in settings.items()}
        self._write()

    def fault(
        self, operation: str, fault: str, *, pid: int | None = None, skip: int = 0, times: int = 1
    ) -> None:
        """Let the next call of `operation` (`*`: any) fail, after `skip` good ones, `times` times."""
        self._faults.append(f"fault {operation} {pid or 0} {fault.replace(' ', '_')} {skip} {times}")
        self._write()

    def forgive(self) -> None:
        """No fault any more."""
        self._faults = []
        self._write()

    def spawn(
        self,
        command: Sequence[str] | None = None,
        *,
        cuda: bool = True,
        size_bytes: int = 4096,
        device: int = 0,
        extras: Sequence[str] = (),
    ) -> int:
        """Start a process, with CUDA state or without; `close` ends it."""
        gpu_process = [f"{self.libraries}/gpu-process", str(size_bytes), str(device), *extras]
        child = subprocess.Popen(
            command or (gpu_process if cuda else ["sleep", "600"]),
            env=dict(os.environ) | self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._children.append(child)
        while cuda and (state_of(child.pid) is None or not self.allocated()):
            assert child.poll() is None
        return child.pid

    def allocated(self) -> list[str]:
        """The files that play memory of GPUs."""
        return sorted(os.listdir(self.vram))

    def calls(self) -> list[str]:
        """Operation and pid of every call, in order."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def reap(self, pid: int) -> None:
        """Take leave of a process that something else has ended, so that its number is free again."""
        (child,) = [child for child in self._children if child.pid == pid]
        child.wait(timeout=30)
        self._children.remove(child)

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()

    def _write(self) -> None:
        lines = [f"set {name} {value}" for name, value in self._settings.items()] + self._faults
        temporary = self.folder / "control.new"
        temporary.write_text("".join(f"{line}\n" for line in lines))
        temporary.replace(self.folder / "control")


@functools.cache
def driver_folder(*, before_570: bool = False) -> str:
    """A folder with libcuda.so.1, cuda-checkpoint and a GPU process, built once a run."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler for the CUDA stand-in")
    folder = tempfile.mkdtemp(prefix="coldstart-cuda-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.chmod(folder, 0o755)
    flags = ["-O1", "-Wall", "-Werror", *(["-DBEFORE_570"] if before_570 else [])]
    library = f"{folder}/libcuda.so.1"
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wl,-soname,libcuda.so.1"]
    _compile([*flags, *shared, "-o", library, str(SOURCE / "libcuda.c")])
    origin = "-Wl,-rpath,$ORIGIN"
    _compile([*flags, "-o", f"{folder}/cuda-checkpoint", str(SOURCE / "cuda_checkpoint.c"), library, origin])
    _compile([*flags, "-o", f"{folder}/gpu-process", str(SOURCE / "gpu_process.c"), library, origin])
    return folder


def _compile(arguments: Sequence[str]) -> None:
    subprocess.run(["gcc", *arguments], check=True, timeout=120)


def state_of(pid: int) -> str | None:
    """The CUDA state in a process's memory; None for a process without one."""
    found = _memory(pid, 20)
    return None if found is None else _STATES[struct.unpack("=i", found[16:20])[0]]


def is_poisoned(pid: int) -> bool:
    found = _memory(pid, 24)
    return found is not None and bool(struct.unpack("=i", found[20:24])[0])


def _memory(pid: int, size: int) -> bytes | None:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for start, end in re.findall(r"^(\w+)-(\w+) rw\S+ .*libcuda\.so", maps, re.MULTILINE):
                memory.seek(int(start, 16))
                content = memory.read(int(end, 16) - int(start, 16)) or b""
                if (at := content.find(_MAGIC)) >= 0:
                    return content[at : at + size]
    except (OSError, ValueError):
        return None
    return None
