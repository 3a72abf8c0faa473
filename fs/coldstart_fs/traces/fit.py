"""Whether a trace fits an image: by path, since another build of an image is another image."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from coldstart_fs.format.index import LONGEST_NAME_BYTES, Index
from coldstart_fs.format.trace import Kind, Lookup, Read, Trace, own_path
from coldstart_fs.traces.inode_paths import find_path
from coldstart_fs.traces.merge import disjoint


@dataclass(frozen=True)
class Fit:
    """What of a trace an image has. `gone` are traced files that are no files there, the most read first."""

    same_image: bool
    files: int
    fitting_files: int
    size_bytes: int
    fitting_bytes: int
    lookups: int
    fitting_lookups: int
    gone: tuple[tuple[bytes, int], ...]

    @property
    def coverage(self) -> float:
        """The part of the traced bytes that the image has, 0 to 1; of an empty trace all."""
        return self.fitting_bytes / self.size_bytes if self.size_bytes else 1.0


def fit_trace(trace: Trace, index: Index, image: bytes) -> tuple[Trace, Fit]:
    """The trace as one of this image, ranges cut to its files and the rest left out; and how much fits."""
    trace = disjoint(trace)
    directories: dict[bytes, int | None] = {}
    reads: list[Read] = []
    gone: dict[bytes, int] = {}
    sizes: dict[bytes, int | None] = {}
    for read in trace.reads:
        path = own_path(read.path)
        if path not in sizes:
            sizes[path] = _file_bytes(index, path, directories)
        size_bytes = sizes[path]
        if size_bytes is None:
            gone[path] = gone.get(path, 0) + read.length
        elif (length := min(read.length, size_bytes - read.offset)) > 0:
            reads.append(replace(read, path=path, length=length))
    lookups: list[Lookup] = []
    for kind in Kind:
        asked = [lookup for lookup in trace.lookups if lookup.kind is kind]
        fits = fitting(kind, (own_path(lookup.path) for lookup in asked), index, directories)
        lookups += [lookup for lookup in asked if own_path(lookup.path) in fits]
    lookups.sort(key=lambda lookup: (lookup.seconds, lookup.path, lookup.kind))
    fit = Fit(
        same_image=trace.image == image,
        files=len(sizes),
        fitting_files=len(sizes) - len(gone),
        size_bytes=trace.size_bytes,
        fitting_bytes=sum(read.length for read in reads),
        lookups=len(trace.lookups),
        fitting_lookups=len(lookups),
        gone=tuple(sorted(gone.items(), key=lambda item: (-item[1], item[0]))),
    )
    return replace(trace, image=image, reads=tuple(reads), lookups=tuple(lookups)), fit


def _file_bytes(index: Index, path: bytes, directories: dict[bytes, int | None]) -> int | None:
    number = find_path(index, path, known=directories)
    if number is None or not (inode := index.inode(number)).is_file:
        return None
    return inode.size


def fitting(
    kind: Kind, paths: Iterable[bytes], index: Index, directories: dict[bytes, int | None]
) -> set[bytes]:
    """Those paths that are in the image what a trace says, reached without following a symlink."""
    return {path for path in paths if _fits(kind, path, index, directories)}


def _fits(kind: Kind, path: bytes, index: Index, directories: dict[bytes, int | None]) -> bool:
    number = find_path(index, path, known=directories)
    if kind is Kind.MISSING:
        above, _, name = path.rpartition(b"/")
        parent = find_path(index, above, known=directories)
        return (
            number is None
            and name not in {b".", b".."}
            and len(name) <= LONGEST_NAME_BYTES
            and parent is not None
            and index.inode(parent).is_directory
        )
    if number is None:
        return False
    if kind is Kind.LISTED:
        return index.inode(number).is_directory
    return kind is Kind.FOUND or index.inode(number).is_symlink
