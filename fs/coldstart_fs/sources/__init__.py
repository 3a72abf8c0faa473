"""What can be indexed: each source hands over contents as it meets them and ends with the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from coldstart_cli.errors import UnavailableError, UsageError, near_matches_hint
from coldstart_cli.version import __version__
from coldstart_fs.chunk import Piece
from coldstart_fs.entry import Entry

Progress = Callable[[str], None]
Keep = Callable[[Entry, Iterable[Piece]], None]
"""Takes a regular file's content; the pieces must be used up before it returns."""


class Source(Protocol):
    """`notes` says what was left out of the tree, one sentence each."""

    notes: list[str]
    configuration: dict[str, Any]
    """The runtime configuration with the keys of the index format; known once the tree was read."""

    def read(self, keep: Keep, chunk_bytes: int, progress: Progress) -> Entry:
        """The root of the tree. Files that the tree turns out not to hold may have been kept too."""
        ...


def open_source(text: str, *, forbidden: str | None = None) -> AbstractContextManager[Source]:
    """The source that `SCHEME:REST` names; `forbidden` is a folder that must not lie inside of it."""
    scheme, separator, rest = text.partition(":")
    if not separator or "/" in scheme:
        raise UsageError(f"source has no kind: {text}", hint=f"write `dir:{text}` or `oci:{text}`")
    if scheme in _LATER:
        raise UnavailableError(
            f"{scheme}: sources are not supported by coldstart {__version__}",
            hint=_LATER[scheme].format(text=text),
        )
    if scheme not in _KINDS:
        hint = near_matches_hint(
            scheme, [*_KINDS, *_LATER], otherwise="a source is oci:DIR[:TAG] or dir:PATH"
        )
        raise UsageError(f"unknown kind of source: {text}", hint=hint)
    if not rest:
        raise UsageError(f"source names no folder: {text}")
    return _KINDS[scheme](rest, forbidden)


def _open_layout(rest: str, forbidden: str | None) -> AbstractContextManager[Source]:
    from coldstart_fs.sources.oci import OciLayout

    del forbidden  # a store inside a layout disturbs nothing: only named blobs are read
    return OciLayout.open(rest)


def _open_directory(rest: str, forbidden: str | None) -> AbstractContextManager[Source]:
    from coldstart_fs.sources.directory import Directory

    return Directory.open(rest, forbidden=forbidden)


_KINDS: dict[str, Callable[[str, str | None], AbstractContextManager[Source]]] = {
    "oci": _open_layout,
    "dir": _open_directory,
}
_LATER: dict[str, str] = {
    "oci-archive": "skopeo copy {text} oci:DIR:TAG, then index oci:DIR:TAG",
    "docker-archive": "skopeo copy {text} oci:DIR:TAG, then index oci:DIR:TAG",
    "docker": "skopeo copy {text} oci:DIR:TAG, then index oci:DIR:TAG",
}
