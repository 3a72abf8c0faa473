"""What /proc says of a process's program: code that is mapped for execution, and environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_CHUNK_BYTES = 4 << 20
_SHARED_MEMORY = ("/memfd:", "/dev/zero", "/dev/shm/", "/SYSV")  # noqa: S108 - names in /proc/PID/maps


@dataclass(frozen=True)
class MappedFile:
    """One executable mapping; `path` is empty for memory that no file backs."""

    pid: int
    path: str
    start: int
    end: int
    identity: tuple[int, int]

    @property
    def is_file(self) -> bool:
        """Whether code was loaded here; shared memory has names too, and holds what was made at run time."""
        return self.path.startswith("/") and not self.path.startswith(_SHARED_MEMORY)

    def code(self) -> bytes:
        """The mapping's bytes; what cannot be read is left out."""
        parts = []
        descriptor = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for address in range(self.start, self.end, _CHUNK_BYTES):
                try:
                    parts.append(os.pread(descriptor, min(_CHUNK_BYTES, self.end - address), address))
                except OSError:  # a file that became shorter than its mapping
                    break
        finally:
            os.close(descriptor)
        return b"".join(parts)


def environment(pid: int) -> Mapping[str, str]:
    """The environment that a process was started with, or what it made of that memory since."""
    content = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "surrogateescape")
    return dict(entry.split("=", 1) for entry in content.split("\0") if "=" in entry)


def mapped_files(pid: int) -> Iterator[MappedFile]:
    """Executable mappings of a process, the kernel's own (vdso) included."""
    for line in Path(f"/proc/{pid}/maps").read_text("utf-8", "surrogateescape").splitlines():
        addresses, permissions, _, device, inode, *path = line.split(maxsplit=5)
        if "x" not in permissions:
            continue
        start, end = (int(part, 16) for part in addresses.split("-"))
        major, minor = (int(part, 16) for part in device.split(":"))
        number = int(inode)
        # mappings of one file differ: their place belongs to what they are
        identity = (os.makedev(major, minor) << 64 | number, start if not number else 0)
        yield MappedFile(pid, path[0] if path else "", start, end, identity)
