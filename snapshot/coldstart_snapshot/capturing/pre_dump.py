"""Memory dumped ahead, while the server runs: it then stands still only for the pages it wrote since."""

from __future__ import annotations

import shutil
from pathlib import Path

from coldstart_cli import process
from coldstart_cli.errors import UnavailableError
from coldstart_snapshot.containers.target import ContainerTarget, Target
from coldstart_snapshot.criu.calls import DumpOptions, pre_dump_process
from coldstart_snapshot.criu.program import Criu

FEATURE = "mem_dirty_track"
# criu's own name for the images that others stand on
_PARENT = "parent"
_QUERY_SECONDS = 20.0
# below this the second pass over /proc costs more than the shorter standstill is worth
_WORTH_BYTES = 1 << 30
# what was written meanwhile is stored twice
_ROOM_FACTOR = 2.1


def tracks_memory(criu: Criu) -> bool:
    """Whether criu and this kernel can tell which pages were written since."""
    command = [criu.program, "check", "--no-default-config", "--feature", FEATURE]
    return process.run(command, deadline_seconds=_QUERY_SECONDS, check=False).status == 0


def wants_pre_dump(asked: bool | None, criu: Criu, *, memory_bytes: int, has_gpu: bool, folder: Path) -> bool:
    """Whether to dump ahead: as asked, or refused; not asked, where it is possible and worth it."""
    if asked is False or (asked is None and memory_bytes < _WORTH_BYTES):
        return False
    if has_gpu:
        if asked:
            raise UnavailableError(
                "memory cannot be dumped ahead: GPU state comes into it only when it is suspended",
                hint="leave out --pre-dump",
            )
        return False
    if not tracks_memory(criu):
        if asked:
            raise UnavailableError(
                f"memory cannot be dumped ahead: written pages are not tracked here (criu's {FEATURE})",
                hint="leave out --pre-dump, or use a kernel with CONFIG_MEM_SOFT_DIRTY",
            )
        return False
    while not folder.exists():
        folder = folder.parent
    return bool(asked) or shutil.disk_usage(folder).free > memory_bytes * _ROOM_FACTOR


def dump_ahead(criu: Criu, target: Target, images: Path, work: Path, options: DumpOptions) -> None:
    """Write the memory as it is now, and let the kernel watch what is written from now on."""
    images.mkdir(mode=0o700)
    if isinstance(target, ContainerTarget):
        target.runc.checkpoint(target.container_id, images, work, criu, options, extra=("--pre-dump",))
    else:
        pre_dump_process(criu, target.pid, images, work, options)


def adopt_parent(images: Path, ahead: Path) -> None:
    """Make the images whole: what they stand on lies in them, not where a link leads."""
    link = images / _PARENT
    link.unlink()
    ahead.rename(link)
