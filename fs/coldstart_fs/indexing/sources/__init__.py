"""What can be indexed: each source hands over contents as it meets them and ends with the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from coldstart_cli.errors import UsageError, near_matches_hint
from coldstart_fs.format.chunk import Piece
from coldstart_fs.format.entry import Entry
from coldstart_fs.indexing.progress import Progress

__all__ = ["SPELLINGS", "Keep", "Progress", "Source", "is_in_pack_order", "open_source"]

Keep = Callable[[Entry, Iterable[Piece]], None]
"""Takes a regular file's content; the pieces must be used up before it returns."""


class Source(Protocol):
    """`notes` says what was left out of the tree, one sentence each."""

    notes: list[str]
    configuration: dict[str, Any]
    """The runtime configuration with the keys of the index format; known once the tree was read."""

    def read(self, keep: Keep, chunk_bytes: int, progress: Progress, scratch: Path) -> Entry:
        """The root of the tree. Files that the tree turns out not to hold may have been kept too.

        `scratch` is a folder for what must lie in a file to be read; its owner empties it.
        """
        ...


def open_source(
    text: str, *, forbidden: str | None = None, platform: str | None = None, skopeo: str | None = None
) -> Source:
    """The source that `SCHEME:REST` names; `forbidden` is a folder that must not lie inside of it."""
    from coldstart_fs.indexing.sources.reference import without_login

    scheme, separator, rest = text.partition(":")
    shown = without_login(text)
    if not text:
        raise UsageError("source is empty", hint=f"a source is {SPELLINGS}")
    if not separator or "/" in scheme:
        raise UsageError(f"source has no kind: {shown}", hint=f"write `dir:{shown}` or `oci:{shown}`")
    if scheme not in _KINDS:
        hint = near_matches_hint(scheme, _KINDS, otherwise=f"a source is {SPELLINGS}")
        raise UsageError(f"unknown kind of source: {shown}", hint=hint)
    if not rest:
        raise UsageError(f"source names nothing: {text}", hint=f"a source is {SPELLINGS}")
    from coldstart_fs.indexing.sources.platforms import parse_platform

    wanted = parse_platform(platform) if platform is not None else None
    opened: Source
    match scheme:
        case "dir":
            from coldstart_fs.indexing.sources.directory import Directory

            if wanted is not None:
                raise UsageError(f"a folder has no platform to choose: {text}", hint="leave `--platform` out")
            opened = Directory.open(rest, forbidden=forbidden)
        # a store inside of a layout disturbs nothing: only named blobs are read
        case "oci":
            from coldstart_fs.indexing.sources.oci import OciLayout

            opened = OciLayout(rest, wanted)
        case "oci-archive":
            from coldstart_fs.indexing.sources.oci import OciArchive

            opened = OciArchive(rest, wanted)
        case "docker-archive":
            from coldstart_fs.indexing.sources.docker_archive import DockerArchive

            opened = DockerArchive(rest, wanted)
        case _:
            from coldstart_fs.indexing.sources.registry import Registry

            opened = Registry(rest, wanted, skopeo)
    return opened


def is_in_pack_order(text: str) -> bool:
    """Whether this source hands contents over in the order of packs, and none that the tree lacks."""
    return text.startswith("dir:")


SPELLINGS = "oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:REF], docker://REF or dir:PATH"
_KINDS = ("oci", "oci-archive", "docker-archive", "docker", "dir")
