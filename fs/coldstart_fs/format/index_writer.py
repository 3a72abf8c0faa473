"""Writing an index from a tree whose contents were read: the same tree gives the same bytes.

Millions of entries are no reason for millions of small objects: what the passes learn of an entry stands in
arrays by its number, and the two large sections go to the file record by record.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any

from coldstart_cli.errors import DataError
from coldstart_fs.format.entry import Entry, Xattrs, in_index_order
from coldstart_fs.format.gathered import batched_bytes
from coldstart_fs.format.index import (
    ATTRIBUTES,
    DIRENT,
    HEADER,
    HEADER_BYTES,
    INODE,
    LONGEST_NAME_BYTES,
    MAGIC,
    NANOSECONDS,
    RECORD_BYTES,
    VERSION,
    XATTR,
)
from coldstart_fs.format.names import DIGEST_BYTES

_LARGEST_U32 = (1 << 32) - 1


@dataclass(frozen=True)
class WrittenIndex:
    """What was written; `digest` is the image's identity."""

    digest: bytes
    size_bytes: int
    content_bytes: int


def write_index(
    order: Sequence[Entry], stream: IO[bytes], *, chunk_bytes: int, configuration: Mapping[str, Any]
) -> WrittenIndex:
    """Write the whole file; `order` is `in_index_order`, and every regular file has its `chunks`."""
    from blake3 import blake3

    hasher = blake3()
    size_bytes = 0
    writer = _IndexWriter(order, chunk_bytes, configuration)
    for batch in batched_bytes(writer.parts()):
        hasher.update(batch)
        stream.write(batch)
        size_bytes += len(batch)
    return WrittenIndex(hasher.digest(), size_bytes, writer.content_bytes)


def encode_index(root: Entry, *, chunk_bytes: int, configuration: Mapping[str, Any]) -> bytes:
    """The file as bytes, for small trees."""
    stream = BytesIO()
    write_index(in_index_order(root), stream, chunk_bytes=chunk_bytes, configuration=configuration)
    return stream.getvalue()


class _Heap:
    """Byte strings back to back, each distinct one once."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._offsets: dict[bytes, int] = {}

    def add(self, text: bytes) -> int:
        offset = self._offsets.get(text)
        if offset is None:
            offset = self._offsets[text] = len(self.content)
            self.content += text
        return offset


class _IndexWriter:
    def __init__(self, order: Sequence[Entry], chunk_bytes: int, configuration: Mapping[str, Any]) -> None:
        self._order = order
        self._chunk_bytes = chunk_bytes
        self._configuration = json.dumps(configuration, sort_keys=True, separators=(",", ":")).encode("ascii")
        self._heap = _Heap()
        self.content_bytes = sum(entry.size for entry in order if entry.is_file)
        # by inode number
        self._links = array("I", bytes(4 * len(order)))
        self._parents = array("I", bytes(4 * len(order)))
        self._attribute_numbers = array("I", bytes(4 * len(order)))
        self._targets = array("Q")  # of the symlinks, in inode order
        self._dirents, self._attributes, self._xattrs = bytearray(), bytearray(), bytearray()

    def parts(self) -> Iterator[bytes | bytearray]:
        """The file's bytes in order, in pieces."""
        # the order of these calls is the order of strings in the heap
        self._encode_directories()
        self._targets.extend(self._heap.add(entry.target) for entry in self._order if entry.is_symlink)
        self._encode_attributes()
        counts = (
            len(self._order),
            len(self._attributes) // ATTRIBUTES.size,
            len(self._xattrs) // XATTR.size,
            len(self._dirents) // DIRENT.size,
            sum(self._chunk_count(entry) for entry in self._order if entry.is_file),
            len(self._heap.content),
            len(self._configuration),
        )
        table: list[int] = []
        end = HEADER_BYTES
        for count, record_bytes in zip(counts, RECORD_BYTES, strict=True):
            begin = end + -end % 8
            table += [begin, count]
            end = begin + count * record_bytes
        yield HEADER.pack(MAGIC, VERSION, HEADER_BYTES, end, self._chunk_bytes, 0, *table, self.content_bytes)
        sections: tuple[Iterable[bytes | bytearray], ...] = (
            self._inodes(),
            (self._attributes,),
            (self._xattrs,),
            (self._dirents,),
            (entry.chunks for entry in self._order if entry.is_file),
            (self._heap.content,),
            (self._configuration,),
        )
        end = HEADER_BYTES
        for begin, count, record_bytes, section in zip(
            table[::2], counts, RECORD_BYTES, sections, strict=True
        ):
            yield bytes(begin - end)
            yield from section
            end = begin + count * record_bytes

    def _inodes(self) -> Iterator[bytes]:
        dirents = chunks = symlinks = 0
        for number, entry in enumerate(self._order):
            size, first = entry.size, 0
            if entry.is_directory:
                size, first = len(entry.children), dirents
                dirents += size
            elif entry.is_file:
                first = chunks
                chunks += self._chunk_count(entry)
            elif entry.is_symlink:
                size, first = len(entry.target), self._targets[symlinks]
                symlinks += 1
            elif entry.is_device:
                major, minor = entry.device
                first = major << 32 | minor
            seconds, nanoseconds = divmod(entry.mtime_ns, NANOSECONDS)
            yield INODE.pack(
                self._attribute_numbers[number],
                self._links[number],
                seconds,
                nanoseconds,
                self._parents[number],
                size,
                first,
            )

    def _encode_directories(self) -> None:
        links, parents = self._links, self._parents
        links[0] = 1  # the root's own name; its `..` is counted like every directory's `.`
        for number, directory in enumerate(self._order):
            if not directory.is_directory:
                continue
            links[number] += 1
            for name in sorted(directory.children):
                child = directory.children[name]
                links[child.number] += 1
                if child.is_directory:
                    links[number] += 1
                    parents[child.number] = number
                offset = self._heap.add(name)
                if not 1 <= len(name) <= LONGEST_NAME_BYTES or offset > _LARGEST_U32:
                    raise DataError(f"name is too long for an index: {name.decode('utf-8', 'replace')}")
                self._dirents += DIRENT.pack(offset, len(name), child.mode >> 12, child.number)

    def _encode_attributes(self) -> None:
        known: dict[tuple[int, int, int, Xattrs], int] = {}
        for entry in self._order:
            pairs = tuple(sorted(entry.xattrs)) if entry.xattrs else ()
            record = (entry.mode, entry.uid, entry.gid, pairs)
            number = known.get(record)
            if number is None:
                number = known[record] = len(known)
                first = len(self._xattrs) // XATTR.size if pairs else 0
                for name, value in pairs:
                    name_offset, value_offset = self._heap.add(name), self._heap.add(value)
                    self._xattrs += XATTR.pack(name_offset, value_offset, len(name), 0, len(value))
                self._attributes += ATTRIBUTES.pack(entry.mode, entry.uid, entry.gid, first, len(pairs), 0)
            self._attribute_numbers[entry.number] = number

    def _chunk_count(self, entry: Entry) -> int:
        count = -(-entry.size // self._chunk_bytes)
        if len(entry.chunks) != count * DIGEST_BYTES:
            raise AssertionError(f"{len(entry.chunks) // DIGEST_BYTES} chunks for a file that needs {count}")
        return count
