"""Findings about descriptors: what criu knows no way to open again."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from coldstart_snapshot.preflight.devices import check_device
from coldstart_snapshot.preflight.finding import Finding, Peer, finding
from coldstart_snapshot.preflight.scene import Scene
from coldstart_snapshot.preflight.watches import check_watches
from coldstart_snapshot.processes.tree import OpenFile, process_name

_ANONYMOUS = "anon_inode:"
_IO_URING = "[io_uring]"
# criu/files.c of 4.2; bpf-map only where criu was built with libbpf
_KNOWN = ("[eventfd]", "[eventpoll]", "inotify", "[fanotify]", "[signalfd]", "[timerfd]", "[pidfd]")
_BPF_MAP = "bpf-map"
_INOTIFY = "inotify"
_STANDARD = frozenset({0, 1, 2})


def check(scene: Scene) -> Iterator[Finding]:
    for file in scene.files:
        if not file.path.startswith(("socket:", "pipe:")):
            yield from _kind(scene, file)
        if stat.S_ISCHR(file.mode) or stat.S_ISBLK(file.mode):
            yield from check_device(scene, file)
    yield from _pipes(scene)


def _kind(scene: Scene, file: OpenFile) -> Iterator[Finding]:
    kind = file.path.removeprefix(_ANONYMOUS)
    if kind == _IO_URING:
        yield finding("io-uring", f"an io_uring is open: {_where(file)}", **_details(file))
    elif kind == _INOTIFY:
        yield from check_watches(file)
    elif file.told("Pid") is not None and "pidfd" in kind:
        yield from _pidfd(scene, file)
    elif file.path.startswith(_ANONYMOUS) and kind not in _KNOWN:
        if kind != _BPF_MAP or not _built_with_libbpf(scene.criu.program):
            yield finding("descriptor-kind", f"{kind.strip('[]')} is open: {_where(file)}", **_details(file))
    elif file.path.startswith("/secretmem"):
        yield finding("descriptor-kind", f"secret memory is open: {_where(file)}", **_details(file))
    elif file.path.startswith("/dmabuf:"):
        yield finding("descriptor-kind", f"a DMA buffer is open: {_where(file)}", **_details(file))


def _pidfd(scene: Scene, file: OpenFile) -> Iterator[Finding]:
    watched = int(file.told("Pid") or -1)
    if watched <= 0 or watched in scene.pids:
        return
    name = process_name(watched)
    what = f"process {watched} ({name}) is watched: {_where(file)}"
    yield finding("pidfd-outside", what, peer=Peer(watched, name), **_details(file))


def _pipes(scene: Scene) -> Iterator[Finding]:
    """Pipes with an end outside only; a capture hands on the ones that take the output of the server."""
    ends: dict[str, list[OpenFile]] = {}
    for file in scene.files:
        if file.path.startswith("pipe:["):
            ends.setdefault(file.path, []).append(file)
    for link, files in ends.items():
        modes = {file.access_mode for file in files}
        if len(modes) > 1 or os.O_RDWR in modes or {file.descriptor for file in files} & _STANDARD:
            continue
        pid = scene.outside.get(link)
        if pid is not None and pid != os.getpid():  # we may have inherited it from whom started both
            name = process_name(pid)
            what = f"a pipe leads to process {pid} ({name}), which is not in the snapshot: {_where(files[0])}"
            yield finding("pipe-outside", what, peer=Peer(pid, name), **_details(files[0]))


def _where(file: OpenFile) -> str:
    return f"descriptor {file.descriptor} of process {file.pid} ({process_name(file.pid)})"


def _details(file: OpenFile) -> dict[str, Any]:
    return {"pid": file.pid, "descriptor": file.descriptor, "path": file.path}


def _built_with_libbpf(program: str) -> bool:
    with suppress(OSError):
        return b"libbpf.so" in Path(program).read_bytes()
    return False
