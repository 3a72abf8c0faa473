"""Findings about device files: GPUs, terminals, and all that criu has no way to open again."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from coldstart_snapshot.preflight.finding import Finding, finding
from coldstart_snapshot.preflight.scene import Scene
from coldstart_snapshot.processes.tree import OpenFile, process_name

_MEMORY_DEVICES = 1  # null, zero, random, kmsg
_MISC, _MISC_KNOWN, _MISC_FUSE = 10, frozenset({200, 235}), 229  # tun, autofs
_TERMINALS = 4
_FIRST_SERIAL = 64  # criu knows no serial ports
_CURRENT_TERMINAL, _CONSOLE, _MULTIPLEXER = (5, 0), (5, 1), (5, 2)
_MASTERS, _SLAVES = range(128, 136), range(136, 144)
_NVIDIA = 195


def check_device(scene: Scene, file: OpenFile) -> Iterator[Finding]:
    """What is wrong with a character or block device that is open."""
    major, minor = os.major(file.device), os.minor(file.device)
    where = f"descriptor {file.descriptor} of process {file.pid} ({process_name(file.pid)})"
    details: dict[str, Any] = {"pid": file.pid, "descriptor": file.descriptor, "path": file.path}
    if stat.S_ISCHR(file.mode) and _is_known(major, minor):
        return
    if stat.S_ISCHR(file.mode) and (major in _SLAVES or (major, minor) == _CURRENT_TERMINAL):
        if major not in _SLAVES or (major - _SLAVES.start) * 256 + minor not in _own_terminals(scene):
            yield finding("terminal", f"a terminal is open: {file.path}: {where}", **details)
        return
    name = device_name(file.mode, file.device) or file.path
    yield from _forbidden(scene, file.pid, major, minor, name, f"{name}: {where}", details)


def check_mapped_devices(scene: Scene) -> Iterator[Finding]:
    """Devices that are mapped, and may be open no more."""
    open_already = {(file.pid, file.path) for file in scene.files}
    for area in scene.areas:
        if not area.path.startswith("/dev/") or (area.pid, area.path) in open_already:
            continue
        status = area.status()
        if status is None or not stat.S_ISCHR(status.st_mode):
            continue
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        if _is_known(major, minor):
            continue
        name = device_name(status.st_mode, status.st_rdev) or area.path
        where = f"{name}: mapped by process {area.pid} ({process_name(area.pid)})"
        details: dict[str, Any] = {"pid": area.pid, "path": area.path}
        yield from _forbidden(scene, area.pid, major, minor, name, where, details)


def device_name(mode: int, device: int) -> str | None:
    """The /dev name of a device number on this host; majors of drivers differ from host to host."""
    kind = "char" if stat.S_ISCHR(mode) else "block"
    major, minor = os.major(device), os.minor(device)
    with suppress(OSError):
        for line in Path(f"/sys/dev/{kind}/{major}:{minor}/uevent").read_text().splitlines():
            if line.startswith("DEVNAME="):
                return f"/dev/{line.removeprefix('DEVNAME=')}"
    return f"{driver} ({major}:{minor})" if (driver := _drivers().get(major)) and kind == "char" else None


def _is_known(major: int, minor: int) -> bool:
    return (
        major == _MEMORY_DEVICES
        or (major == _MISC and minor in _MISC_KNOWN)
        or (major == _TERMINALS and minor < _FIRST_SERIAL)
        or (major, minor) in {_CONSOLE, _MULTIPLEXER}
        or major in _MASTERS
    )


def _forbidden(
    scene: Scene, pid: int, major: int, minor: int, name: str, where: str, details: dict[str, Any]
) -> Iterator[Finding]:
    driver = _drivers().get(major, "")
    if major == _NVIDIA or re.match(r"(?:/dev/)?nvidia", name) or driver.startswith("nvidia"):
        if pid not in scene.gpu:
            yield finding("gpu-not-suspended", f"a GPU is held: {where}", **details)
    elif "gdrdrv" in {driver, os.path.basename(name)}:
        yield finding("gdrdrv", f"GPUDirect's device is open: {where}", **details)
    elif (major, minor) == (_MISC, _MISC_FUSE):
        yield finding("fuse-device", f"a FUSE file system is served: {where}", **details)
    else:
        yield finding("device", f"a device is open: {where}", **details)


def _own_terminals(scene: Scene) -> frozenset[int]:
    """Terminals whose master is in the tree too: criu restores those by itself."""
    return frozenset(int(index) for file in scene.files if (index := file.told("tty-index")))


@cache
def _drivers() -> dict[int, str]:
    """Character drivers by major number."""
    found: dict[int, str] = {}
    with suppress(OSError):
        text = Path("/proc/devices").read_text().partition("Block devices:")[0]
        for line in text.splitlines():
            number, _, name = line.strip().partition(" ")
            if number.isdecimal():
                found.setdefault(int(number), name)
    return found
