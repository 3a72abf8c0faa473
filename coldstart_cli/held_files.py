"""Files held in memory by a process that stays, so that a command's own start reads no disk.

A host that loads weights pushes everything else out of its page cache, the interpreter and its modules too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pkgutil
import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

from coldstart_cli.errors import ColdstartError
from coldstart_cli.process import find_program, run

_PACKAGES = (
    *("coldstart_cli", "coldstart_commands", "coldstart_fs", "coldstart_health", "coldstart_host"),
    *("coldstart_launch", "coldstart_snapshot"),
)
# what the components import when they need it
_LATE = ("concurrent.futures.thread", "logging", "obstore.store", "psutil", "pynvml")
# those of a restore; criu runs the rest of them
_PROGRAMS = ("runc", "criu", "iptables", "ip6tables", "sh")
_DEADLINE_SECONDS = 60.0
_NICE = 19
_MCL_CURRENT, _MCL_ONFAULT = 1, 4
_LARGEST_FILE_BYTES = 64 << 20


def files_of_commands() -> Iterator[Path]:
    """What mounting, launching and restoring read themselves: programs, libraries, code of all components."""
    for name in _PROGRAMS:
        with suppress(ColdstartError):
            program = find_program(name)
            yield Path(program)
            needed = run([find_program("ldd"), program], deadline_seconds=_DEADLINE_SECONDS, check=False)
            yield from (Path(word) for word in needed.text.split() if word.startswith("/"))
    # in a process of its own: whoever holds the files needs none of the code
    listing = [sys.executable, "-P", "-m", __name__]
    with suppress(ColdstartError):
        yield from map(Path, run(listing, deadline_seconds=_DEADLINE_SECONDS).text.splitlines())


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
        _allow_many_descriptors()
        # in their order: where there is no room for all, the first ones are worth the most
        for path in dict.fromkeys(Path(os.path.realpath(path)) for path in paths):
            with suppress(OSError, ValueError):  # as an empty one is
                held.append(_mapped(path))
        ctypes.CDLL(None).mlockall(_MCL_CURRENT | _MCL_ONFAULT)
        waiting = select.poll()
        waiting.register(process, select.POLLIN)
        waiting.poll()
        del held
    finally:
        os.close(process)


def _allow_many_descriptors() -> None:
    """Each mapping keeps a descriptor, and services begin with room for 1,024."""
    _, most = getrlimit(RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        setrlimit(RLIMIT_NOFILE, (most, most))


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


def _imported_files() -> Iterator[str]:
    """What this process has imported, and what it has mapped: the interpreter and its libraries."""
    for module in list(sys.modules.values()):
        for attribute in ("__file__", "__cached__"):
            if isinstance(path := getattr(module, attribute, None), str):
                yield path
    for line in Path("/proc/self/maps").read_text("utf-8", "replace").splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/"):
            yield parts[5]


def _import_everything() -> None:
    for name in _LATE:
        with suppress(Exception):
            import_module(name)
    for package in _PACKAGES:
        with suppress(ImportError):
            for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
                if not module.name.endswith(".__main__"):  # that would run it
                    with suppress(Exception):  # an extra that is not installed
                        import_module(module.name)


if __name__ == "__main__":
    os.nice(_NICE)
    with redirect_stdout(sys.stderr):  # whatever a module says
        _import_everything()
    sys.stdout.writelines(f"{path}\n" for path in _imported_files())
