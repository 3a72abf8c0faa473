"""The order of chunks in packs: what a traced start reads first, by time; then everything in tree order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coldstart_fs.format.entry import Entry
from coldstart_fs.format.index import HOLE
from coldstart_fs.format.trace import Trace
from coldstart_fs.indexing.chunk_table import Chunk, chunks_of


def tree_order(order: Iterable[Entry], chunk_bytes: int) -> Iterator[Chunk]:
    """All chunks of a tree as a walk through it meets them; repeated ones repeat."""
    for entry in order:
        for chunk in chunks_of(entry, chunk_bytes):
            if chunk[0] != HOLE:
                yield chunk


@dataclass(frozen=True)
class TracedChunks:
    """What of a trace the tree has."""

    chunks: tuple[Chunk, ...]
    size_bytes: int
    missing_paths: int

    @classmethod
    def find(cls, trace: Trace, root: Entry, chunk_bytes: int) -> TracedChunks:
        """Each traced chunk once, by its first access; paths that are no file of the tree are counted."""
        found: dict[bytes, int] = {}
        missing: set[bytes] = set()
        for read in trace.in_time():
            entry = _file_at(root, read.path)
            if entry is None:
                missing.add(read.path)
                continue
            for digest, size_bytes in chunks_of(entry, chunk_bytes, read.offset, read.offset + read.length):
                if digest != HOLE:
                    found.setdefault(digest, size_bytes)
        return cls(tuple(found.items()), sum(found.values()), len(missing))


def _file_at(root: Entry, path: bytes) -> Entry | None:
    """The file whose own path this is: a trace names what was read, never a symlink on the way to it."""
    entry: Entry | None = root
    for part in path.split(b"/"):
        if part and entry is not None:
            entry = entry.children.get(part)
    return entry if entry is not None and entry.is_file else None
