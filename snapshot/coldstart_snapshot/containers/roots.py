"""What a container's root file system is made of: our image, an overlay over a folder, or a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from coldstart_cli import files
from coldstart_cli.files import unescape_mountinfo

_IMAGE_PREFIX = "coldstart:"


class RootKind(StrEnum):
    IMAGE = "image"
    OVERLAY = "overlay"
    FOLDER = "folder"


@dataclass(frozen=True)
class RootSource:
    """Where a root comes from: `path` is the lower folder, or the folder itself; `upper` what is written."""

    kind: RootKind
    path: Path
    image: str | None = None
    name: str | None = None
    store: str | None = None
    upper: Path | None = None


@dataclass(frozen=True)
class MountEntry:
    """One line of mountinfo, reduced to what roots are told by."""

    point: str
    filesystem: str
    source: str
    options: tuple[str, ...]
    device: tuple[int, int] = (0, 0)

    def option(self, name: str) -> str | None:
        prefix = f"{name}="
        return next((option[len(prefix) :] for option in self.options if option.startswith(prefix)), None)


def detect_root(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> RootSource:
    """Tell what is mounted at `path` from the mount table alone."""
    mounts = read_mounts(mountinfo)
    wanted = os.path.realpath(path)
    entry = _topmost(mounts, wanted)
    if entry is None:
        return RootSource(RootKind.FOLDER, Path(wanted))
    if image := _image_of(entry):
        return RootSource(RootKind.IMAGE, Path(wanted), image=image)
    if entry.filesystem != "overlay":
        return RootSource(RootKind.FOLDER, Path(wanted))
    upper = entry.option("upperdir")
    lower = _lowest_layer(entry)
    source = _topmost(mounts, os.path.realpath(lower)) if lower else None
    image = _image_of(source) if source else None
    kind = RootKind.IMAGE if image else RootKind.OVERLAY
    return RootSource(kind, Path(lower or wanted), image=image, upper=Path(upper) if upper else None)


def read_mounts(mountinfo: Path) -> tuple[MountEntry, ...]:
    """The mount table, in the order of mounting."""
    entries = []
    for fields in files.mountinfo(mountinfo):
        major, _, minor = fields[2].partition(":")
        filesystem, source, options = fields[fields.index("-") + 1 :]
        entries.append(
            MountEntry(
                point=unescape_mountinfo(fields[4]),
                filesystem=filesystem,
                source=unescape_mountinfo(source),
                options=tuple(_split_options(unescape_mountinfo(options))),
                device=(int(major), int(minor)),
            )
        )
    return tuple(entries)


def tmpfs_mounts(pid: int) -> tuple[str, ...]:
    """Where a process sees a tmpfs: criu stores what is in those of a container."""
    return tuple(
        entry.point for entry in read_mounts(Path(f"/proc/{pid}/mountinfo")) if entry.filesystem == "tmpfs"
    )


def _topmost(mounts: tuple[MountEntry, ...], path: str) -> MountEntry | None:
    return next((entry for entry in reversed(mounts) if entry.point == path), None)


def _image_of(entry: MountEntry) -> str | None:
    """`blake3:HEX` of one of our FUSE mounts."""
    if entry.filesystem.startswith("fuse") and entry.source.startswith(_IMAGE_PREFIX):
        return entry.source[len(_IMAGE_PREFIX) :]
    return None


def _lowest_layer(entry: MountEntry) -> str:
    """The lowest of the layers: overlayfs lists the topmost first, joined or (Linux 6.8) one by one."""
    single = [
        option.removeprefix("lowerdir+=") for option in entry.options if option.startswith("lowerdir+=")
    ]
    return single[-1] if single else _split_escaped(entry.option("lowerdir") or "", ":")[-1]


def _split_options(text: str) -> list[str]:
    return _split_escaped(text, ",", keep_escapes=True)


def _split_escaped(text: str, separator: str, *, keep_escapes: bool = False) -> list[str]:
    parts = [""]
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\" and position + 1 < len(text):
            parts[-1] += text[position : position + 2] if keep_escapes else text[position + 1]
            position += 2
            continue
        if character == separator:
            parts.append("")
        else:
            parts[-1] += character
        position += 1
    return parts
