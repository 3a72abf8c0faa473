"""Files held in memory by a process that stays, so that a command's own start reads no disk.

A host that loads weights pushes everything else out of its page cache, the interpreter and its modules too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from coldstart_cli.errors import UnavailableError
from coldstart_cli.process import find_program

_PACKAGES = (
    *("coldstart_cli", "coldstart_commands", "coldstart_fs", "coldstart_health", "coldstart_host"),
    *("coldstart_launch", "coldstart_snapshot"),
)
_PROGRAMS = ("runc", "criu")
_MCL_CURRENT, _MCL_ONFAULT = 1, 4
_LARGEST_FILE_BYTES = 64 << 20


def files_of_commands() -> Iterator[Path]:
    """What mounting, launching and restoring read themselves: programs, and the code of all components."""
    for package in _PACKAGES:
        # looking is enough: nothing of it is imported here
        spec = find_spec(package)
        for folder in spec.submodule_search_locations or () if spec is not None else ():
            yield from Path(folder).rglob(f"__pycache__/*.{sys.implementation.cache_tag}.pyc")
    for program in _PROGRAMS:
        with suppress(UnavailableError):
            yield Path(find_program(program))
    yield from _files_of_this_process()


def _files_of_this_process() -> Iterator[Path]:
    """What it has imported, and what it has mapped: the interpreter and its libraries."""
    for module in list(sys.modules.values()):
        for attribute in ("__file__", "__cached__"):
            if isinstance(path := getattr(module, attribute, None), str):
                yield Path(path)
    for line in Path("/proc/self/maps").read_text("utf-8", "replace").splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/"):
            yield Path(parts[5])


def hold_files(paths: Iterable[Path], pid: int) -> None:
    """Keep files in memory until a process has ended; what cannot be held is passed over.

    Where this process may lock memory nothing takes them away; elsewhere the kernel takes mapped pages last.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        held = []
        for path in {Path(os.path.realpath(path)) for path in paths}:
            with suppress(OSError, ValueError):  # as an empty one is
                held.append(_mapped(path))
        ctypes.CDLL(None).mlockall(_MCL_CURRENT | _MCL_ONFAULT)
        waiting = select.poll()
        waiting.register(process, select.POLLIN)
        waiting.poll()
        del held
    finally:
        os.close(process)


def _mapped(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size_bytes = os.fstat(descriptor).st_size
        view = mmap.mmap(descriptor, min(size_bytes, _LARGEST_FILE_BYTES), prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    for place in range(0, len(view), mmap.PAGESIZE):
        view[place]
    return view
