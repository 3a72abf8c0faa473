"""How many bytes of pages a workload touches: what the page cache has of a local disk after it."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
from pathlib import Path

from roots import drop_caches, run, run_in

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def touched_bytes(root: Path, folder: Path, code: str, *, read_ahead_kib: int) -> int | None:
    """Of files below a root, with so much read ahead of faults; None without mke2fs or loop devices."""
    if shutil.which("mke2fs") is None or not Path("/dev/loop-control").exists():
        return None
    image, mounted = folder / "touched.ext4", folder / "touched"
    mounted.mkdir(exist_ok=True)
    size_bytes = sum(path.lstat().st_size for path in root.rglob("*") if path.is_file())
    with image.open("wb") as stream:
        stream.truncate(size_bytes * 3 // 2 + (64 << 20))
    try:
        run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(root), str(image)])
        run(["mount", "-o", "loop,ro", str(image), str(mounted)])
        try:
            device = os.stat(mounted).st_dev
            # of this file system alone
            bdi = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
            bdi.write_text(str(read_ahead_kib))
            drop_caches()
            run_in(mounted, code)
            return sum(_resident_bytes(path) for path in _files(mounted))
        finally:
            run(["umount", str(mounted)])
    finally:
        image.unlink()


def _files(root: Path) -> list[Path]:
    found = []
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size:
                found.append(path)
    return found


def _resident_bytes(path: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size_bytes = os.fstat(descriptor).st_size
        pages = -(-size_bytes // _PAGE_BYTES)
        place = libc.mmap(None, size_bytes, 1, 1, descriptor, 0)  # readable, shared
        vector = ctypes.create_string_buffer(pages)
        libc.mincore(place, size_bytes, vector)
        libc.munmap(place, size_bytes)
    finally:
        os.close(descriptor)
    return sum(page & 1 for page in vector.raw[:pages]) * _PAGE_BYTES
