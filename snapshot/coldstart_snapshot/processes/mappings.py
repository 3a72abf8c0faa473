"""What /proc says of a process's memory: which files and special areas are mapped."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DELETED = " (deleted)"
# areas that the kernel shows as deleted files, and criu stores as memory
_MEMORY = ("/memfd:", "/dev/zero", "/SYSV", "/[aio]", "/anon_hugepage", "/secretmem")


@dataclass(frozen=True)
class Mapping:
    """One file or special area in the memory of one process, however often it is mapped there."""

    pid: int
    address: str
    path: str
    inode: int
    shared: bool = False

    @property
    def is_deleted_file(self) -> bool:
        return self.path.startswith("/") and self.path.endswith(_DELETED) and not is_memory(self.path)

    def status(self) -> os.stat_result | None:
        """The mapped file itself, deleted or not; None where the kernel does not tell."""
        try:
            return os.stat(f"/proc/{self.pid}/map_files/{self.address}")
        except OSError:
            return None


@dataclass(frozen=True)
class DeletedFile:
    """A deleted file that processes still have: criu stores its content."""

    pid: int
    path: str
    inode: int
    size_bytes: int
    links: int


def is_memory(path: str) -> bool:
    """Whether what looks like a deleted file is memory that never had a name."""
    return path.startswith(_MEMORY)


def mappings(pids: Iterable[int]) -> Iterator[Mapping]:
    """Every named area of these processes, each once for a process."""
    for pid in pids:
        lines: list[str] = []
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "surrogateescape").splitlines()
        found: dict[tuple[str, str], tuple[str, bool]] = {}
        for line in lines:
            fields = line.split(None, 5)
            if len(fields) == 6:
                address, shared = found.get((fields[4], fields[5]), (fields[0], False))
                found[fields[4], fields[5]] = address, shared or fields[1].endswith("s")
        for (inode, path), (address, shared) in found.items():
            yield Mapping(pid, _file_name(address), path, int(inode), shared)


def deleted_mappings(areas: Iterable[Mapping]) -> Iterator[DeletedFile]:
    """Mapped files that were deleted, under all of their names or only the one they were opened by."""
    for area in areas:
        if area.is_deleted_file and (found := area.status()) and stat.S_ISREG(found.st_mode):
            path = area.path.removesuffix(_DELETED)
            yield DeletedFile(area.pid, path, found.st_ino, found.st_size, found.st_nlink)


def _file_name(address: str) -> str:
    """map_files has no leading zeros."""
    return "-".join(f"{int(part, 16):x}" for part in address.split("-"))
