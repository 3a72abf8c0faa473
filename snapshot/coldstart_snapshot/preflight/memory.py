"""Findings about mapped memory: rings, probes, huge pages, System V segments, mapped devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from coldstart_snapshot.preflight.devices import check_mapped_devices
from coldstart_snapshot.preflight.finding import Finding, finding
from coldstart_snapshot.preflight.scene import Scene
from coldstart_snapshot.processes.mappings import Mapping
from coldstart_snapshot.processes.tree import OpenFile, namespace, process_name

_SMALLEST_HUGE_PAGE_BYTES = 2 << 20
_HUGE_PAGES = Path("/sys/kernel/mm/hugepages")


def check(scene: Scene) -> Iterator[Finding]:
    rings = {file.pid for file in scene.files if file.path == "anon_inode:[io_uring]"}
    for area in scene.areas:
        if area.path == "anon_inode:[io_uring]" and area.pid not in rings:
            yield finding("io-uring", f"an io_uring is mapped: {_where(area)}", pid=area.pid)
        elif area.path == "[uprobes]":
            yield finding("uprobes", f"probes were placed into the code of {_where(area)}", pid=area.pid)
        elif area.path.startswith("/SYSV") and not _own_ipc(scene):
            what = f"System V shared memory is mapped: {area.path.split()[0]}: {_where(area)}"
            yield finding("sysv-shm", what, pid=area.pid, path=area.path)
    yield from check_mapped_devices(scene)
    yield from _huge_pages(scene)


def _own_ipc(scene: Scene) -> bool:
    return namespace(scene.target.pid, "ipc") != namespace(os.getpid(), "ipc")


def _huge_pages(scene: Scene) -> Iterator[Finding]:
    """How criu 4.2 knows a memfd in huge pages: by the device that it finds when it maps some itself."""
    found = sorted({(file.pid, file.path) for file in scene.files if _is_huge(file)})
    if not found or _reserved_pages():
        return
    for pid, path in found:
        what = f"memory in huge pages, of which this host has none: {path.split()[0]}: process {pid}"
        yield finding("hugetlb-memfd", what, pid=pid, path=path)


def _is_huge(file: OpenFile) -> bool:
    if not file.path.startswith("/memfd:"):
        return False
    try:
        # hugetlbfs alone has blocks of the size of its pages
        return os.statvfs(f"/proc/{file.pid}/fd/{file.descriptor}").f_bsize >= _SMALLEST_HUGE_PAGE_BYTES
    except OSError:
        return False


def _reserved_pages() -> bool:
    for size in _HUGE_PAGES.glob("hugepages-*"):
        for name in ("nr_hugepages", "nr_overcommit_hugepages"):
            with suppress(OSError, ValueError):
                if int((size / name).read_text()) > 0:
                    return True
    return False


def _where(area: Mapping) -> str:
    return f"process {area.pid} ({process_name(area.pid)})"
