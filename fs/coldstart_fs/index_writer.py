"""An index's bytes from a tree whose contents were read: the same tree gives the same bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from coldstart_cli.errors import DataError
from coldstart_fs.entry import Entry, Xattrs, walk
from coldstart_fs.index import (
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
from coldstart_fs.names import DIGEST_BYTES

_LARGEST_U32 = (1 << 32) - 1


def encode_index(root: Entry, *, chunk_bytes: int, configuration: Mapping[str, Any]) -> bytes:
    """The whole file; every regular file's `chunks` must be filled in."""
    return _IndexWriter(root, chunk_bytes, configuration).encode()


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
    def __init__(self, root: Entry, chunk_bytes: int, configuration: Mapping[str, Any]) -> None:
        self._chunk_bytes = chunk_bytes
        self._configuration = configuration
        self._order = list(walk(root))
        self._numbers = {id(entry): number for number, entry in enumerate(self._order)}
        self._heap = _Heap()
        self._content_bytes = sum(entry.size for entry in self._order if entry.is_file)

    def encode(self) -> bytes:
        # the order of these calls is the order of strings in the heap
        dirents, first_dirents, parents, links = self._encode_directories()
        targets = {id(entry): self._heap.add(entry.target) for entry in self._order if entry.is_symlink}
        attributes, attribute_numbers, xattrs = self._encode_attributes()
        inodes, chunks = bytearray(), bytearray()
        for entry in self._order:
            size, first = entry.size, 0
            if entry.is_directory:
                size, first = len(entry.children), first_dirents[id(entry)]
            elif entry.is_file:
                first = len(chunks) // DIGEST_BYTES
                self._check_chunks(entry)
                chunks += entry.chunks
            elif entry.is_symlink:
                size, first = len(entry.target), targets[id(entry)]
            elif entry.is_device:
                major, minor = entry.device
                first = major << 32 | minor
            seconds, nanoseconds = divmod(entry.mtime_ns, NANOSECONDS)
            inodes += INODE.pack(
                attribute_numbers[id(entry)],
                links[id(entry)],
                seconds,
                nanoseconds,
                parents.get(id(entry), 0),
                size,
                first,
            )
        configuration = json.dumps(self._configuration, sort_keys=True, separators=(",", ":")).encode("ascii")
        sections: list[bytes | bytearray] = [
            inodes,
            attributes,
            xattrs,
            dirents,
            chunks,
            self._heap.content,
            configuration,
        ]
        return self._assemble(sections)

    def _encode_directories(self) -> tuple[bytearray, dict[int, int], dict[int, int], Counter[int]]:
        dirents = bytearray()
        first: dict[int, int] = {}
        parents: dict[int, int] = {}
        links: Counter[int] = Counter()
        links[id(self._order[0])] = 1  # the root's own name; its `..` is counted like every directory's `.`
        for number, directory in enumerate(self._order):
            if not directory.is_directory:
                continue
            first[id(directory)] = len(dirents) // DIRENT.size
            links[id(directory)] += 1
            for name in sorted(directory.children):
                child = directory.children[name]
                links[id(child)] += 1
                if child.is_directory:
                    links[id(directory)] += 1
                    parents[id(child)] = number
                offset = self._heap.add(name)
                if not 1 <= len(name) <= LONGEST_NAME_BYTES or offset > _LARGEST_U32:
                    raise DataError(f"name is too long for an index: {name.decode('utf-8', 'replace')}")
                dirents += DIRENT.pack(offset, len(name), child.mode >> 12, self._numbers[id(child)])
        return dirents, first, parents, links

    def _encode_attributes(self) -> tuple[bytearray, dict[int, int], bytearray]:
        attributes, xattrs = bytearray(), bytearray()
        known: dict[tuple[int, int, int, Xattrs], int] = {}
        numbers: dict[int, int] = {}
        for entry in self._order:
            pairs = tuple(sorted(entry.xattrs))
            record = (entry.mode, entry.uid, entry.gid, pairs)
            number = known.get(record)
            if number is None:
                number = known[record] = len(known)
                first = len(xattrs) // XATTR.size if pairs else 0
                for name, value in pairs:
                    name_offset, value_offset = self._heap.add(name), self._heap.add(value)
                    xattrs += XATTR.pack(name_offset, value_offset, len(name), 0, len(value))
                attributes += ATTRIBUTES.pack(entry.mode, entry.uid, entry.gid, first, len(pairs), 0)
            numbers[id(entry)] = number
        return attributes, numbers, xattrs

    def _check_chunks(self, entry: Entry) -> None:
        expected = -(-entry.size // self._chunk_bytes)
        if len(entry.chunks) != expected * DIGEST_BYTES:
            raise AssertionError(
                f"{len(entry.chunks) // DIGEST_BYTES} chunks for a file that needs {expected}"
            )

    def _assemble(self, sections: list[bytes | bytearray]) -> bytes:
        body = bytearray()
        table: list[int] = []
        for section, record_bytes in zip(sections, RECORD_BYTES, strict=True):
            body += bytes(-len(body) % 8)
            table += [HEADER_BYTES + len(body), len(section) // record_bytes]
            body += section
        header = HEADER.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            HEADER_BYTES + len(body),
            self._chunk_bytes,
            0,
            *table,
            self._content_bytes,
        )
        return header + bytes(body)
