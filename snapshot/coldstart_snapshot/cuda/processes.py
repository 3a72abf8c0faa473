"""What /proc shows of a process's dealings with GPUs, without asking the driver."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from coldstart_cli.errors import PermissionNeededError

DEVICE_PREFIX = "/dev/nvidia"
_LIBRARY = "libcuda.so"
_MANAGED_MEMORY = "/dev/nvidia-uvm"
# threads of a communicator: what it has started to move data, or to be asked by its peers
_NCCL_THREADS = ("NCCL Progress", "NCCL Service", "NCCL UDS")
_GPU_NODE = re.compile(r"nvidia(\d+)")


def device_files(pid: int) -> tuple[str, ...]:
    """The /dev/nvidia* files that a process has open or mapped."""
    found: set[str] = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        try:
            links = os.listdir(f"/proc/{pid}/fd")
        except PermissionError as error:
            raise PermissionNeededError(
                f"cannot see the open files of process {pid}", hint="run as root"
            ) from error
        for link in links:
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{link}"))
    found.update(path for path, _ in _mapped(pid))
    return tuple(sorted(path for path in found if path.startswith(DEVICE_PREFIX)))


def uses_gpu(pid: int) -> bool:
    """Whether a process may have CUDA state: the driver's library is in it, or one of its devices.

    Asking the driver instead attaches to it for each process: 2.7 s on a host with eight H100.
    """
    return any(_LIBRARY in os.path.basename(path) for path, _ in _mapped(pid)) or bool(device_files(pid))


def gpu_suspects(pids: Iterable[int]) -> tuple[int, ...]:
    return tuple(pid for pid in pids if uses_gpu(pid))


def managed_bytes(pid: int) -> int:
    """Size of what a process maps of the device of managed memory."""
    return sum(size for path, size in _mapped(pid) if path == _MANAGED_MEMORY)


def communicates(pid: int) -> bool:
    """Whether threads of NCCL are at work in a process."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                name = Path(f"/proc/{pid}/task/{thread}/comm").read_text("utf-8", "replace")
                if name.startswith(_NCCL_THREADS):
                    return True
    return False


def visible_minors(pid: int) -> frozenset[int]:
    """Numbers of the GPUs whose device nodes a process can see; none where it sees no such nodes."""
    found = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/root/dev"):
            if match := _GPU_NODE.fullmatch(name):
                found.add(int(match[1]))
    return frozenset(found)


def _mapped(pid: int) -> list[tuple[str, int]]:
    """Path and size of every mapping of a file."""
    found = []
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/"):
                start, _, end = fields[0].partition("-")
                found.append((fields[5].removesuffix(" (deleted)"), int(end, 16) - int(start, 16)))
    return found
